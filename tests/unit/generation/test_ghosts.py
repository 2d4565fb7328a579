"""Requests left behind, counters of a metrics page, and who is charged for a lonely fault."""

from __future__ import annotations

import pytest

from eagled.errors import EagledError, ReplyBrokenError, ServerUnavailableError
from eagled.server.gauges import parse_metrics, tokens_made
from eagled.server.protocol import Load
from eagled.server.wire import ConnectionLostError, ReplyCutError
from eagled.workers.generation.ghosts import GRACE_S, MOST_ABORTS, Ghosts
from eagled.workers.generation.policy import Action, Blame, Circumstances, Decision, decide


def load(running: int) -> Load:
    """Return a load of so many running requests."""
    return Load(running, 0, 0, 0, 0.0, 0.0)


def test_each_rid_is_aborted_at_once_and_then_only_while_too_many_run() -> None:
    """One abort is free; further ones need the server's own count, and end."""
    ghosts = Ghosts()
    ghosts.leave("a", 0.0, aborted=False)

    assert ["a"] == ghosts.due(0.0)
    assert [] == ghosts.due(GRACE_S)
    now, aborts = 0.0, 1
    for _ in range(20):
        now += GRACE_S
        ghosts.saw(load(3), 2, now)
        aborts += len(ghosts.due(now))
    assert MOST_ABORTS == aborts
    assert 0 == len(ghosts)


def test_a_count_that_fits_clears_them() -> None:
    """Once the server runs what we have there, nothing is left to chase."""
    ghosts = Ghosts()
    ghosts.leave("a", 0.0, aborted=True)

    assert not ghosts.saw(load(9), 0, GRACE_S / 2)  # it may still be letting go
    assert ghosts.saw(load(3), 2, GRACE_S)
    assert not ghosts.saw(load(3), 2, GRACE_S)  # told once in a row
    assert 1 == ghosts.extra
    assert not ghosts.saw(load(2), 2, 2 * GRACE_S)
    assert 0 == len(ghosts)


def test_a_metrics_page_is_summed_over_its_labels() -> None:
    """Labels with spaces and braces, comments, timestamps and rubbish are no trouble."""
    page = (
        "# HELP x y\n"
        'sglang:realtime_tokens_total{mode="prefill",model_name="a b"} 30.0\n'
        'sglang:realtime_tokens_total{mode="decode",model_name="a {b}"} 12 1700000000\n'
        "sglang:generation_tokens_total 1.0e1\n"
        "broken\n"
        "also{broken\n\x00\n"
    )

    assert 52.0 == tokens_made(parse_metrics(page))
    assert tokens_made(parse_metrics("up 1\n")) is None


@pytest.mark.parametrize(
    ("error", "blame"),
    [
        (ServerUnavailableError("HTTP 500"), Blame.NONE),
        (ReplyBrokenError("no ids"), Blame.NONE),
        (ConnectionLostError("reset"), Blame.LOST),
        (ReplyCutError("cut"), Blame.LOST),
    ],
)
def test_faults_that_only_one_sample_meets_are_its_own(error: EagledError, blame: Blame) -> None:
    """Three in a row with others answered between: the sample is charged, the server is not."""
    seen = Circumstances(healthy=False, probed=False, alone=False, tries=3, lonely=2)

    assert decide(error, seen) == Decision(Action.RETRY, blame, charge=True)
    early = Circumstances(healthy=False, probed=False, alone=False, tries=2, lonely=1)
    assert not decide(ServerUnavailableError("HTTP 500"), early).charge
