"""The report of a run: what it gathers, what it draws, and what hostile text can do in it."""

from __future__ import annotations

import builtins
import json
import re
from pathlib import Path
from typing import Any

import pytest

from eagled import report
from eagled.config_load import load_config
from eagled.history import add_moment, read_history
from eagled.plots import Line, thin
from eagled.report_facts import gather
from eagled.report_page import POINTS, write_report
from eagled.train.report import write_train_report
from tests.daemon_kit import fill, write_config
from tests.unit.tui.doubles import status

HOSTILE = "</td><script src=//evil.example/x.js></script>\x1b]0;x\x07\u202e$\\frac{"
MINUTE_MS = 60_000


def _history(n: int, status_: dict[str, Any]) -> list[dict[str, Any]]:
    lanes = {name: {"out_tok_per_s": 10.0, "in_flight": 3} for name in status_["lanes"]}
    return [
        {"at_ms": i * MINUTE_MS, "done": i, "extracted": i // 2, "lanes": lanes,
         "used_bytes": i << 20, "free_bytes": 1 << 40, "shard_bytes": i << 19}
        for i in range(n)
    ]  # fmt: skip


def _facts(n: int = 20, word: str = "x") -> dict[str, Any]:
    document = status()
    failure = {"dataset": word, "state": "failed", "reason": word, "n": 3, "example": word}
    event = {"at_ms": 1, "kind": word, "subject": word, "detail": word}
    alarm = {"level": "warn", "kind": word, "text": word}
    return {
        "status": {**document, "run": word, "alarms": [alarm]},
        "history": _history(n, document),
        "lengths": {"samples": 9, "read": 9, "edges": [0, 16, 32], "prompt": [4, 5],
                    "answer": [9, 0], "groups": [[word, word, 9, 1, 2, 3, 9, 1, 2, 3]]},
        "failures": [failure] * n,
        "shards": [{"at_ms": i * MINUTE_MS, "samples": i, "tokens": i, "bytes": i << 20}
                   for i in range(n)],
        "events": [event],
        "provenance": {"run": [[word, word]], "settings": [[word, word, "file"]], "files": [],
                       "datasets": [[word, "regenerate", 1, 1, 0, word]]},
    }  # fmt: skip


def _page(tmp_path: Path, facts: dict[str, Any]) -> str:
    write_report(tmp_path / "r.html", facts)
    return (tmp_path / "r.html").read_text(encoding="utf-8")


def test_the_page_has_its_pictures_and_fetches_nothing(tmp_path: Path) -> None:
    """Seven drawings; the only addresses are names of XML; a policy forbids the rest."""
    page = _page(tmp_path, _facts())

    assert 7 == page.count("<svg")
    assert {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"} == set(
        re.findall(r"https?://[^\s\"'<]+", page.replace("http://gpu", ""))
    )
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\((?!#)", page)
    assert "default-src 'none'" in page


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """Markup, escape codes and a formula in a name are shown, in a cell and on an axis."""
    page = _page(tmp_path, _facts(word=HOSTILE))

    assert "<script" not in page
    assert "&lt;script src=//evil.example" in page
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page)


def test_the_size_does_not_grow_with_the_run(tmp_path: Path) -> None:
    """A curve keeps its points; long words are cut."""
    small, large = _facts(POINTS), _facts(POINTS)
    large["history"] = _history(4 * POINTS, large["status"])
    large["provenance"]["run"] = [["x", "y" * 100_000]]

    assert len(_page(tmp_path, large)) < 1.2 * len(_page(tmp_path, small))


def test_a_run_without_anything_is_a_page_too(tmp_path: Path) -> None:
    """Each section says what is missing."""
    config = load_config(write_config(tmp_path), environ={})
    page = _page(tmp_path, gather(config, {}))

    assert "No daemon has run here yet." in page
    assert "There is no sample yet." in page
    assert "Nothing was given up." in page


def test_the_run_s_database_is_gathered(tmp_path: Path) -> None:
    """Lengths are those of the samples, events are the newest, settings only the chosen ones."""
    path = write_config(tmp_path)
    fill(path, [[1, 2, i] for i in range(10)] + [[7] * 40])
    facts = gather(load_config(path, environ={}), {})

    assert (11, 11) == (facts["lengths"]["samples"], facts["lengths"]["read"])
    assert [10, 0, 1] == facts["lengths"]["prompt"][:3]
    assert [["d", "short", 11, 3, 22, 40, 0, None, None, None]] == facts["lengths"]["groups"]
    assert ["lanes.short.limit", "8", "file"] in facts["provenance"]["settings"]
    assert "run.seed" not in {row[0] for row in facts["provenance"]["settings"]}


@pytest.fixture(name="plain_installation")
def _plain_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take matplotlib away, which only the extra `plots` brings."""
    real = builtins.__import__

    def gone(name: str, *args: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", gone)


@pytest.mark.usefixtures("plain_installation")
def test_without_matplotlib_the_tables_are_there(tmp_path: Path) -> None:
    """The page says what to install and shows the numbers."""
    page = _page(tmp_path, _facts())

    assert "pip install" in page
    assert "<svg" not in page
    assert "<th>longest</th>" in page


@pytest.mark.usefixtures("plain_installation")
def test_a_training_ends_with_its_report_without_matplotlib(tmp_path: Path) -> None:
    """`eagled train` needs no extra: its page has the facts, and says where the curves would be."""
    step = {"kind": "step", "step": 1, "loss": 2.5, "lr": 1e-3, "grad_norm": 1.0,
            "hit_by_step": [0.5], "agree_by_step": [0.5]}  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text(json.dumps(step) + "\n")
    page = write_train_report(tmp_path, {"target": "m"}, [("d", "train", 7, 1.0)]).read_text()

    assert "No picture here: plots need matplotlib" in page
    assert "<svg" not in page
    assert "supervised tokens" in page


def test_the_course_is_bounded_and_survives_a_torn_line(tmp_path: Path) -> None:
    """Past its size every second line goes; half a line at the end is left out."""
    path = tmp_path / "history.jsonl"
    document = status()
    for i in range(40):
        add_moment(path, {**document, "at_ms": i}, max_bytes=8000)
    with path.open("ab") as file:
        file.write(b'{"at_ms": 99, "la')
    times = [line["at_ms"] for line in read_history(path)]

    assert path.stat().st_size <= 8000 + 1000
    assert times == sorted(times)
    assert 39 == times[-1]
    assert times[0] < 39 - len(times)  # what is old is coarser, not gone


def test_a_thinned_curve_keeps_its_end_and_its_mean() -> None:
    """Each point is the mean of those that it stands for."""
    curve = thin(Line("a", list(range(1, 101)), [float(i) for i in range(100)]), 10)

    assert 10 == len(curve.x)
    assert 100 == curve.x[-1]
    assert 49.5 == sum(curve.y) / len(curve.y)
    assert Line("a", [], []) == thin(Line("a", [], []), 10)


def test_what_is_not_known_yet_is_not_drawn(tmp_path: Path) -> None:
    """A first line, written before the disk was looked at, has no numbers of it."""
    facts = _facts(1)
    facts["history"][0] |= {"used_bytes": None, "free_bytes": None}

    assert "Disk free: nothing was recorded yet." in _page(tmp_path, facts)


def test_a_cell_says_nothing_for_none() -> None:
    """An unknown number is an empty cell, not a word."""
    assert "<td></td>" in report.table(("a",), [(None,)])
