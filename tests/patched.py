"""Run eagled with constants that are too long for a test, or with another clock.

`python -m tests.patched module:NAME=value… -- ARGUMENTS` sets numbers of our modules before the
command starts; a name that is not there is an error, so that no test waits for the real one unseen.
"""

from __future__ import annotations

import importlib
import sys

from eagled.cli import main


def patch(what: str) -> None:
    """Set one constant, in the type that it has."""
    place, _, value = what.partition("=")
    module_name, _, name = place.partition(":")
    module = importlib.import_module(module_name)
    setattr(module, name, type(getattr(module, name))(value))


if __name__ == "__main__":
    split = sys.argv.index("--")
    for each in sys.argv[1:split]:
        patch(each)
    sys.argv[1:] = sys.argv[split + 1 :]
    main()
