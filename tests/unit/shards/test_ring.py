"""Who has read what in the ring, and what may go."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagled.errors import UsageError
from eagled.shards.ring import Ring

LEASE = 1000


def ring(*names: str) -> Ring:
    """Return a ring with these shards."""
    made = Ring(LEASE)
    made.put(names)
    return made


def test_a_shard_goes_after_every_consumer_released_it() -> None:
    """Two consumers: the first release alone frees nothing."""
    r = ring("a", "b")
    r.register("x", 0)
    r.register("y", 0)
    assert (r.lease("x", 5, 0), r.lease("y", 1, 0)) == (["a", "b"], ["a"])
    r.release("x", ["a", "b"], 0)
    assert r.free() == []
    r.release("y", ["a"], 0)

    assert r.free() == ["a"]


def test_without_a_consumer_nothing_goes() -> None:
    """Also when the only one expired: unread data waits for the next."""
    r = ring("a")
    assert r.free() == []
    r.lease("x", 1, 0)
    assert r.expire(LEASE) == []
    assert r.expire(LEASE + 1) == ["x"]

    assert r.free() == []


def test_an_expired_consumer_is_not_waited_for() -> None:
    """The other's release frees; renewing (a lease of 0) keeps the lease."""
    r = ring("a")
    r.lease("dead", 1, 0)
    r.lease("alive", 1, 0)
    r.release("alive", ["a"], 0)
    assert r.free() == []
    r.lease("alive", 0, LEASE)
    assert r.expire(LEASE + 1) == ["dead"]

    assert r.free() == ["a"]


def test_an_expired_consumer_may_still_release_what_it_held() -> None:
    """A trainer that was busy for longer than its lease has read its shards all the same."""
    r = ring("a", "b")
    r.lease("slow", 1, 0)
    assert r.expire(LEASE + 1) == ["slow"]
    assert r.release("slow", ["a"], LEASE + 2) == 1

    assert r.free() == ["a"]
    with pytest.raises(UsageError, match="does not hold 'b'"):
        r.release("slow", ["b"], LEASE + 3)


def test_leases_are_handed_out_once_and_again_to_a_new_process() -> None:
    """The same shard is not given twice, until the consumer registers anew."""
    r = ring("a", "b", "c")
    assert (r.lease("x", 2, 0), r.lease("x", 2, 0), r.lease("x", 2, 0)) == (["a", "b"], ["c"], [])
    r.release("x", ["a"], 0)
    r.register("x", 1)

    assert r.lease("x", 9, 1) == ["b", "c"]


def test_what_was_not_leased_cannot_be_released() -> None:
    """A wrong name is a mistake of the consumer; a shard that went already is none."""
    r = ring("a")
    with pytest.raises(UsageError, match="does not hold 'a'"):
        r.release("x", ["a"], 0)
    r.lease("x", 1, 0)

    assert r.release("x", ["a", "gone"], 0) == 1
    assert r.release("x", ["a"], 0) == 1  # said twice


def test_a_restart_continues() -> None:
    """Through JSON: releases and leases hold, and the lease time runs anew."""
    r = ring("a", "b", "c")
    r.lease("x", 2, 0)
    r.release("x", ["a"], 0)
    again = Ring(LEASE)
    again.load(json.loads(json.dumps(r.to_dict())), 5000)
    again.put(["a", "b", "c", "d"])

    assert (again.free(), again.expire(5000 + LEASE)) == (["a"], [])
    assert again.lease("x", 9, 5000) == ["c", "d"]
    assert [c.held for c in again.consumers()] == [("b", "c", "d")]


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("plrvf"), st.integers(0, 3))))
def test_nothing_unread_by_a_present_consumer_ever_goes(steps: list[tuple[str, str, int]]) -> None:
    """Whatever happens, what may go was released by each consumer that is registered."""
    r, made, held = Ring(LEASE), 0, {name: list[str]() for name in "xyz"}
    released: set[tuple[str, str]] = set()
    present: set[str] = set()
    for name, what, n in steps:
        if what == "p":
            made += n
            r.put([*r.shards, *(f"s{made - i}" for i in range(n))])
        elif what == "l":
            held[name] += r.lease(name, n, 0)
            present.add(name)
        elif what == "r":
            done, held[name] = held[name][:n], held[name][n:]
            r.release(name, done, 0)
            present.add(name)
            released |= {(name, s) for s in done}
        elif what == "v":
            r.leave(name)
            present.discard(name)
            held[name] = []
        else:
            going = r.free()
            for shard in going:
                assert all((who, shard) in released for who in present)
                assert any(s == shard for _, s in released)
            r.put([s for s in r.shards if s not in going])
