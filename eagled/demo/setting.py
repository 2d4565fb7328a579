"""The demo's own folder and configuration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from eagled.artifacts import write_bytes
from eagled.errors import UsageError

if TYPE_CHECKING:
    from eagled.demo.data import DemoDataset

MARKER = ".eagled-demo"
LANE_CUT_TOKENS = 1024  # lowered from 10,000, so that four prompts of 2,048 and more go long
MAX_NEW_TOKENS = 96
SLOTS = 16
DRAFT = "demo"  # the draft's name
_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})  # x86 twice, and Arm


@dataclass(frozen=True, slots=True)
class DemoPaths:
    """Where one demo lives."""

    root: Path

    @property
    def config(self) -> Path:
        """The configuration that a second terminal can use."""
        return self.root / "eagled.toml"

    @property
    def data(self) -> Path:
        """The dataset files."""
        return self.root / "data"

    @property
    def questions(self) -> Path:
        """The benchmark's questions, which `demo/data.py` writes; never trained on."""
        return self.data / "mt_bench.json"

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.root / "state"

    @property
    def logs(self) -> Path:
        """What the programs print."""
        return self.root / "logs"


def fresh_folder(root: Path) -> DemoPaths:
    """Empty `root` if an earlier demo made it, and mark it.

    Raises:
        UsageError: if something else lies there.
    """
    root = root.resolve()
    if root.exists() and any(root.iterdir()) and not (root / MARKER).exists():
        raise UsageError(f"{root} is not a demo folder; name another one with --folder")
    shutil.rmtree(root, ignore_errors=True)
    paths = DemoPaths(root)
    for folder in (root, paths.data, paths.logs):
        folder.mkdir(parents=True, exist_ok=True)
    (root / MARKER).touch()
    return paths


def _quoted(value: object) -> str:
    return json.dumps(str(value), ensure_ascii=False)  # a JSON string is a TOML basic string


def compute_dtype(cpuinfo: str) -> Literal["bfloat16", "float32"]:
    """Return what the demo's model is computed in: bfloat16 only where the processor has it.

    Elsewhere its products are made element by element: a seventh of float32's speed, measured.

    Args:
        cpuinfo: text of /proc/cpuinfo.
    """
    flags = {word for line in cpuinfo.splitlines() for word in line.split()}
    return "bfloat16" if flags & _BF16_FLAGS else "float32"


def config_text(
    model: Path, template: Path | None, url: str, dtype: str, datasets: Sequence[DemoDataset],
    exclude: Path,
) -> str:  # fmt: skip
    """Return the demo's eagled.toml."""
    override = f"chat_template = {_quoted(template)}\n" if template else ""
    sources = "\n".join(
        f"[[datasets]]\nname = {_quoted(d.name)}\nsource = {_quoted(d.path)}\n"
        f"format = {_quoted(d.format)}\n"
        for d in datasets
    )
    return f"""# Made by `eagled demo`; watch it with: eagled top --config this-file
[run]
name = "demo"
state_dir = "state"
seed = 17

[target]
model = {_quoted(model)}
{override}
[sampling]
temperature = 0.7
top_p = 0.95
max_new_tokens = {MAX_NEW_TOKENS}
seed = 17

[[servers]]
url = {_quoted(url)}

[lanes.short]
context = {LANE_CUT_TOKENS}
limit = 12
concurrency = 12

[lanes.long]
context = 0
limit = 2
concurrency = 2

[generation]
min_reply = 96
probe_interval_s = 1

[prep]
exclude = [{_quoted(exclude)}]

[extract]
dtype = {_quoted(dtype)}
threads = 1
batch_tokens = 4096

[shards]
target_bytes = 33554432
max_wait_s = 30

[disk]
reserve_bytes = 268435456
resume_bytes = 67108864

[merge]
holdout = 0.1

[vocab]
size = 4096

[train]
device = "cpu"
ttt_steps = 3
max_steps = 70
epochs = 100
batch_tokens = 1024
max_tokens = 768
lr = 1e-3
eval_every = 1000

[daemon]
stop_timeout_s = 20

{sources}"""


def write_config(paths: DemoPaths, text: str) -> None:
    """Write the configuration."""
    write_bytes(paths.config, text.encode())
