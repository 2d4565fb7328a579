"""What `eagled prep` and `eagled profile` show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagled.cli import app
from eagled.commands.prep_view import PrepDisplay, progress_text, say_results
from eagled.types import Mode
from eagled.workers.preparation.parts import Counts
from eagled.workers.preparation.progress import PrepProgress, Teller
from eagled.workers.prepare import PrepResult, prepare_dataset
from tests.prep_kit import toy_config, toy_renderer, write_jsonl
from tests.toy import TOY

ROWS = [
    {"messages": [{"role": "user", "content": f"Tell me of the number {i}."}]} for i in range(30)
]


class _Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_speed_and_time_left_are_quotients_of_what_happened() -> None:
    """100 rows and 50 kept in two seconds; 900 rows or 150 kept rows to go, whichever is first."""
    clock, told = _Clock(), list[PrepProgress]()
    teller = Teller("d", told.append, 200, 1000, clock)
    teller.tell(Counts())
    assert not teller.due()
    clock.now = 2.0
    assert teller.due()
    teller.tell(Counts(rows=100, kept=50))
    teller.tell(Counts(rows=100, kept=50), ended=True)

    assert (None, None) == (told[0].rows_per_s, told[0].left_s)
    assert (50.0, 6.0) == (told[1].rows_per_s, told[1].left_s)
    assert [False, False, True] == [report.ended for report in told]


def test_a_report_is_one_line_with_reasons() -> None:
    """Rows, kept, rejected by the most frequent reasons, speed and time left."""
    rejected = {"duplicate": 5, "too_long": 2, "excluded": 1, "no_user_turn": 1}
    report = PrepProgress("d", 1200, 1191, rejected, "choosing", 340.0, 75.0)

    assert progress_text(report) == (
        "d (choosing): 1,200 rows, 1,191 kept, "
        "9 rejected (duplicate 5, too_long 2, excluded 1, …), 340 rows/s, about 1 min 15 s left"
    )


def test_a_log_gets_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Reports between are not printed; the last one always is."""
    clock = _Clock()
    display = PrepDisplay(clock)
    for second in range(12):
        clock.now = float(second)
        display(PrepProgress("d", second, second, {}))
    display(PrepProgress("d", 99, 99, {}, ended=True))
    lines = capsys.readouterr().err.splitlines()

    assert ["d: 5 rows, 5 kept", "d: 10 rows, 10 kept", "d: 99 rows, 99 kept"] == lines


def test_the_table_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows = kept + rejected, lanes, mode, reasons below, and what was wanted but not there."""
    result = PrepResult(
        "d", tmp_path, "key", 10, 7, 9, {"duplicate": 2, "too_long": 1}, mode=Mode.NATIVE,
        tokens=1234, lanes={"short": 6, "long": 1}, flags={"near_duplicate": 2}, wanted=8,
    )  # fmt: skip
    say_results([result])
    lines = capsys.readouterr().out.splitlines()

    assert [
        "dataset",
        "mode",
        "rows",
        "kept",
        "rejected",
        "turns",
        "tokens",
        "short",
        "long",
        "state",
    ] == (lines[0].split())
    assert ["d", "native", "10", "7", "3", "9", "1,234", "6", "1", "prepared"] == lines[1].split()
    assert [
        "  d: 2 rejected: duplicate",
        "  d: 1 rejected: too_long",
        "  d: 2 kept rows nearly equal an earlier question",
        "  d: 8 were wanted, the source gave no more",
    ] == lines[2:]


def test_profile_shows_cuts_and_draws(tmp_path: Path) -> None:
    """The table has the proposal, `--json` the same numbers, and the plot is a picture."""
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS)
    config = toy_config(tmp_path / "state", source)
    prepare_dataset(config, config.datasets[0], renderer=toy_renderer())
    path = tmp_path / "eagled.toml"
    path.write_text(
        f'[run]\nstate_dir = "{tmp_path / "state"}"\n[target]\nmodel = "{TOY}"\n'
        f'[[datasets]]\nname = "d"\nsource = "{source}"\n',
        encoding="utf-8",
    )
    runner = CliRunner()
    options = ["profile", "--config", str(path), "--kv-tokens", "100000"]
    shown = runner.invoke(app, [*options, "--plot", str(tmp_path / "p.png")])
    data = runner.invoke(app, [*options, "--json", "--plot", str(tmp_path / "p.svg")])

    assert (0, 0) == (shown.exit_code, data.exit_code), (shown.output, data.exception)
    value = json.loads(data.stdout)
    assert f"proposed context of the short lane: {value['proposed_cut']}" in shown.stdout
    assert 30 == value["datasets"]["d"]["n"]
    assert {"kv_tokens": 100_000, "context": None} == value["server"]
    assert value["proposed_cut"] in [cut["context"] for cut in value["cuts"]]
    assert b"\x89PNG" == (tmp_path / "p.png").read_bytes()[:4]
    assert "<svg" in (tmp_path / "p.svg").read_text(encoding="utf-8")


def test_the_same_data_gives_the_same_picture(tmp_path: Path) -> None:
    """No time and no random ids are in it; another suffix is refused."""
    from eagled.errors import UsageError
    from eagled.plots import Bars, Line, histograms, lines

    for name in ("a", "b"):
        for suffix in ("png", "svg"):
            histograms(
                tmp_path / f"{name}.{suffix}", [Bars("d", [0, 64], [64, 128], [3, 4])], xlabel="n"
            )
        lines(
            tmp_path / f"{name}l.svg",
            [Line("x", [1, 2], [3, 4])],
            title="t",
            xlabel="x",
            ylabel="y",
        )

    assert all(
        (tmp_path / f"a{end}").read_bytes() == (tmp_path / f"b{end}").read_bytes()
        for end in (".png", ".svg", "l.svg")
    )
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        histograms(tmp_path / "a.pdf", [Bars("d", [0], [64], [3])], xlabel="n")
    with pytest.raises(UsageError, match="nothing to draw"):
        histograms(tmp_path / "a.png", [], xlabel="n")
