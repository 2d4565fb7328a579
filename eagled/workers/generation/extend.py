"""Answers that hit their limit and are continued: joined exactly, bounded, never begun again.

Guarantee: a continuation sends the prompt and every id so far, so what the server adds goes on
where it stopped; the ids so far are durable before the sample is queued again, and a claim
carries them. Each continuation counts against `generation.max_extends`; one that no lane takes is
not asked for, and what there is counts as cut. An answer that repeats itself is not continued.
Pure: `settle.py` brings the outcome to the store.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from eagled.config import Config
from eagled.lanes import lane_for, ordered_lanes
from eagled.server.protocol import EndCause
from eagled.text.loops import LoopRule, find_loop
from eagled.tokens import PackedIds, pack_ids, unpack_ids
from eagled.types import Claim


def joined(claim: Claim, output: Sequence[int]) -> PackedIds:
    """Return the whole answer: the ids of earlier requests, then those of this one."""
    if claim.partial is None:
        return pack_ids(output)
    return pack_ids([*unpack_ids(claim.partial.z, claim.partial.crc).tolist(), *output])


def sent_ids(claim: Claim) -> npt.NDArray[np.uint32]:
    """Return the exact ids of a request, u32 [n]: the prompt, then the answer so far."""
    prompt = unpack_ids(claim.prompt.z, claim.prompt.crc)
    if claim.partial is None:
        return prompt
    so_far = unpack_ids(claim.partial.z, claim.partial.crc)
    return np.ascontiguousarray(np.concatenate([prompt, so_far]))


def next_lane(
    config: Config, claim: Claim, cause: EndCause, n_output: int, server_context: int | None
) -> str | None:
    """Return the lane in which an answer is continued; None if it is not.

    The shortest one with room for as many ids again, else the longest one if `min_reply` fits.

    Args:
        config: lanes and limits.
        claim: whose answer it is.
        cause: how the reply ended.
        n_output: ids of this reply.
        server_context: the server's context in tokens; None while unknown.
    """
    generation = config.generation
    if cause is not EndCause.LIMIT or generation.on_length != "extend":
        return None
    if claim.extended >= generation.max_extends:
        return None
    n_sent = claim.n_sent + n_output
    as_much_again = n_sent + max(0, n_output - generation.min_reply)
    lane = lane_for(config, as_much_again, server_context=server_context)
    if lane is None and lane_for(config, n_sent, server_context=server_context) is not None:
        lane = ordered_lanes(config)[-1][0]
    return None if lane is None else _longer(config, claim.lane, lane)


def repeats_itself(config: Config, claim: Claim, so_far: PackedIds) -> bool:
    """Return whether an answer has fallen into a loop by the checks of its dataset.

    Price: time in proportion to its length; call it in a thread.
    """
    checks = config.checks_of(claim.dataset)
    if not checks.loop_tokens:
        return False
    rule = LoopRule(checks.loop_period, checks.loop_tokens, checks.loop_repeats)
    return find_loop(unpack_ids(so_far.z, so_far.crc).tolist(), rule) is not None


def _longer(config: Config, own: str, other: str) -> str:
    """Return the one of two lanes that takes more; an operator may have chosen a long one."""
    order = [name for name, _ in ordered_lanes(config)]
    if own not in order:
        return other
    return max(own, other, key=order.index)
