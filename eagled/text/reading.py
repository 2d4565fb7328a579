"""Ids as text for people: pieces between special ids, each decoded as one.

Guarantee: the pieces' counts add up to the ids; a special id stands alone and is told by its id,
so text that only looks like one stays text. A character whose bytes are spread over several ids is
never torn, because neighbours are decoded together. Price: one decode a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

MAX_PIECE = 4096  # ids; bounds what one damaged text can hold up


def pieces(
    ids: Sequence[int], special: frozenset[int], decode: Callable[[Sequence[int]], str]
) -> Iterator[tuple[str, int, bool]]:
    """Yield (text, number of ids, whether it is a special id) in order."""
    for alone, group in groupby(ids, special.__contains__):
        run = list(group)
        for part in _parts(run, 1 if alone else MAX_PIECE):
            yield _safe(decode, part), len(part), alone


def _parts(run: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return (run[i : i + size] for i in range(0, len(run), size))


def _safe(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> str:
    try:
        return decode(ids)
    except Exception:  # noqa: BLE001 - an id that the tokenizer does not know must not hide the rest
        return "".join(f"<id {number}>" for number in ids)
