"""Files: lines, arrays, compression, Parquet, folders and the hub."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from eagled.config import DatasetConfig
from eagled.errors import ArtifactError, ConfigError, UnreachableError
from eagled.readers.sources import array, lines, open_source
from eagled.types import RowReason
from tests.faults import fault_file
from tests.prep_kit import rows_of, write_jsonl

ROWS = [{"prompt": f"q{i}", "n": i} for i in range(3)]


def _plain() -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


@pytest.mark.fault("F08")
def test_only_a_line_feed_ends_a_line() -> None:
    """Unicode separators, form feeds and other control characters inside text are text."""
    rows = rows_of(fault_file("prep/unicode_lines.jsonl"))
    first: Any = rows[0].value

    assert [None, None] == [row.fault for row in rows]
    text = first["messages"][0]["content"]
    assert text == "a\u2028b\u2029c\u0085d\u000be"
    assert len(text) == 9


@pytest.mark.fault("F09")
def test_one_bad_line_costs_one_row() -> None:
    """Bad bytes and broken JSON are named by line; the blank line is none; the last line counts."""
    rows = rows_of(fault_file("prep/bad_bytes.jsonl"))
    values: list[Any] = [row.value for row in rows]

    assert [0, 1, 2, 3, 5, 6, 7] == [row.number for row in rows]
    faults = {row.number: row.fault for row in rows if row.fault}
    assert faults == {2: RowReason.BAD_ENCODING, 3: RowReason.BAD_JSON_LINE}
    assert rows[2].detail.startswith("line 3: byte 0x")
    assert rows[3].detail.startswith("line 4: ")
    assert values[-1]["id"] == "b-7"
    assert not fault_file("prep/bad_bytes.jsonl").read_bytes().endswith(b"\n")


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".json"])
def test_the_same_rows_come_from_every_packing(tmp_path: Path, suffix: str) -> None:
    """Plain, gzip, zstd (of several frames) and an array give the same rows."""
    whole = _plain()
    frames = zstandard.compress(whole[:20]) + zstandard.compress(whole[20:])
    data = {
        ".jsonl": whole,
        ".jsonl.gz": gzip.compress(whole),
        ".jsonl.zst": frames,
        ".json": json.dumps(ROWS, indent=1).encode(),
    }[suffix]
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(data)

    assert ROWS == [row.value for row in rows_of(path)]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_cut_compressed_file_is_reported(tmp_path: Path, suffix: str) -> None:
    """What could be read is kept, and the cut is one reject."""
    big = b"".join(
        json.dumps({"prompt": f"question {i * i}"}).encode() + b"\n" for i in range(9999)
    )
    packed = gzip.compress(big) if suffix == ".gz" else zstandard.compress(big)
    path = tmp_path / f"rows.jsonl{suffix}"
    path.write_bytes(packed[: len(packed) // 2])

    rows = rows_of(path)

    assert RowReason.BAD_ENCODING == rows[-1].fault
    assert "ends early" in rows[-1].detail


def test_a_truncated_array_gives_its_complete_rows() -> None:
    """The rows before the cut are kept; the tail is one reject that says how many they are."""
    data = json.dumps(ROWS).encode()[:-12]

    rows = list(array.read_array(io.BytesIO(data), "f"))

    assert ROWS[:2] == [row.value for row in rows[:2]]
    assert [(RowReason.BAD_JSON_LINE, 2)] == [(row.fault, row.number) for row in rows[2:]]
    assert "2 rows stand before it" in rows[2].detail


def test_an_array_without_its_bracket_is_reported() -> None:
    """An array that ends between two rows is not taken for a whole one."""
    rows = list(array.read_array(io.BytesIO(json.dumps(ROWS).encode()[:-1]), "f"))

    assert ROWS == [row.value for row in rows[:3]]
    assert RowReason.BAD_JSON_LINE == rows[3].fault


def test_a_broken_row_in_an_array_costs_one_row() -> None:
    """Rows behind a broken object are still read."""
    data = b'\xef\xbb\xbf[{"a": 1}, {"a": [}, {"a": {"b": nope}}, {"a": "\xff"}, {"a": 2}]'

    rows = list(array.read_array(io.BytesIO(data.replace(b'{"a": [}, ', b"")), "f"))

    assert [{"a": 1}, None, {"a": "\udcff"}, {"a": 2}] == [row.value for row in rows]
    assert [1] == [row.number for row in rows if row.fault]


def test_an_array_is_read_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that lies across chunks, even a number at the very edge, is read whole."""
    monkeypatch.setattr(array, "_CHUNK_BYTES", 3)
    values: list[object] = [{"text": "é" * 50, "n": 12345}, 123456789, {"x": [1, {"y": "]}"}]}]
    data = json.dumps(values, ensure_ascii=False).encode()

    assert values == [row.value for row in array.read_array(io.BytesIO(data), "f")]


