"""The README's blocks: its list of commands runs in order, its make targets do what is said.

The embedded engine answers. What the README does not show is done as its reader would do it: the
configuration is filled in, the daemon has a terminal of its own, `q` leaves the screen. It is also
the test of the whole line: every row is accounted for from the source to the shard. SGLang is a
stand-in that takes its flags and streams (real SGLang: `tests/contract`).
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_kit import DEADLINE_S, ROOT, clean_env, daemon, engine
from tests.discover_hub import running
from tests.discover_world import Maker

BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STAND_IN = '#!/bin/sh\nshift 2\nexec {python} -m tests.servers.streaming launch "$@"\n'
SETTINGS = {
    "sampling.max_new_tokens": 32, "sampling.seed": 1, "generation.min_reply": 16,
    "extract.threads": 1, "shards.max_wait_s": 1, "merge.holdout": 0.25, "vocab.size": 256,
    "train.threads": 1, "train.epochs": 1, "train.batch_tokens": 400, "train.ttt_steps": 2,
}  # fmt: skip
LANES = "[lanes.short]\ncontext = 1000\nlimit = 8\n"
ROWS = 12  # every fourth a conversation of two turns


def _blocks() -> list[list[str]]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [block.splitlines() for block in BLOCK.findall(text)]


def _list_of_commands() -> list[str]:
    """Return the lines of "With your own model", without what is said about them."""
    return [re.sub(r"\s+#.*", "", line) for line in _blocks()[1]]


def _filled_in(text: str, settings: dict[str, object]) -> str:
    """Return a file of `eagled init` with some of its commented settings set."""
    for path, value in settings.items():
        section, name = path.split(".")
        before, head, after = text.partition(f"\n[{section}]\n")
        line = re.search(rf"^(?:# )?{name} =.*$", after, re.MULTILINE)
        assert line is not None, f"`eagled init` does not write {path}"
        mine = f"{name} = {json.dumps(value)}"
        text = before + head + after[: line.start()] + mine + after[line.end() :]
    return text


def _talk(i: int) -> dict[str, object]:
    turns = [f"What is {i} plus {i}, and why?", "And then?"][: 2 if i % 4 == 0 else 1]
    said = [[{"role": "user", "content": t}, {"role": "assistant", "content": "x"}] for t in turns]
    return {"messages": [message for pair in said for message in pair][:-1]}


class Reader:
    """Somebody who types the list, line by line, in an empty folder.

    `how` has the lines at which more is done than to wait for an exit code of 0.
    """

    def __init__(self, folder: Path, model: Path, running: ExitStack) -> None:
        self.folder, self.running = folder, running
        self._model = model
        self._url = running.enter_context(engine(model, folder / "engine.log"))
        self.printed: dict[str, str] = {}
        self.how: dict[str, Callable[[str], str]] = {
            "eagled init": self._init,
            "eagled discover": self._discover,
            "eagled prep": self._data,
            "eagled run": self._run,
            "eagled merge": self._data,
            "eagled verify": self._data,
            "eagled vocab": self._data,
            "eagled top": self._top,
            "eagled draft check DIR": self._check,
            "eagled serve --draft DIR": self._serve,
            "eagled bench DIR --mt-bench": self._bench,
        }

    def type(self, line: str) -> None:
        """Do what the line says."""
        self.printed[line] = self.how.get(line, self._plain)(line)

    def _argv(self, line: str) -> list[str]:
        draft = next(self.folder.glob("state/drafts/*/draft"), Path("absent"))
        program, *words = line.split()
        assert program == "eagled", line
        return [sys.executable, "-m", "eagled", *(str(draft) if w == "DIR" else w for w in words)]

    def _plain(self, line: str, **env: str) -> str:
        done = self._ran(line, **env)
        return done.stdout + done.stderr

    def _ran(self, line: str, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self._argv(line), cwd=self.folder, env=clean_env(**env), capture_output=True,
            text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert 0 == done.returncode, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done

    def _init(self, line: str) -> str:
        """Write the file, then fill it in as its comments say."""
        said = self._plain(line)
        stand_in = self.folder / "python"
        stand_in.write_text(STAND_IN.format(python=sys.executable))
        stand_in.chmod(0o755)
        questions = self.folder / "questions.jsonl"
        questions.write_text("".join(json.dumps(_talk(i)) + "\n" for i in range(ROWS)))
        path = self.folder / "eagled.toml"
        mine = {**SETTINGS, "target.model": str(self._model), "serve.python": str(stand_in)}
        path.write_text(
            f"{_filled_in(path.read_text(), mine)}\n{LANES}[[servers]]\nurl = {self._url!r}\n"
            f'[[datasets]]\nname = "questions"\nsource = "questions.jsonl"\n'
        )
        return said

    def _data(self, line: str) -> str:
        """Have it as data, which every command that prints some gives."""
        return self._ran(f"{line} --json").stdout

    def _discover(self, line: str) -> str:
        """Search a hub on this machine."""
        maker = Maker()
        maker.add("openai", name="some/code-review")
        with running(maker.world.repos) as hub:
            return self._plain(line, HF_ENDPOINT=hub.url)

    def _run(self, _line: str) -> str:
        """Start it in a terminal of its own, and wait until there is nothing left to do."""
        process = self.running.enter_context(daemon(self.folder / "eagled.toml"))
        status = process.until(lambda s: bool(s["phase"] == "done"))
        return json.dumps(status["datasets"])

    def _top(self, line: str) -> str:
        """Look at the screen until it shows the lane, and leave with `q`."""
        ours, its = pty.openpty()
        termios.tcsetwinsize(its, (40, 120))
        env = clean_env(TERM="xterm-256color", LC_ALL="C.UTF-8")
        with subprocess.Popen(
            self._argv(line), cwd=self.folder, env=env, stdin=its, stdout=its, stderr=its,
            start_new_session=True,
        ) as process:  # fmt: skip
            os.close(its)
            try:
                seen = _read_until(ours, b"questions")
                os.write(ours, b"q")
                seen += _read_until(ours, None)
                assert 0 == process.wait(DEADLINE_S), seen.decode(errors="replace")
            finally:
                process.kill()
                os.close(ours)
        return seen.decode(errors="replace")

    def _check(self, line: str) -> str:
        """Check the draft; then end daemon and engine, in whose place SGLang comes."""
        said = self._plain(line)
        self.running.close()
        return said

    def _serve(self, line: str) -> str:
        """Wait until the server was found right, and end it."""
        log = self.folder / "serve.log"
        env = clean_env(STREAMING=json.dumps({"right": [1, 0]}))
        with log.open("wb") as out, subprocess.Popen(
            self._argv(line), cwd=self.folder, env=env, stdout=out, stderr=out
        ) as process:  # fmt: skip
            try:
                deadline = time.monotonic() + DEADLINE_S
                while "serving at" not in log.read_text(errors="replace"):
                    assert process.poll() is None, log.read_text(errors="replace")
                    assert time.monotonic() < deadline, log.read_text(errors="replace")
                    time.sleep(0.05)
                process.send_signal(signal.SIGTERM)
                assert 0 == process.wait(DEADLINE_S), log.read_text(errors="replace")
            finally:
                process.kill()
        return log.read_text(errors="replace")

    def _bench(self, line: str) -> str:
        """Ask questions of our own, fewer of them: MT-bench's would be a download."""
        (self.folder / "asked.json").write_text(json.dumps(["One?", "Two?", "Three?"]))
        mine = "--prompts asked.json --concurrency 1,2 --runs 1 --max-new-tokens 48"
        assert "--mt-bench" in self._plain(line.replace("DIR", "") + " --help")
        told = json.dumps({"right": [1, 0]})
        return self._plain(line.replace("--mt-bench", mine), STREAMING=told)


