"""Peak memory of prep: a whole run, and what it remembers of 10 million questions.

    python -m bench.prep memory --rows 1000000 [--near] [--tokenizer FOLDER]
    python -m bench.prep questions --rows 10000000 [--near]

`memory` runs `eagled prep` on a generated file, by default with the small tokenizer of the tests,
and adds up the resident sizes of all its processes. `questions` feeds the prep process's own part
of the work, the ledger of questions and the parts on disk, with made-up questions: what grows with
the source grows there, and no tokenizer has to be waited for. Reference: `BOUND_MIB`, what prep may
take for a source of 10 million rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from eagled.config import PrepConfig
from eagled.dedup import SIGNATURE_BYTES
from eagled.readers.sources import SourceRow
from eagled.workers.preparation.chunks import CHUNK_ROWS
from eagled.workers.preparation.ledger import Ledger
from eagled.workers.preparation.messages import Chunk, Passed, Screened
from eagled.workers.preparation.parts import Counts, Parts
from eagled.workers.preparation.stage import PART_ROWS, Questions

BOUND_MIB = 1024
_LENGTHS = 10_000  # prompt lengths that occur: those of the short lane
_ROW = SourceRow("made-up", 0)


def memory(args: argparse.Namespace, leg: dict[str, Any], n_bytes: int) -> None:
    """Print what a whole run took."""
    line = {
        "bench": "prep memory", "ratio": round(leg["peak_mib"] / BOUND_MIB, 3),
        "reference": f"{BOUND_MIB} MiB", "rows": args.rows, "near": args.near,
        "file_mb": round(n_bytes / 1e6), "tokenizer": args.tokenizer, "processes": args.cores + 1,
        "peak_mib": leg["peak_mib"], "seconds": round(leg["seconds"], 1),
    }  # fmt: skip
    print(json.dumps(line))


def questions(args: argparse.Namespace) -> None:
    """Print what the ledger and the parts took for so many questions."""
    with tempfile.TemporaryDirectory(dir=args.keep_in) as name:
        started_s = time.process_time()
        before_mib = _peak_mib()
        disk_mib = _remember(args.rows, Path(name), near=args.near)
        line = {
            "bench": "prep questions", "ratio": round(_peak_mib() / BOUND_MIB, 3),
            "reference": f"{BOUND_MIB} MiB", "rows": args.rows, "near": args.near,
            "peak_mib": _peak_mib(), "before_mib": before_mib, "disk_mib": disk_mib,
            "cpu_us_per_row": round((time.process_time() - started_s) / args.rows * 1e6, 1),
        }  # fmt: skip
    print(json.dumps(line))


def _remember(rows: int, folder: Path, *, near: bool) -> int:
    """Do a prep process's bookkeeping for so many rows; return the MiB of disk that it took."""
    rng = random.Random(7)
    signature = (lambda: rng.randbytes(SIGNATURE_BYTES)) if near else (lambda: None)
    config = PrepConfig(near="report" if near else "off")
    with closing(Ledger(config, [], folder)) as ledger:
        parts, open_part, counts = Parts(folder, "lines", _first_run), Questions(), Counts()
        for number in range(-(-rows // CHUNK_ROWS)):
            _chunk(number, ledger, open_part, signature)
            counts.rows += CHUNK_ROWS
            counts.prompts.update(rng.choices(range(_LENGTHS), k=CHUNK_ROWS))
            if counts.rows >= PART_ROWS:
                parts.write(counts, open_part.sections(), last=False)
                open_part, counts = Questions(), Counts(prompts=Counter())
        scratch = ledger.near_disk_bytes
        return (scratch + sum(path.stat().st_size for path in folder.iterdir())) >> 20


def _first_run(*_: object) -> None:
    raise AssertionError("there is no part of an earlier run")


def _chunk(
    number: int, ledger: Ledger, open_part: Questions, signature: Callable[[], bytes | None]
) -> None:
    passed = tuple(Passed(os.urandom(16), signature(), None) for _ in range(CHUNK_ROWS))
    chunk = Chunk(number, (_ROW,) * CHUNK_ROWS, 1)
    ledger.judge(chunk, Screened(number, passed))
    for noted in ledger.noted(chunk).values():
        open_part.add(noted, kept=True)


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
