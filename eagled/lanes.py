"""Which lane takes a prompt, and how much room its answer gets.

Guarantee: decided from counted tokens before anything is sent; a prompt is never shortened to fit.
Pure functions of the configuration: prep, the daemon and the profile all use these and so agree.
"""

from __future__ import annotations

from eagled.config import Config, LaneConfig


def ordered_lanes(config: Config) -> list[tuple[str, LaneConfig]]:
    """Return the lanes from the shortest context to the longest; context 0 is last."""
    return sorted(config.lanes.items(), key=lambda item: (item[1].context == 0, item[1].context))


def lane_context(lane: LaneConfig, server_context: int | None) -> int | None:
    """Return the tokens of prompt and answer that a lane can hold together.

    None: nothing is known that would limit it (context 0 and no server asked yet).
    """
    known = [size for size in (lane.context, server_context) if size]
    return min(known) if known else None


def lane_for(config: Config, n_prompt: int, *, server_context: int | None) -> str | None:
    """Return the shortest lane in which the prompt and `min_reply` tokens fit, or None.

    Args:
        config: lanes and `generation.min_reply`.
        n_prompt: tokens of the prompt as it will be sent.
        server_context: the server's own context length in tokens; None while unknown, and then a
            lane with context 0 takes every prompt.
    """
    for name, lane in ordered_lanes(config):
        context = lane_context(lane, server_context)
        if context is None or n_prompt + config.generation.min_reply <= context:
            return name
    return None


def max_new_for(
    config: Config, lane: str, n_prompt: int, cap: int, server_context: int | None
) -> int:
    """Return `max_new_tokens` for a request: the cap, cut to what the lane's context leaves.

    0 or less says that the prompt does not fit the lane: it must not be sent.
    """
    context = lane_context(config.lanes[lane], server_context)
    return cap if context is None else min(cap, context - n_prompt)


def longest_prompt(config: Config) -> int:
    """Return the most prompt tokens that prep lets through; 0 is no limit.

    `prep.max_prompt_tokens`, or what the longest lane takes beside `min_reply`.
    """
    if config.prep.max_prompt_tokens:
        return config.prep.max_prompt_tokens
    context = ordered_lanes(config)[-1][1].context
    return context - config.generation.min_reply if context else 0
