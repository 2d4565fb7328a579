"""Prep in several processes: the same bytes, and nothing finished is done twice after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eagled.config import Config
from eagled.errors import LockedError, UnreachableError, WorkerLostError
from eagled.readers.sources import Source, SourceRow
from eagled.workers import prepare
from eagled.workers.preparation import chunks, stage
from eagled.workers.preparation.chunks import chunks_of, weight_of
from eagled.workers.preparation.crew import Crew, Done, Judge, LocalCrew, ProcessCrew
from eagled.workers.preparation.messages import Chunk, Job, TargetFacts
from eagled.workers.prepare import PrepProgress, PrepResult, prepare_dataset
from tests.prep_kit import toy_config, toy_renderer, write_jsonl

DEADLINE_S = 300.0  # a limit of failure only: the machine may be busy
CHUNK = 8
ROWS: list[dict[str, Any]] = [
    {
        "id": f"r{i}",
        "messages": [{"role": "user", "content": f"Say the number {i % 190} in words."}],
    }
    if i % 17
    else {"id": f"bad{i}", "messages": []}
    for i in range(200)
]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the sources of these tests into 25 chunks and some parts."""
    monkeypatch.setattr(chunks, "CHUNK_ROWS", CHUNK)
    monkeypatch.setattr(stage, "PART_ROWS", 3 * CHUNK)


class CountingCrew:
    """Does the work in this process and remembers which rows it saw."""

    def __init__(self) -> None:
        self._crew = LocalCrew(toy_renderer())
        self.rows: list[int] = []

    def begin(self, job: Job, processes: int) -> None:
        """Do nothing."""

    def facts(self, job: Job) -> TargetFacts:
        """Pass on."""
        return self._crew.facts(job)

    def work(self, job: Job, todo: Iterator[Chunk], judge: Judge) -> Iterator[Done]:
        """Pass on, and note the rows."""
        for done in self._crew.work(job, todo, judge):
            self.rows += [row.number for row in done.chunk.rows]
            yield done

    def close(self) -> None:
        """Do nothing."""


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _run(config: Config, crew: Crew | None = None, **options: Any) -> PrepResult:
    crew = crew or LocalCrew(toy_renderer())
    return prepare_dataset(config, config.datasets[0], crew=crew, **options)


@pytest.fixture(scope="module")
def crews() -> Iterator[dict[int, ProcessCrew]]:
    """One process, and three."""
    with closing(ProcessCrew(1)) as one, closing(ProcessCrew(3)) as three:
        yield {1: one, 3: three}


@pytest.mark.parametrize("wanted", [{}, {"count": 50}, {"count": 50, "shuffle": True}])
def test_any_number_of_processes_gives_the_same_bytes(
    tmp_path: Path, wanted: dict[str, Any], crews: dict[int, ProcessCrew]
) -> None:
    """One process and three write what this process alone writes."""
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS)
    prep = {"near": "report"}
    alone = _run(toy_config(tmp_path / "0", source, dataset=wanted, prep=prep))
    folders = []
    for n, crew in crews.items():
        config = toy_config(tmp_path / str(n), source, dataset=wanted, prep=prep)
        folders.append(_run(config, crew).folder)
        assert n == len(crew.pids)

    assert [_bytes(alone.folder)] * 2 == list(map(_bytes, folders))
    assert alone.rows == alone.kept + sum(alone.rejected.values())


@pytest.mark.parametrize("wanted", [{}, {"count": 90}, {"count": 50, "shuffle": True}])
def test_a_killed_prep_goes_on_where_it_was(tmp_path: Path, wanted: dict[str, Any]) -> None:
    """After SIGKILL the next run reads on behind the finished parts and gives the same bytes."""
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS)
    whole = _run(toy_config(tmp_path / "whole", source, dataset=wanted))
    config = toy_config(tmp_path / "killed", source, dataset=wanted)
    _prep_and_kill(config, tmp_path)
    parts = list((tmp_path / "killed" / "datasets" / ".d.tmp").glob("*.part"))
    crew = CountingCrew()
    result = _run(config, crew)

    assert len(parts) >= 2
    assert _bytes(whole.folder) == _bytes(result.folder)
    first_pass = crew.rows if "shuffle" not in wanted else crew.rows[: crew.rows.index(199) + 1]
    assert first_pass[0] >= 2 * 3 * CHUNK
    assert sorted(set(first_pass)) == first_pass


