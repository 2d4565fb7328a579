"""`eagled verify`: re-read shards, beside a live daemon too, and have bad ones done again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagled.commands.common import (
    ConfigOption,
    JsonOption,
    call_get,
    call_post,
    human_bytes,
    human_seconds,
    load,
    progress_line,
    say,
    say_json,
    warn,
)
from eagled.errors import ArtifactError, UsageError

_COMMIT_S = 600.0  # from a shard's last byte to its commit, a daemon that starts again included

if TYPE_CHECKING:
    from eagled.paths import StatePaths
    from eagled.shards.verify import Finding, VerifyReport


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(verify)


def verify(
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Have damaged shards extracted again.")
    ] = False,
    sample: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Share of the samples whose states are read; 1 is all."
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Which samples, in a sampled check.")] = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Re-read shards and compare them with the database; --sample reads a share, and is quick."""
    from eagled.paths import StatePaths

    paths = StatePaths(load(config).config.run.state_dir)
    meter = Meter(paths.shards)
    report, findings = _verified(paths, meter, sample, seed)
    progress_line("")
    if as_json:
        say_json(_json(report, findings, sample, meter.seconds))
    else:
        for finding in findings:
            warn(" ".join(part for part in (finding.file, finding.uid, finding.problem) if part))
        outcome = f"{len(findings)} findings" if findings else "all right"
        rate = human_bytes(report.bytes_read / max(meter.seconds, 1e-9))
        say(
            f"{report.files} shards, {report.samples} samples, {report.tokens} tokens: {outcome} "
            f"({human_bytes(report.bytes_read)} at {rate}/s)"
        )
    if repair:
        _repair(config, paths, findings)
    if findings:
        raise typer.Exit(ArtifactError.exit_code)


class Meter:
    """Shows files, bytes, rate and what is left on one line of a terminal."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._start = time.monotonic()
        self._total = sum(self._size(path.name) for path in folder.glob("*.safetensors"))
        self._begun = 0  # bytes of the files that were begun

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._start

    def show(self, name: str, done: int, files: int) -> None:
        """Show that a file is begun."""
        read, self._begun = self._begun, self._begun + self._size(name)
        rate = read / max(self.seconds, 1e-9)
        left = human_seconds((self._total - read) / rate) if rate else ""
        shown = f"{human_bytes(read)} of {human_bytes(self._total)}, {human_bytes(rate)}/s"
        progress_line(f"{done + 1}/{files} {shown}, {left} left {name}")

    def _size(self, name: str) -> int:
        try:
            return (self._folder / name).stat().st_size
        except OSError:
            return 0


def _json(
    report: VerifyReport, findings: list[Finding], share: float, seconds: float
) -> dict[str, object]:
    return {
        "ok": not findings,
        "files": report.files,
        "samples": report.samples,
        "tokens": report.tokens,
        "bytes_read": report.bytes_read,
        "share": share,
        "seconds": round(seconds, 3),
        "findings": [{"file": f.file, "uid": f.uid, "problem": f.problem} for f in findings],
    }


def _verified(
    paths: StatePaths, meter: Meter, share: float, seed: int
) -> tuple[VerifyReport, list[Finding]]:
    """Return what was read and found; a shard that came or went meanwhile is no finding."""
    from eagled.shards.verify import verify_shards
    from eagled.store import StoreReader
    from eagled.workers.verify import committed, verify_run

    if not paths.database.is_file():
        report = verify_shards(paths.shards, progress=meter.show, share=share, seed=seed)
        return report, list(report.findings)
    with StoreReader(paths.database) as reader:
        before = set(committed(reader.shards()))
        report = verify_run(reader, paths.shards, progress=meter.show, share=share, seed=seed)
        moved = before ^ set(committed(reader.shards()))
    held = [f for f in report.findings if f.file not in moved and not _on_its_way(paths.shards, f)]
    return report, held


def _on_its_way(shards: Path, finding: Finding) -> bool:
    """Return whether a worker wrote this file just now, and its commit may still come."""
    from eagled.shards.format import read_shard_header
    from eagled.shards.verify import UNKNOWN

    if finding.problem != UNKNOWN:
        return False
    try:
        read_shard_header(shards / finding.file)
        return time.time() - (shards / finding.file).stat().st_mtime < _COMMIT_S
    except (ArtifactError, OSError):
        return False


def _repair(config: Path | None, paths: StatePaths, findings: list[Finding]) -> None:
    """Set bad files aside, and send their samples back.

    A file goes first: written again from the same samples it has the same name. If its samples
    cannot be sent back any more, the daemon finds at its next start that it is gone, and does it.
    """
    from eagled.daemon_shards import move_aside
    from eagled.store import StoreReader
    from eagled.workers.verify import committed

    if not paths.database.is_file():
        raise UsageError(f"--repair needs the run's database, and {paths.database} is not there")
    with StoreReader(paths.database) as reader:
        known = set(committed(reader.shards()))
    bad = [
        name for name in sorted({f.file for f in findings}) if not _of_another_version(paths, name)
    ]
    if known.intersection(bad):
        call_get(config, "/v1/status")  # without a daemon nothing is begun
    for name in bad:
        move_aside(paths, name)
        say(f"{name}: set aside in {paths.quarantine}")
        if name in known:
            body = {"reason": "eagled verify --repair"}
            reply = call_post(config, f"/v1/shards/{name}/drop", body)
            say(f"{name}: {reply['message']}")


def _of_another_version(paths: StatePaths, name: str) -> bool:
    """Return whether a file is no damage but of a format that this version does not know."""
    from eagled.shards.container import read_container
    from eagled.shards.format import foreign_format

    try:
        foreign = foreign_format(read_container(paths.shards / name))
    except ArtifactError:
        return False
    if foreign:
        warn(f"{name}: left where it is; the version of eagled that wrote it can read it")
    return foreign
