"""Files are written whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from eagled.artifacts import atomic_file, disk_error, read_json, require_same, write_json
from eagled.errors import ArtifactError


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """An exception inside the block keeps what was there and leaves no temporary file."""
    path = tmp_path / "a.json"
    write_json(path, {"n": 1})

    def write_half() -> None:
        with atomic_file(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()

    assert {"n": 1} == read_json(path)
    assert [path] == list(tmp_path.iterdir())


def test_same_value_same_bytes(tmp_path: Path) -> None:
    """Key order does not change the bytes of a manifest."""
    write_json(tmp_path / "a", {"x": 1, "y": 2})
    write_json(tmp_path / "b", {"y": 2, "x": 1})

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("content", [b"", b"[1]", b"{"])
def test_read_json_names_the_file(tmp_path: Path, content: bytes) -> None:
    """A torn or foreign manifest is an error that names it."""
    path = tmp_path / "manifest.json"
    path.write_bytes(content)

    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        read_json(path)


def test_disk_errors_say_what_to_do() -> None:
    """Full and read-only disks are told apart; other errors are not about the disk."""
    full = disk_error(OSError(errno.ENOSPC, "No space left on device"), Path("/x"))
    read_only = disk_error(OSError(errno.EROFS, "Read-only file system"), Path("/x"))

    assert "make room" in str(full)
    assert "read-only" in str(read_only)
    assert disk_error(OSError(errno.EINVAL, "?"), Path("/x")) is None


def test_disagreeing_manifests_name_both_values() -> None:
    """The person sees what each side has."""
    with pytest.raises(ArtifactError, match=r"'aa'.*'bb'"):
        require_same("template hash", "bb", "aa", where="corpus v001")