def test_an_endless_line_is_one_reject(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by the longest accepted line."""
    monkeypatch.setattr(lines, "MAX_ROW_BYTES", 16)
    data = b'{"a": "' + b"x" * 100 + b'"}\n{"a": 1}\n'

    rows = list(lines.read_lines(io.BytesIO(data), "f"))

    assert [RowReason.BAD_JSON_LINE, None] == [row.fault for row in rows]
    assert [None, {"a": 1}] == [row.value for row in rows]


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    """Files of every kind below a folder, hidden ones left out, each named in its rows."""
    (tmp_path / "b").mkdir()
    write_jsonl(tmp_path / "b" / "two.jsonl", {"prompt": "2"})
    write_jsonl(tmp_path / "a.jsonl", {"prompt": "1"})
    write_jsonl(tmp_path / ".hidden.jsonl", {"prompt": "0"})
    (tmp_path / "README.md").write_text("no data")

    assert [("a.jsonl", 0), ("b/two.jsonl", 0)] == [
        (row.file, row.number) for row in rows_of(tmp_path)
    ]


@pytest.mark.parametrize("name", ["absent.jsonl", "empty", "notes.txt"])
def test_a_source_without_data_is_a_configuration_error(tmp_path: Path, name: str) -> None:
    """The message names the source, and what could be read."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match=name):
        open_source(DatasetConfig(name="d", source=str(tmp_path / name)))


def test_broken_parquet_is_named(tmp_path: Path) -> None:
    """A file that is no Parquet is an error with its path."""
    (tmp_path / "x.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(ArtifactError, match=r"x\.parquet"):
        rows_of(tmp_path / "x.parquet")


def test_an_unreachable_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline is not an empty dataset: the message names the set and the way out."""
    import huggingface_hub

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", refuse)
    with pytest.raises(UnreachableError, match=r"owner/name.*no route.*folder as `source`"):
        open_source(DatasetConfig(name="d", source="owner/name"))


@pytest.mark.parametrize("skip", range(7))
def test_reading_can_begin_behind_any_row(tmp_path: Path, skip: int) -> None:
    """Over files of every kind, `rows(skip)` is the tail of `rows()`, faulty rows included."""
    write_jsonl(tmp_path / "a.jsonl", {"n": 0}, {"n": 1})
    (tmp_path / "b.json").write_text('[{"n": 2}, {"n": ]')
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"n": 4}\n' * 500)[:-9])
    pq.write_table(pa.Table.from_pylist([{"n": 5}, {"n": 6}]), tmp_path / "d.parquet")
    source = open_source(DatasetConfig(name="d", source=str(tmp_path)))
    whole = list(source.rows())

    assert whole[skip:] == list(source.rows(skip))
    assert [] == list(source.rows(len(whole)))
    assert whole[-1:] == list(source.rows(len(whole) - 1))


def test_objects_over_several_lines_are_rows(tmp_path: Path) -> None:
    """A file of pretty-printed objects, however it is called, gives one row an object."""
    values = [{"a": 1, "b": {"c": [1, 2]}}, {"a": 2}]
    for text in (
        "\n".join(json.dumps(v, indent=2) for v in values),
        '{ "a": 1,\n  "b": {"c":\n[1,2]}}\n{"a": 2}',
    ):
        path = tmp_path / "rows.jsonl.gz"
        path.write_bytes(gzip.compress(text.encode()))

        assert values == [row.value for row in rows_of(path)]


def test_a_broken_first_line_does_not_change_what_a_line_is(tmp_path: Path) -> None:
    """JSON Lines whose first row is cut behind a comma stay JSON Lines."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1,\n{"a": 2}\n{"a": 3}\n')
    rows = rows_of(path)

    assert [RowReason.BAD_JSON_LINE, None, None] == [row.fault for row in rows]
    assert [None, {"a": 2}, {"a": 3}] == [row.value for row in rows]


def test_a_broken_row_does_not_read_the_whole_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in a row's middle is told without looking for its end in the whole file."""
    monkeypatch.setattr(array, "_CHUNK_BYTES", 64)
    stream = io.BytesIO(b'[{"a": nope}, ' + b", ".join(b'{"a": 1}' for _ in range(1000)) + b"]")
    rows = array.read_array(stream, "f")
    first = next(rows)

    assert RowReason.BAD_JSON_LINE == first.fault
    assert 64 == stream.tell()
    assert 1000 == len(list(rows))


def test_parquet_text_that_is_not_utf8_costs_one_row(tmp_path: Path) -> None:
    """A broken string in a column names its row; its neighbours in the batch are read."""
    values = [b"one", b"tw\xff", b"three"]
    text = pa.StringArray.from_buffers(
        3,
        pa.py_buffer(b"\0\0\0\0\x03\0\0\0\x06\0\0\0\x0b\0\0\0"),
        pa.py_buffer(b"".join(values)),
    )
    pq.write_table(pa.table({"prompt": text}), tmp_path / "x.parquet")
    rows = rows_of(tmp_path / "x.parquet")

    assert [{"prompt": "one"}, None, {"prompt": "three"}] == [row.value for row in rows]
    assert (RowReason.BAD_ENCODING, "byte 0xff at 2 is not UTF-8") == (
        rows[1].fault,
        rows[1].detail,
    )


def test_files_of_a_folder_can_be_chosen(tmp_path: Path) -> None:
    """`files` picks by pattern; a pattern that finds nothing is a configuration error."""
    write_jsonl(tmp_path / "old.jsonl", {"n": 0})
    write_jsonl(tmp_path / "new-1.jsonl", {"n": 1})
    chosen = DatasetConfig(name="d", source=str(tmp_path), files=("new-*",))
    none = DatasetConfig(name="d", source=str(tmp_path), files=("x*",))

    assert [{"n": 1}] == [row.value for row in open_source(chosen).rows()]
    with pytest.raises(ConfigError, match=r"no file matching x\*"):
        open_source(none)
