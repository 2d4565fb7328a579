"""`eagled report` with a daemon, after it, and where there was none."""

from __future__ import annotations

from pathlib import Path

from tests.daemon_kit import daemon, eagled, fill, write_config


def _page(config: Path, out: Path) -> tuple[str, str]:
    done = eagled("report", "--out", str(out), "--config", str(config), cwd=config.parent)
    assert 0 == done.returncode, done.stderr
    return out.read_text(encoding="utf-8"), done.stderr


def test_the_report_comes_from_the_daemon_and_from_what_it_left(tmp_path: Path) -> None:
    """The same run both times; only the second says that no daemon answers."""
    config = write_config(tmp_path)
    fill(config, [[1, 2, i] for i in range(6)])
    with daemon(config) as process:
        process.until(lambda _: (tmp_path / "state/history.jsonl").exists())
        live, said = _page(config, tmp_path / "live.html")
        assert (0, "") == (process.stop()[0], said)
    before = (tmp_path / "state/q.db").read_bytes()
    left, said = _page(config, tmp_path / "left.html")

    assert "no daemon answers" in said
    assert before == (tmp_path / "state/q.db").read_bytes()
    assert ["Tokens of 6 of 6 samples." in page for page in (live, left)] == [True, True]
    assert "daemon_started" in live
    assert "daemon_stopped" in left


def test_where_nothing_ran_there_is_nothing_to_report(tmp_path: Path) -> None:
    """It says so with the code of a wrong call, and writes no page."""
    config = write_config(tmp_path)
    done = eagled("report", "--config", str(config), cwd=tmp_path)

    assert 2 == done.returncode
    assert "holds no run yet" in done.stderr
    assert not (tmp_path / "report.html").exists()
