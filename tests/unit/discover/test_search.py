"""What ends a search: told as it was, whatever the stop makes of the others."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eagled.discover.assess import Assessor
from eagled.discover.cache import Cache
from eagled.discover.facts import Found
from eagled.discover.gate import TimeUpError
from eagled.discover.search import Search


def test_what_stopped_a_search_is_told_and_not_what_the_stop_made_of_the_others() -> None:
    """The first dataset waits and fails for the stop, the second is what caused it."""
    stopped = threading.Event()

    def assess(found: Found) -> Any:
        if found.source == "second":
            raise KeyboardInterrupt
        assert stopped.wait(60)
        raise TimeUpError("stopped")

    gate = SimpleNamespace(stop=stopped.set, stopped=False)
    assessor = cast("Assessor", SimpleNamespace(gate=gate, assess=assess))
    search = Search((), assessor, cast("Cache", None))
    known: dict[Found, tuple[str, ...]] = {
        Found("first", local=True): (),
        Found("second", local=True): (),
    }

    with pytest.raises(KeyboardInterrupt):
        search.run((), known)
