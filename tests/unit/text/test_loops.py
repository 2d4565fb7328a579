"""Loops: none that counts is missed, nothing that only looks alike is taken for one."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagled.text.loops import Loop, LoopRule, find_loop
from tests.prep_kit import toy_renderer

RULE = LoopRule(period=256, tokens=512)


def _longest_runs(ids: Sequence[int], period: int) -> int:
    """Return the longest stretch that repeats with a period, by looking at each position."""
    best = run = 0
    for i in range(period, len(ids)):
        run = run + 1 if ids[i] == ids[i - period] else 0
        best = max(best, run + period if run else 0)
    return best


def _counts(ids: Sequence[int], rule: LoopRule) -> bool:
    """Whether any period gives a loop: the definition, tried out in full."""
    return any(
        _longest_runs(ids, p) >= max(rule.tokens, rule.repeats * p)
        for p in range(1, rule.period + 1)
    )


@settings(deadline=None, max_examples=400)
@given(
    head=st.lists(st.integers(0, 2), max_size=12),
    unit=st.lists(st.integers(0, 2), min_size=1, max_size=9),
    rounds=st.integers(1, 9),
    extra=st.integers(0, 8),
    tail=st.lists(st.integers(0, 2), max_size=12),
    period=st.integers(1, 9),
    tokens=st.integers(1, 30),
    repeats=st.integers(4, 6),
)
def test_it_agrees_with_the_definition(
    *,
    head: list[int],
    unit: list[int],
    rounds: int,
    extra: int,
    tail: list[int],
    period: int,
    tokens: int,
    repeats: int,
) -> None:
    """Found exactly if some period counts, and then the stretch is what it says."""
    ids = head + unit * rounds + unit[: extra % len(unit)] + tail
    rule = LoopRule(period, tokens, repeats)
    found = find_loop(ids, rule)

    assert _counts(ids, rule) == (found is not None)
    if found is not None:
        part = ids[found.start : found.start + found.length]
        assert part[found.period :] == part[: -found.period]
        assert found.period <= period
        assert found.length >= max(tokens, repeats * found.period)


@pytest.mark.parametrize("period", [1, 2, 7, 60, 129, 200, 256])
def test_a_loop_is_found_with_its_extent(period: int) -> None:
    """In the middle of an answer, with the exact place, length and period."""
    rng = random.Random(period)  # noqa: S311 - test data
    unit = [1_000_000 + i for i in range(period)]
    before = [rng.randrange(50_000) for _ in range(700)]
    length = max(512, 4 * period) + 3
    loop = (unit * (length // period + 1))[:length]
    found = find_loop([*before, *loop, 9, *before], RULE)

    assert Loop(len(before), length, period) == found
    assert find_loop([*before, *loop[:-4], 9, *before], RULE) is None


def test_sentences_that_repeat_are_a_loop() -> None:
    """What a model does when it is stuck: a line over and over, cut by its limit."""
    text = "Let me think.\n" + "Wait, I should check that again.\n" * 40 + "Wait, I sh"
    found = find_loop(_bytes(text), RULE)

    assert found is not None
    assert len("Wait, I should check that again.\n") >= found.period


def _table() -> str:
    rows = "\n".join(f"| {i} | item {i} | {i * 7 % 100}.00 | yes |" for i in range(150))
    return "| id | name | price | in stock |\n| --- | --- | --- | --- |\n" + rows


def _code() -> str:
    calls = "\n".join(f"    check(result[{i}], {i * i})" for i in range(120))
    same = "    queue.put(None)\n" * 12  # alike lines, below the threshold
    return f"def test():\n{calls}\n{same}    return 1\n"


def _base64() -> str:
    return base64.b64encode(random.Random(0).randbytes(6000)).decode()  # noqa: S311 - test data


_NO_LOOPS: dict[str, Callable[[], str]] = {
    "table": _table,
    "code": _code,
    "base64": _base64,
    "hex dump": lambda: "\n".join(f"{i:08x}  {i * 2654435761 % 2**32:08x}" for i in range(400)),
    "zeros in JSON": lambda: '{"grid": [' + ", ".join(["0"] * 120) + "]}",
    "rule and tree": lambda: "=" * 400 + "\n".join(f"{'│   ' * 5}└── f{i}" for i in range(99)),
    "poem": lambda: "\n".join(
        f"{n} green bottles hanging on the wall,\n{n} green bottles hanging on the wall,\n"
        f"and if one green bottle should accidentally fall,"
        for n in range(30, 0, -1)
    ),
}  # fmt: skip


def _bytes(text: str) -> list[int]:
    return list(toy_renderer().tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("kind", _NO_LOOPS)
def test_text_that_only_looks_alike_is_none(kind: str) -> None:
    """Even in a byte tokenizer, where each line is many tokens."""
    ids = _bytes(_NO_LOOPS[kind]())

    assert find_loop(ids, RULE) is None
    assert find_loop(ids * 2, LoopRule(period=100_000, tokens=512)) is None


def test_the_threshold_is_exact() -> None:
    """One token fewer than asked for is no loop; three rounds are none however long."""
    assert find_loop([5] * 511, RULE) is None
    assert find_loop([5] * 512, RULE) == Loop(0, 512, 1)
    unit = list(range(256))
    assert find_loop(unit * 3 + unit[:255], RULE) is None
    assert find_loop(unit * 4, RULE) == Loop(0, 1024, 256)
    assert find_loop([], RULE) is None


def test_a_rule_that_could_miss_loops_is_refused() -> None:
    """Fewer than four rounds cannot be found in linear time, so they cannot be asked for."""
    for bad in ({"repeats": 3}, {"period": 0}, {"tokens": 0}):
        with pytest.raises(ValueError, match="at least"):
            LoopRule(**{"period": 8, "tokens": 8, **bad})


class _Counted(list[int]):
    """A list that counts how often it is looked into."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)


def _looks(n: int) -> float:
    """Return the look-ups for each token of a text that nearly repeats everywhere."""
    ids = _Counted((x // 1020 if x % 2 else x % 255 // 254) for x in range(n))
    assert find_loop(ids, LoopRule(period=512, tokens=2048)) is None
    return ids.looks / n


def test_time_grows_with_the_length_alone() -> None:
    """Sixteen times the tokens, the same work for each of them, and little of it."""
    short, long = _looks(8_000), _looks(128_000)

    assert long < 1.5 * short
    assert long < 60
