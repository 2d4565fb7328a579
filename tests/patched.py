"""Run eagled with constants that are too long for a test, in the daemon and its workers.

`python -m tests.patched module:NAME=value… -- ARGUMENTS` sets numbers of our modules before the
command starts, and in the workers that it starts; a name that is not there is an error, so that no
test waits for the real one unseen. `workers=MODULE` runs that module as the workers, `alter=NAME`
calls that function of `tests.altered` first.
"""

from __future__ import annotations

import importlib
import sys

from eagled import supervise
from eagled.cli import main
from tests import altered


def patch(what: str) -> None:
    """Set one constant, in the type that it has."""
    place, _, value = what.partition("=")
    if place == "workers":
        supervise.PROGRAM = ("-m", value)
        return
    if place == "alter":
        getattr(altered, value)()
        return
    module_name, _, name = place.partition(":")
    module = importlib.import_module(module_name)
    setattr(module, name, type(getattr(module, name))(value))


if __name__ == "__main__":
    split = sys.argv.index("--")
    supervise.PROGRAM = ("-m", "tests.patched", *sys.argv[1:split], "--")
    for each in sys.argv[1:split]:
        patch(each)
    sys.argv[1:] = sys.argv[split + 1 :]
    main()
