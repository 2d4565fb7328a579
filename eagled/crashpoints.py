"""Named places at which a test can kill the process.

`EAGLED_CRASH_AT=after_commit:3` ends the process with exit code 137 at the third time that
`crash_point("after_commit")` is passed, without any clean-up, as SIGKILL does. Without the
variable a crash point costs one dictionary look-up.
"""

from __future__ import annotations

import os

ENV = "EAGLED_CRASH_AT"
POINTS = (
    "before_commit",
    "after_commit",
    "after_stamp",
    "mid_enqueue",
    "during_recovery",
    "during_migration",
)
_EXIT = 137  # what a shell reports of SIGKILL
_hits: dict[str, int] = {}


def crash_point(name: str) -> None:
    """End the process here if the environment asks for it."""
    wanted = os.environ.get(ENV)
    if wanted is None:
        return
    where, _, count = wanted.partition(":")
    if where != name:
        return
    _hits[name] = _hits.get(name, 0) + 1
    if _hits[name] >= int(count or 1):
        os._exit(_EXIT)