def _read_until(terminal: int, text: bytes | None) -> bytes:
    """Return what a terminal shows until `text` is there, or until its process has ended."""
    seen, deadline = b"", time.monotonic() + DEADLINE_S
    while text is None or text not in seen:
        assert time.monotonic() < deadline, seen.decode(errors="replace")
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            seen += os.read(terminal, 1 << 16)
        except OSError:  # EIO: nobody has the other side open any more
            assert text is None, seen.decode(errors="replace")
            break
    return seen


@pytest.mark.slow
def test_the_list_of_commands_runs_from_top_to_bottom(tmp_path: Path, tiny_model: Path) -> None:
    """Each line ends well and leaves what its comment says."""
    lines = _list_of_commands()
    with ExitStack() as stack:
        reader = Reader(tmp_path, tiny_model, stack)
        for line in lines:
            reader.type(line)

    assert [] == sorted(set(reader.how) - set(lines)), "a line that is no more in the README"
    assert (tmp_path / "state/discover/report.html").is_file()
    assert "ok" in reader.printed["eagled serve --draft DIR"]
    assert list((tmp_path / "state/plans").glob("train_plan_v*.md"))
    _every_row_is_accounted_for(
        *(json.loads(reader.printed[f"eagled {name}"]) for name in
          ("prep", "run", "merge", "verify", "vocab"))
    )  # fmt: skip


def _every_row_is_accounted_for(
    prep: list[dict[str, int]], run: dict[str, Any], merge: dict[str, Any],
    verify: dict[str, Any], vocab: dict[str, Any],
) -> None:  # fmt: skip
    """From the source to the shards: rows, turns, samples with states, members of the corpus."""
    (prepared,), dataset = prep, run["questions"]
    over = sum(dataset[state] for state in ("extracted", "rejected", "failed", "cancelled"))

    assert (ROWS, ROWS, ROWS + ROWS // 4) == (
        prepared["rows"], prepared["kept"], prepared["turns"],
    )  # fmt: skip
    assert prepared["turns"] == dataset["total"] == over
    assert dataset["extracted"] == merge["rows"] == verify["samples"] > ROWS // 2
    assert (True, []) == (verify["ok"], verify["findings"])
    assert all(part["covered"] <= part["tokens"] for part in vocab["coverage"])


def _would_do(target: str) -> list[str]:
    """Return what `make TARGET` runs when its environment is there; nothing is run."""
    make = shutil.which("make")
    assert make is not None, "the README asks for it"
    done = subprocess.run(
        [make, "-n", "-o", ".venv/.ready", target], cwd=ROOT, env=clean_env(),
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    return done.stdout.splitlines()


def test_every_other_line_is_a_target_that_does_what_is_said() -> None:
    """`make demo` is `eagled demo`, `make test` is every test; both take minutes, so not here.

    What they run is tested by itself: the demo in `tests/unit/demo`, the tests by themselves.
    """
    blocks = _blocks()

    assert [["make demo", "make test"]] == [block for i, block in enumerate(blocks) if i != 1]
    assert [".venv/bin/eagled demo"] == _would_do("demo")
    assert [".venv/bin/python -m pytest -n 2 --dist loadfile"] == _would_do("test")
