"""Which layers are captured: one meaning of a layer id everywhere.

An id is a boundary: k is the residual stream that enters layer k, so 0 is the embeddings and N is
what leaves the last layer, before the final norm. Engines count otherwise; only code that talks to
one engine translates.
"""

from __future__ import annotations

from collections.abc import Sequence

from eagled.errors import ConfigError


def plan_layers(n_layers: int, wanted: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the boundary ids to capture: `wanted`, or the default [2, N//2, N-3].

    Raises:
        ConfigError: if an id is out of 0..N, listed twice or out of order, also for the default
            on a model that is too shallow for it.
    """
    layers = tuple(wanted) or (2, n_layers // 2, n_layers - 3)
    problems = [*_range_problems(layers, n_layers), *_order_problems(layers)]
    if problems:
        source = "extract.layers" if wanted else f"the default [2, N//2, N-3] for N = {n_layers}"
        raise ConfigError(
            f"{source} gives layers {list(layers)}; "
            f"set extract.layers to distinct ascending boundary ids in 0..{n_layers}",
            tuple(problems),
        )
    return layers


def _range_problems(layers: tuple[int, ...], n_layers: int) -> list[str]:
    return [f"layer {k} is outside 0..{n_layers}" for k in layers if not 0 <= k <= n_layers]


def _order_problems(layers: tuple[int, ...]) -> list[str]:
    twice = sorted({k for k in layers if layers.count(k) > 1})
    if twice:
        return [f"layer {k} is listed more than once" for k in twice]
    if list(layers) != sorted(layers):
        return ["layers are not in ascending order (low, mid, high)"]
    return []
