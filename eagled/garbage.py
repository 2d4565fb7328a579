"""How often the daemon looks for reference cycles.

The default looks after every 700 new objects and walks all modules again and again; in a process
that lives for days and allocates lists of token ids all the time that was a tenth of its CPU
(`bench/generation_cpu.py`). Memory is still freed at once by reference counts; only cycles wait.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000  # a few MB of waiting cycles at most
MIDDLE_RUNS = 20


def settle_garbage() -> None:
    """Exempt what is loaded by now from collection, and look for cycles less often.

    Call once, when start-up is over; what was loaded lives as long as the process anyway.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_RUNS, MIDDLE_RUNS)