_KILLED = """
import signal, sys, time
from pathlib import Path
from eagled.config import Config
from eagled.workers import prepare
from eagled.workers.preparation import chunks, parts, stage
from eagled.workers.preparation.crew import LocalCrew
from tests.prep_kit import toy_renderer
chunks.CHUNK_ROWS, stage.PART_ROWS = {chunk}, 3 * {chunk}
real = parts.Parts.write
def write(self, *args, **options):
    part = real(self, *args, **options)
    if part.number == 1:
        print("two parts", flush=True)
        signal.pause()
    return part
parts.Parts.write = write
config = Config.model_validate_json(sys.stdin.read())
prepare.prepare_dataset(config, config.datasets[0], crew=LocalCrew(toy_renderer()))
"""


def _prep_and_kill(config: Config, folder: Path) -> None:
    """Start prep in another process and kill it when it has finished two parts."""
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED.format(chunk=CHUNK)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(config.model_dump_json().encode())
        child.stdin.close()
        said = child.stdout.readline()
        child.kill()
        child.wait(DEADLINE_S)
    assert (b"two parts\n", -signal.SIGKILL) == (said, child.returncode), folder


def test_a_damaged_part_is_done_again(tmp_path: Path) -> None:
    """A part whose bytes changed ends the finished ones; what lies behind it is not used."""
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS)
    whole = _run(toy_config(tmp_path / "whole", source))
    config = toy_config(tmp_path / "killed", source)
    _prep_and_kill(config, tmp_path)
    path = tmp_path / "killed" / "datasets" / ".d.tmp" / "lines-000000.part"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    crew = CountingCrew()

    assert _bytes(whole.folder) == _bytes(_run(config, crew).folder)
    assert list(range(200)) == crew.rows


def test_other_inputs_do_not_use_the_parts(tmp_path: Path) -> None:
    """Parts of another configuration are removed, not mixed in."""
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS)
    _prep_and_kill(toy_config(tmp_path / "killed", source), tmp_path)
    config = toy_config(tmp_path / "killed", source, dataset={"exclude": ["number 7 "]})
    crew = CountingCrew()
    result = _run(config, crew)

    assert list(range(200)) == crew.rows
    assert 2 == result.rejected["not_matching"]  # rows 7 and 197


def test_a_killed_process_is_named_and_costs_no_finished_part(tmp_path: Path) -> None:
    """The error says how it ended and what to do; the same command then goes on."""
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS * 20)
    config = toy_config(tmp_path, source, prep={"duplicates": "off"})
    with closing(ProcessCrew(2)) as crew:
        told: list[PrepProgress] = []

        def kill(progress: PrepProgress) -> None:
            if not told:
                os.kill(crew.pids[-1], signal.SIGKILL)
            told.append(progress)

        with pytest.raises(WorkerLostError, match=r"SIGKILL.*run the same `eagled prep` again"):
            _run(config, crew, progress=kill)
    kept = list((tmp_path / "datasets" / ".d.tmp").glob("*.part"))
    counting = CountingCrew()
    result = _run(config, counting)

    assert kept
    assert len(counting.rows) < result.rows == 4000
    assert not (tmp_path / "datasets" / ".d.tmp").exists()


