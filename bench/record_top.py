"""Make the recording that `eagled top --demo` shows: a real run on the demo's small model.

`python -m bench.record_top [--folder DIR]` needs the model of `eagled demo` in its cache and
takes some ten minutes on two cores. The prompts are our own words and pages of docs/, so that the
package holds no text of others. The daemon is killed once in the middle, and a draft is trained at
the end, so that every state and every view has something to show.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagled.control import call
from eagled.demo.convert import TEMPLATE, demo_model
from eagled.demo.fetch import cache_dir
from eagled.demo.processes import Child, eagled_command, run_command
from eagled.errors import UnreachableError
from eagled.paths import StatePaths

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "eagled/tui/demo.jsonl.zst"
STATE_NAME, CACHE_NAME = "/var/lib/eagled/smollm2-135m", "/var/lib/eagled/cache"  # as it is shown
WAIT_S = 1800.0
TOPICS = (
    "a bicycle gear", "the tides", "sourdough bread", "a binary search", "a lighthouse",
    "photosynthesis", "a stack of plates", "the seasons", "a water clock", "compound interest",
    "a hash table", "the moon's phases", "a violin string", "a compost heap", "map projections",
    "a paper aeroplane", "a bloom filter", "honey", "a sundial", "glaciers",
)  # fmt: skip
QUESTIONS = (
    "Explain {} to a child of ten.",
    "Name three common mistakes that people make about {}.",
    "Write a short plan for a lesson about {}.",
)
FOLLOW_UPS = ("Give an example.", "Now say it in one sentence.")
PAGES = ("status", "prep", "operations", "disk", "events", "templates")
TOOL = {
    "name": "look_up",
    "description": "Look a word up in an encyclopedia.",
    "parameters": {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
    },
}
CONFIG = """\
[run]
name = "smollm2-135m"
state_dir = "state"
seed = 17
[target]
model = {model}
chat_template = {template}
[sampling]
temperature = 0.7
top_p = 0.95
max_new_tokens = 72
seed = 17
[[servers]]
url = {url}
[lanes.short]
context = 1024
limit = 12
seed = 8
[lanes.long]
context = 0
limit = 2
concurrency = 2
[generation]
min_reply = 72
probe_interval_s = 1
[extract]
threads = 1
batch_tokens = 4096
[shards]
target_bytes = 8388608
max_wait_s = 10
[disk]
reserve_bytes = 268435456
resume_bytes = 67108864
[merge]
holdout = 0.1
[vocab]
size = 4096
[train]
epochs = 1
batch_tokens = 1024
eval_every = 10
threads = 1
[daemon]
stop_timeout_s = 20
"""


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _rows() -> dict[str, list[dict[str, Any]]]:
    """Return the prompts by dataset."""
    asked = [q.format(t) for q in QUESTIONS for t in TOPICS]
    talks = []
    for topic in TOPICS:
        talk = [_user(f"What is interesting about {topic}?")]
        for more in FOLLOW_UPS:
            talk += [{"role": "assistant", "content": "x"}, _user(more)]
        talks.append({"messages": [*talk, {"role": "assistant", "content": "x"}]})
    return {
        "questions": [{"messages": [_user(q)]} for q in asked],
        "conversations": talks,
        "with-tools": [{"messages": [_user(f"Look up {t} and tell me one fact.")],
                        "tools": [{"type": "function", "function": TOOL}]} for t in TOPICS],
        "in-brief": [{"messages": [_user(f"Describe {t} in at most ten words.")]} for t in TOPICS],
        "pages": [{"messages": [_user(f"{_page(p)}\n\nSum this page up in two sentences.")]}
                  for p in PAGES],
    }  # fmt: skip


def _page(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text("utf-8")


def _write(folder: Path, url: str) -> Path:
    text = CONFIG.format(
        model=json.dumps(str(demo_model(cache_dir()))), template=json.dumps(str(TEMPLATE)),
        url=json.dumps(url),
    )  # fmt: skip
    for name, rows in _rows().items():
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        text += f'[[datasets]]\nname = "{name}"\nsource = "{file.name}"\nformat = "openai"\n'
        if name == "in-brief":
            text += "[datasets.checks]\nmax_tokens = 40\n"
    path = folder / "eagled.toml"
    path.write_text(text, "utf-8")
    return path


def _until(socket: Path, ready: Callable[[dict[str, Any]], bool]) -> None:
    """Wait for a status that satisfies `ready`."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            if ready(call.get(socket, "/v1/status")):
                return
        except UnreachableError:
            pass
        time.sleep(0.25)
    raise SystemExit("it did not come about in time")


def _answers(status: dict[str, Any]) -> int:
    return sum(int(d["done"]) for d in status["datasets"].values())


def _through(status: dict[str, Any]) -> bool:
    names = ("waiting", "queued", "generating", "retry_wait", "generated", "extracting")
    found = status["datasets"].values()
    return len(found) == len(_rows()) and not any(d[name] for d in found for name in names)


def story(folder: Path) -> None:
    """Run everything and write the recording."""
    children: list[Child] = []

    def start(name: str, *argv: str) -> Child:
        child = Child(name, list(argv), folder / f"{name}.log")
        children.append(child)
        return child

    model = demo_model(cache_dir())
    try:
        words = ("--model", str(model), "--port", "0", "--slots", "16", "--threads", "1")
        engine = start("engine", *eagled_command("engine", *words))
        engine.wait_for(lambda: "http://" in engine.output(), WAIT_S, "a ready line")
        url = "http://127.0.0.1:" + engine.output().split("http://127.0.0.1:")[1].split()[0]
        config = _write(folder, "".join(c for c in url if c.isalnum() or c in ":/."))
        log, socket = folder / "commands.log", StatePaths(folder / "state").socket
        run_command(["prep", "--config", str(config)], log)
        run = eagled_command("run", "--config", str(config))
        recorder = start("recorder", sys.executable, "-m", "eagled.tui.record", "--socket",
                         str(socket), "--out", str(OUT), "--name", f"{cache_dir()}={CACHE_NAME}",
                         "--name", f"{folder / 'state'}={STATE_NAME}")  # fmt: skip
        daemon = start("daemon", *run)
        _until(socket, lambda s: _answers(s) >= 30)  # about a fifth
        daemon.kill()
        time.sleep(4.0)
        start("daemon", *run)
        _until(socket, _through)
        for command in (("merge",), ("vocab",), ("train", "--name", "draft-1")):
            run_command([command[0], "--config", str(config), *command[1:]], log)
        time.sleep(12.0)
        if recorder.stop() != 0:
            raise SystemExit(recorder.tail())
    finally:
        for child in reversed(children):
            if child.returncode() is None:
                child.stop()


def main() -> None:
    """Read the arguments, record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="work folder; a temporary one by default")
    options = parser.parse_args()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        story(options.folder.resolve())
        return
    with tempfile.TemporaryDirectory() as folder:
        story(Path(folder))


if __name__ == "__main__":
    main()
