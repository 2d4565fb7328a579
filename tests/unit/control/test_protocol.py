"""Errors travel as themselves; versions and paths are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagled import errors
from eagled.control.protocol import (
    MAX_SOCKET_PATH_BYTES,
    check_socket_path,
    check_version,
    error_from_wire,
    error_to_wire,
    unreachable,
)
from eagled.errors import EagledError, UnreachableError, UsageError

CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, EagledError)
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_comes_back_as_itself(kind: type[EagledError]) -> None:
    """Class, message and exit code survive, whatever the constructor wants."""
    sent = kind("what happened")
    got = error_from_wire(error_to_wire(sent), 400)

    assert (kind, str(sent), kind.exit_code) == (type(got), str(got), got.exit_code)


@pytest.mark.parametrize("body", [None, [], {}, {"error": "x"}, {"error": {"class": "Exception"}}])
def test_an_answer_of_something_else_is_still_an_error_of_ours(body: object) -> None:
    """A proxy's page or a class of another version does not break the client."""
    assert isinstance(error_from_wire(body, 500), EagledError)


def test_a_path_that_no_socket_can_have_is_refused() -> None:
    """107 bytes are the most, counted in bytes, not characters."""
    fits = Path("/" + "x" * (MAX_SOCKET_PATH_BYTES - 1))

    assert fits == check_socket_path(fits)
    with pytest.raises(UsageError, match=r"daemon\.socket"):
        check_socket_path(Path("/" + "ü" * 60))


def test_a_caller_without_a_version_is_ours_and_another_is_told_both() -> None:
    """A plain HTTP client works; an older client of ours learns what is wrong."""
    check_version(None)
    check_version("1")
    with pytest.raises(UsageError, match="control API 1, the caller speaks '0'"):
        check_version("0")


def test_a_foreign_socket_is_told_apart_from_an_absent_one() -> None:
    """Permission denied names the user as the cause, not a missing daemon."""
    path = Path("/s")

    assert "another user" in str(unreachable(path, PermissionError()))
    assert "eagled run" in str(unreachable(path, FileNotFoundError()))
    assert isinstance(unreachable(path), UnreachableError)