def test_a_source_that_stops_keeps_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that goes away in the middle costs the rows in flight, nothing else."""
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS)
    whole = _run(toy_config(tmp_path / "whole", source))
    config = toy_config(tmp_path / "cut", source)
    real = Source.rows

    def cut(self: Source, skip: int = 0) -> Iterator[SourceRow]:
        for row in real(self, skip):
            if row.number == 100:
                raise UnreachableError("the hub stopped answering")
            yield row

    with monkeypatch.context() as patch:
        patch.setattr(Source, "rows", cut)
        with pytest.raises(UnreachableError):
            _run(config)
    crew = CountingCrew()

    assert _bytes(whole.folder) == _bytes(_run(config, crew).folder)
    assert list(range(96, 200)) == crew.rows


def test_processes_of_a_large_dataset_start_together(tmp_path: Path) -> None:
    """One for each mebibyte, at most the crew's size; one where the result may be there already."""
    config = toy_config(tmp_path, write_jsonl(tmp_path / "s.jsonl", *ROWS))
    [dataset] = config.datasets
    folder = tmp_path / "datasets" / "d"
    small = prepare._processes_for(dataset, folder)
    with (tmp_path / "s.jsonl").open("ab") as file:
        file.truncate(5 << 20)
    large = prepare._processes_for(dataset, folder)
    hub = prepare._processes_for(dataset.model_copy(update={"source": "a/b"}), folder)
    folder.mkdir(parents=True)

    assert (1, 6, 1) == (small, large, prepare._processes_for(dataset, folder))
    assert hub > 1000


def test_two_preps_of_one_dataset_do_not_meet(tmp_path: Path) -> None:
    """The second is refused while the first works."""
    config = toy_config(tmp_path, write_jsonl(tmp_path / "s.jsonl", *ROWS))
    refused: list[LockedError] = []

    def second(_progress: PrepProgress) -> None:
        if not refused:
            with pytest.raises(LockedError, match="'d'") as caught:
                _run(config)
            refused.append(caught.value)

    result = _run(config, progress=second)

    assert (1, 200) == (len(refused), result.rows)


def test_processes_end_with_their_parent(tmp_path: Path) -> None:
    """A prep that is killed leaves no tokenising process behind."""
    source = write_jsonl(tmp_path / "s.jsonl", *ROWS)
    config = toy_config(tmp_path, source, prep={"workers": 1})
    script = (
        "import os, sys\nfrom eagled.config import Config\n"
        "from eagled.workers.preparation.crew import ProcessCrew\n"
        "from eagled.workers.preparation.messages import Job\n"
        "if __name__ == '__main__':\n"
        "    config = Config.model_validate_json(sys.stdin.read())\n"
        "    crew = ProcessCrew(1)\n    crew.facts(Job(config, config.datasets[0]))\n"
        "    print(crew.pids[0], flush=True)\n    sys.stdin.close()\n    import time\n"
        "    time.sleep(600)\n"
    )
    path = tmp_path / "parent.py"
    path.write_text(script, encoding="utf-8")
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(config.model_dump_json().encode())
        parent.stdin.close()
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait(DEADLINE_S)

    assert _gone(child)


def _gone(pid: int) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            state = (
                Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
            )
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_chunks_end_by_rows_or_by_text() -> None:
    """A huge row is a chunk of its own; the cuts depend on the rows alone."""
    small = [SourceRow("f", i, {"text": "x"}) for i in range(10)]
    huge = SourceRow("f", 10, {"turns": [{"text": "y" * chunks.CHUNK_CHARS}]})
    cut = [len(chunk.rows) for chunk in chunks_of([*small, huge, *small])]

    assert [8, 3, 8, 2] == cut
    assert 6 + 8 == weight_of({"a": ["abc", {"b": "def"}], "n": 1})


def test_a_second_prep_is_not_needed(tmp_path: Path) -> None:
    """Prepared by processes, a dataset is there for this process too."""
    config = toy_config(tmp_path, write_jsonl(tmp_path / "s.jsonl", *ROWS[:20]))
    [first] = prepare.prepare_all(config)
    second = _run(config)

    assert (False, True) == (first.skipped, second.skipped)
    assert (first.prep_key, first.lanes, first.tokens) == (
        second.prep_key, second.lanes, second.tokens,
    )  # fmt: skip
