"""The whole way from prompts to a served draft on one GPU, by eagled's own commands.

    python3 -m bench.draft_gpu --model DIR --data DIR --site /tmp/site --work W --out $OUT
    … --dry --python .sglang-venv/bin/python     # the same on SGLang for the CPU, tiny

DIR of the data has chat.jsonl.gz and code.jsonl.gz (rows of OpenAI messages: a prompt and the
answer that its dataset has) and mt_bench.json (a list of questions, which are kept out of the
training data). Regenerated: the target answers every prompt, SGLang captures while it generates.
Original: the datasets' own answers, captured in a pass over them.

Drafts: `full`, `third` and `tenth` of the regenerated samples; `original` of as many original
ones; `lossless` and `fp8` are `third` from shards of another codec, in the same order. Each is
estimated on held-out regenerated answers. The servers that are compared run on the same GPU and are
asked one after the other. Each result is a line of OUT/draft.jsonl as soon as it is there, and a
stage that fails says so and lets the others go on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.capture.machine import ROOT, plugin_site
from eagled.shards.format import Codec, StatesSample
from eagled.shards.policy import StorePolicy
from eagled.shards.reader import ShardDataset
from eagled.shards.writer import ShardWriter

THIRD, TENTH = 0.3, 0.1
_OF_REGEN = ("full", "third", "tenth")
_GPU = (
    "--attention-backend", "triton", "--sampling-backend", "pytorch",
    "--grammar-backend", "none", "--sleep-on-idle",
)  # fmt: skip
_CPU = (
    "--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph",
    "--max-total-tokens", "16384", "--mem-fraction-static", "0.3", "--skip-server-warmup",
    "--dtype", "float32", "--sleep-on-idle",
)  # fmt: skip
_OPEN = ("waiting", "queued", "generating", "retry_wait", "generated", "extracting")
_UP_S, _LONG_S = 420.0, 1500.0


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    rows: int  # of each dataset; 0 is all
    answer: int
    bench_answer: int
    per_set: int
    runs: int
    epochs: float
    vocab: int
    batch_tokens: int
    lr: float
    at_once: int  # requests of the generating server


REAL = Sizes(0, 320, 128, 32, 2, 3, 32_000, 8192, 1e-3, 512)
DRY = Sizes(24, 32, 16, 4, 1, 12, 4096, 1024, 2e-3, 8)


@dataclass
class Line:
    """One run of this bench."""

    args: argparse.Namespace
    sizes: Sizes
    began: float = field(default_factory=time.monotonic)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def work(self) -> Path:
        """Where everything lies."""
        return Path(self.args.work)

    def say(self, what: str, **found: object) -> None:
        """Write a result at once."""
        line = json.dumps({"what": what, "at_s": round(time.monotonic() - self.began, 1), **found})
        with self.lock, (Path(self.args.out) / "draft.jsonl").open("a") as file:
            file.write(line + "\n")
            print(line[:1500], flush=True)

    def environment(self) -> dict[str, str]:
        """Return the variables of eagled's processes, and of SGLang's."""
        paths = [str(plugin_site(self.work)), *self.args.ours]
        more = {"HF_HUB_OFFLINE": "1", "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1"}
        if self.args.dry:
            more |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
        return os.environ | more | {"PYTHONPATH": os.pathsep.join([*paths, str(ROOT)])}

    def eagled(self, *words: str, check: bool = True) -> str:
        """Run a command of eagled's to its end and return what it printed."""
        at = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "eagled", *words], capture_output=True, text=True, check=False,
            env=self.environment(), cwd=self.work,
        )  # fmt: skip
        with self.lock, (self.work / "commands.log").open("a") as out:
            out.write(f"$ eagled {' '.join(words)}  ({time.monotonic() - at:.1f} s)\n")
            out.write(f"{done.stdout[-20000:]}{done.stderr[-20000:]}")
        if check and done.returncode:
            raise RuntimeError(
                f"eagled {' '.join(words)}: {done.returncode}\n{done.stderr[-3000:]}"
            )
        return done.stdout

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a command of eagled's that stays."""
        with (self.work / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "eagled", *words], stdout=log, stderr=log, cwd=self.work,
                env=self.environment(), start_new_session=True,
            )  # fmt: skip
        self.servers.append(process)
        return process

    def answers(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Wait until `eagled serve` has found its server right."""
        log, deadline = self.work / f"{name}.log", time.monotonic() + _UP_S
        while "serving at" not in (text := log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"server {name} did not come up:\n{text[-3000:]}")
            time.sleep(0.5)
        self.say("server_up", name=name)


# -- configuration


def config_text(line: Line, kind: str, port: int, *, most: int, memory: float) -> str:
    """Return the configuration of the regenerated or the original samples, with one server."""
    s, args = line.sizes, line.args
    flags = [*(_CPU if args.dry else _GPU), "--max-running-requests", str(most)]
    if not args.dry:
        flags += ["--mem-fraction-static", str(memory), "--cuda-graph-max-bs", str(most)]
    beside = str(ROOT / "tests" / "sglang_cpu") if args.dry else args.site
    variables = {"PYTHONPATH": os.pathsep.join([str(plugin_site(line.work)), beside])}
    spool = Path("/dev/shm") / f"eagled-{kind}-{line.work.name}"  # noqa: S108 - the point
    mode = "native" if kind == "original" else "regenerate"
    datasets = "".join(
        f'[[datasets]]\nname = "{n}"\nsource = "{line.work / "data" / n}.jsonl"\n'
        f'format = "openai"\nmode = "{mode}"\ncount = {s.rows}\n'
        for n in ("chat", "code")
    )
    pairs = "".join(f"{key} = {json.dumps(value)}\n" for key, value in variables.items())
    return f"""[run]
name = "{kind}"
state_dir = "{line.work / kind}"
seed = 17
[target]
model = "{args.model}"
chat_template = "{ROOT / "eagled/demo/chat_template.jinja"}"
[sampling]
temperature = 0.7
top_p = 0.95
max_new_tokens = {s.answer}
seed = 17
[[servers]]
url = "http://127.0.0.1:{port}"
[lanes.all]
context = 4096
limit = 0
[generation]
min_reply = 16
probe_interval_s = 1
[prep]
exclude = ["{line.work / "data/mt_bench.json"}"]
[extract]
backend = "sglang"
capture = "with_generation"
spool = "{spool}"
[shards]
target_bytes = {1 << 24 if args.dry else 1 << 30}
max_wait_s = {2 if args.dry else 10}
[disk]
reserve_bytes = 1073741824
resume_bytes = 67108864
[merge]
holdout = {0.2 if args.dry else 0.04}
[vocab]
size = {s.vocab}
[train]
threads = {1 if args.dry else 3}
device = "{"cpu" if args.dry else "cuda"}"
ttt_steps = 5
draft_steps = 3
epochs = {s.epochs}
batch_tokens = {s.batch_tokens}
max_tokens = 2048
lr = {s.lr}
[serve]
python = "{args.python}"
args = {json.dumps(flags)}
[serve.env]
HF_HUB_OFFLINE = "1"
SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK = "1"
{'SGLANG_USE_CPU_ENGINE = "1"' if args.dry else ""}
{pairs}{datasets}"""


def write(line: Line, name: str, text: str) -> str:
    """Write a configuration; return its path."""
    path = line.work / f"{name}.toml"
    path.write_text(text)
    return str(path)


# -- stages


def answered(line: Line, config: str, kind: str) -> dict[str, Any]:
    """Run the daemon until every sample has its states, merge, and return its last status."""
    daemon = line.start(f"daemon-{kind}", "run", "--config", config)
    at, first = time.monotonic(), 0.0
    last: dict[str, Any] = {}
    while True:
        if daemon.poll() is not None:
            log = (line.work / f"daemon-{kind}.log").read_text(errors="replace")
            raise RuntimeError(f"the daemon ended with {daemon.returncode}:\n{log[-3000:]}")
        told = line.eagled("status", "--json", "--config", config, check=False)
        with_sets = json.loads(told) if told.strip().startswith("{") else {}
        sets = with_sets.get("datasets") or {}
        if sets:
            first = first or time.monotonic()
            last = with_sets
            if not sum(int(d[s]) for d in sets.values() for s in _OPEN):
                break
        if time.monotonic() - at > _LONG_S:
            raise RuntimeError(f"not done: {sets}")
        time.sleep(1.0)
    found = {"seconds": round(time.monotonic() - first, 1), "datasets": last["datasets"]}
    line.eagled("merge", "--config", config)
    daemon.send_signal(signal.SIGTERM)
    found["daemon_exit"] = daemon.wait(60)
    return found


def recode(source: str, folder: str, codec: Codec) -> int:
    """Write a shard again under another codec and the same name; return its bytes."""
    data = ShardDataset([Path(source)])
    policy = StorePolicy(codec, codec, data.manifest.last)
    writer = ShardWriter(Path(folder) / "new", policy.apply(data.manifest), threads=1)
    for i in range(len(data)):
        got, entry = data[i], data.entry(i)
        aux, last = (got[k].view(torch.int16).numpy().view(np.uint16) for k in ("aux", "last"))
        writer.append(
            StatesSample(
                entry.uid, entry.sample, entry.attempt, entry.dataset,
                got["input_ids"].int().numpy(), got["loss_mask"].to(torch.uint8).numpy(),
                aux, last, got["last_positions"].int().numpy(),
            )
        )  # fmt: skip
    path = writer.finish().path
    path.replace(Path(folder) / Path(source).name)
    return Path(folder, Path(source).name).stat().st_size


def recoded(line: Line, base: str, codec: Codec) -> str:
    """Make a state directory whose shards have another codec; return its configuration."""
    old, new = line.work / "regenerated", line.work / codec
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(old / "corpora", new / "corpora")
    (new / "shards" / "new").mkdir(parents=True)
    paths = sorted((old / "shards").glob("*.safetensors"))
    at = time.monotonic()
    with ProcessPoolExecutor(1 if line.args.dry else 5, initializer=torch.set_num_threads,
                             initargs=(1,)) as pool:  # fmt: skip
        jobs = [pool.submit(recode, str(p), str(new / "shards"), codec) for p in paths]
        sizes = [job.result() for job in jobs]
    (new / "shards" / "new").rmdir()
    raw = sum(p.stat().st_size for p in paths)
    line.say(
        "recoded", codec=codec, seconds=round(time.monotonic() - at, 1), bytes=sum(sizes), raw=raw,
        share=round(sum(sizes) / raw, 4),
    )  # fmt: skip
    text = Path(base).read_text()
    return write(line, codec, text.replace(str(old), str(new)))


def _folder(name: str) -> str:
    return "regenerated" if name in _OF_REGEN else name


def train(line: Line, config: str, name: str, samples: int) -> dict[str, Any]:
    """Train a draft; return what it came to."""
    at = time.monotonic()
    told = line.eagled(
        "train", "--json", "--name", name, "--config", config,
        "--set", f"train.max_samples={samples}",
    )  # fmt: skip
    found: dict[str, Any] = json.loads(told)
    line.say(
        "trained", name=name, samples=samples, seconds=round(time.monotonic() - at, 1), result=found
    )
    return found


def held_out(line: Line, drafts: Sequence[tuple[str, Path]], config: str) -> None:
    """Estimate drafts on the held-out regenerated answers, all on the same ones."""
    from eagled.config_load import load_config
    from eagled.lanes import lane_for
    from eagled.paths import StatePaths
    from eagled.shards.target import resolve_model
    from eagled.train.accept import estimate
    from eagled.train.corpus import latest_corpus
    from eagled.train.data import usable
    from eagled.train.export import weights_of
    from eagled.train.model import DraftHead
    from eagled.train.teacher import load_teacher
    from eagled.train.trainer import teacher_view

    found = load_config(Path(config)).config
    paths = StatePaths(found.run.state_dir)
    data = ShardDataset.from_folder(
        paths.shards, corpus=latest_corpus(paths.corpora), split="holdout"
    )
    device = torch.device("cpu" if line.args.dry else "cuda")
    dtype = torch.float32 if line.args.dry else torch.bfloat16
    teacher = load_teacher(resolve_model(found.target.model, found.target.revision))
    for name, folder in drafts:
        trained = weights_of(folder)
        head = DraftHead(trained.geometry)
        with torch.no_grad():
            for key, weight in head.named_parameters():
                weight.copy_(trained.weights[key])
        view = teacher_view(teacher, torch.arange(len(trained.d2t)) + trained.d2t, device, dtype)
        for steps in (3, 5):
            with torch.autocast(device.type, torch.bfloat16, enabled=not line.args.dry):
                got = estimate(
                    head.to(device), data, usable(data, 2048), view, steps=steps,
                    batch_tokens=8192,
                    lane_of=lambda n: lane_for(found, n, server_context=None) or "none",
                )  # fmt: skip
            line.say("held_out", name=name, steps=steps, result=got.to_dict())


def measure(line: Line, name: str, config: str, urls: tuple[str, str], *words: str) -> None:
    """Run `eagled bench` on two running servers."""
    out = line.work / f"bench-{name}"
    told = line.eagled(
        "bench", "--plain-url", urls[0], "--draft-url", urls[1], "--out", str(out), "--json",
        "--config", config, *words,
    )  # fmt: skip
    line.say("bench", name=name, words=words, found=json.loads(told))


def guarded(line: Line, name: str, work: Callable[[], object]) -> Any:  # noqa: ANN401 - whatever the stage returns
    """Run a stage; say how it failed, if it did."""
    try:
        return work()
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is a result
        line.say(f"{name}_failed", error=f"{type(exc).__name__}: {exc}"[-4000:],
                 trace=traceback.format_exc()[-1500:])  # fmt: skip
        return None


@dataclass(frozen=True)
class Setting:
    """Configurations by name: the two runs' own, and one for each server that is compared."""

    regen: str
    original: str
    asked: dict[str, str]

    @classmethod
    def made(cls, line: Line) -> Setting:
        """Write the data files and all configurations."""
        data = Path(line.args.data)
        (line.work / "data").mkdir(parents=True, exist_ok=True)
        for name in ("chat", "code"):
            with gzip.open(data / f"{name}.jsonl.gz") as file:
                (line.work / "data" / f"{name}.jsonl").write_bytes(file.read())
        shutil.copy(data / "mt_bench.json", line.work / "data")

        def config(name: str, kind: str, port: int, most: int, memory: float) -> str:
            text = config_text(line, kind, port, most=most, memory=memory)
            return write(line, name, text)

        most = line.sizes.at_once
        ports = {"plain": 31100, "full": 31200, "original": 31300, "third": 31400, "tenth": 31500}
        return cls(
            config("regenerated", "regenerated", 31000, most, 0.15),
            config("original", "original", 31000, most, 0.15),
            {n: config(f"serve-{n}", "regenerated", p, 64, 0.15) for n, p in ports.items()},
        )

    def url(self, name: str) -> str:
        """Return the address of a server that is compared."""
        return Path(self.asked[name]).read_text().split('url = "', 1)[1].split('"', 1)[0]


def gathered(line: Line, setting: Setting) -> subprocess.Popen[bytes]:
    """Make the regenerated corpus with its states; return the capturing server, which stays."""
    capturing = line.start("capturing", "serve", "--capture", "--config", setting.regen)
    for config in (setting.regen, setting.original):
        line.eagled("prep", "--config", config)
    line.say("prepared")
    line.answers("capturing", capturing)
    line.say("regenerated", **answered(line, setting.regen, "regenerated"))
    return capturing


def drafted(line: Line, setting: Setting, capturing: subprocess.Popen[bytes] | None) -> list[str]:
    """Train all drafts; return the names of those that are there."""
    regen, original = setting.regen, setting.original
    line.say("vocab", found=json.loads(line.eagled("vocab", "--json", "--config", regen)))
    manifest = next((line.work / "regenerated/corpora").glob("v*/manifest.json"))
    corpus = json.loads(manifest.read_text())
    samples = corpus["rows"] - corpus["holdout_rows"]
    line.say("corpus", facts={k: v for k, v in corpus.items() if isinstance(v, int | str)})

    def native() -> None:
        if not list((line.work / "original/corpora").glob("v*")):
            line.say("original", **answered(line, original, "original"))
        if capturing is not None:
            capturing.send_signal(signal.SIGTERM)
        line.eagled("vocab", "--config", original)
        train(line, original, "original", samples)

    third, tenth = round(samples * THIRD), round(samples * TENTH)

    def codec(which: Codec) -> None:
        made = line.work / f"{which}.toml"
        train(line, str(made) if made.exists() else recoded(line, regen, which), which, third)

    stages: dict[str, Callable[[], object]] = {
        "full": lambda: train(line, regen, "full", 0),
        "third": lambda: train(line, regen, "third", third),
        "tenth": lambda: train(line, regen, "tenth", tenth),
        "original": native,
        "fp8": lambda: codec("fp8"),
        "lossless": lambda: codec("lossless"),
    }
    with ThreadPoolExecutor(1 if line.args.dry else len(stages)) as pool:
        jobs = {name: pool.submit(guarded, line, name, work) for name, work in stages.items()}
    return [name for name, job in jobs.items() if job.exception() is None and job.result()]


def served(line: Line, setting: Setting, drafts: Sequence[str]) -> None:
    """Serve plain and with drafts, and measure one after the other."""
    s = line.sizes
    wanted = [n for n in ("full", "original", "third", "tenth") if n in drafts]
    up = {"plain": line.start("plain", "serve", "--config", setting.asked["plain"])}
    for name in wanted[:1] if line.args.dry else wanted:
        draft = str(line.work / _folder(name) / "drafts" / name / "draft")
        up[name] = line.start(name, "serve", "--draft", draft, "--config", setting.asked[name])
    line.answers("plain", up["plain"])
    sets = (
        "--prompts", str(line.work / "data/mt_bench.json"), "--holdout", "--per-set",
        str(s.per_set), "--max-new-tokens", str(s.bench_answer),
    )  # fmt: skip
    sampled = (
        "--holdout", "--sampled", "--per-set", str(s.per_set * 2), "--max-new-tokens",
        str(s.answer), "--runs", "1", "--concurrency", "32",
    )  # fmt: skip
    for name, process in up.items():
        if name == "plain":
            continue
        points = ("1,8,32", str(s.runs)) if name == "full" else ("32", "1")
        guarded(line, f"up_{name}", partial(line.answers, name, process))
        guarded(line, f"bench_{name}", partial(
            measure, line, name, setting.regen, (setting.url("plain"), setting.url(name)), *sets,
            "--concurrency", points[0], "--runs", points[1],
        ))  # fmt: skip
    if "full" in up:
        urls = (setting.url("plain"), setting.url("full"))
        guarded(line, "sampled", lambda: measure(line, "sampled", setting.regen, urls, *sampled))


def everything(line: Line) -> None:
    """Go the whole way."""
    setting = Setting.made(line)
    capturing = None if line.args.go_on else gathered(line, setting)
    drafts = drafted(line, setting, capturing)
    if capturing is not None:
        capturing.send_signal(signal.SIGTERM)
        capturing.wait(60)
    folders = [(name, line.work / _folder(name) / "drafts" / name) for name in drafts]
    guarded(line, "held_out", lambda: held_out(line, folders, setting.regen))
    served(line, setting, drafts)
    line.say("done")


def keep(line: Line) -> None:
    """Put logs, metrics, results and reports into one archive in OUT."""
    small = ("*.log", "*.toml", "bench-*/*", "*/drafts/*/*.json*", "*/drafts/*/report.html",
             "*/logs/*.log")  # fmt: skip
    with tarfile.open(Path(line.args.out) / "draft.tar.gz", "w:gz") as tar:
        for path in sorted({p for pattern in small for p in line.work.glob(pattern)}):
            if path.is_file() and path.stat().st_size < 4 << 20:
                tar.add(path, path.relative_to(line.work))


def main() -> int:
    """Go the whole way; 0 if every stage went to its end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--site", default="", help="folder with SGLang's packages")
    parser.add_argument("--ours", nargs="*", default=[], help="folders with eagled's packages")
    parser.add_argument("--python", default=sys.executable, help="of SGLang's environment")
    parser.add_argument("--rows", type=int, default=0, help="of each dataset")
    parser.add_argument("--go-on", action="store_true", help="go on with what lies in --work")
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args()
    if not args.go_on:
        shutil.rmtree(args.work, ignore_errors=True)
    for folder in (args.work, args.out):
        Path(folder).mkdir(parents=True, exist_ok=True)
    sizes = DRY if args.dry else REAL
    line = Line(args, replace(sizes, rows=args.rows) if args.rows else sizes)
    try:
        guarded(line, "all", lambda: everything(line))
    finally:
        for process in line.servers:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in line.servers:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        keep(line)
    return int("_failed" in (Path(args.out) / "draft.jsonl").read_text())


if __name__ == "__main__":
    sys.exit(main())
