"""How engines count the layers that an EAGLE-3 draft reads, against our boundary ids.

A boundary k is the residual stream that enters layer k. Engines write ids of their own into a
draft's config: vLLM means boundaries; SGLang adds 1 to explicit ids for most targets, leaves them
as they are for some, and decides by the first id for others. Without ids both take the boundaries
[2, N//2, N-3]. Everything in eagled but this module and the SGLang plugin means boundaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from eagled.errors import ConfigError

Engine: TypeAlias = Literal["sglang", "vllm"]
# SGLang's classes that add 1 only when the first id is 1, by the target's `model_type`
_BY_FIRST_ID = {
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm4_moe_lite",
}  # fmt: skip
_RULE_SINCE = (0, 5, 13)  # before it, those classes added 1 always
_BY_LAST_ID = {"gpt_oss"}


def version_tuple(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: 0.5.12.post1 is (0, 5, 12)."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def default_boundaries(n_layers: int) -> tuple[int, ...]:
    """Return what both engines capture when a draft names no layers."""
    return (2, n_layers // 2, n_layers - 3)


def captured(
    ids: Sequence[int] | None, *, engine: Engine, target_type: str, n_layers: int, version: str = ""
) -> tuple[int, ...]:
    """Return the boundaries that an engine captures for the ids in a draft's config.

    Args:
        ids: the ids, or None when the config names none.
        engine: which engine.
        target_type: `model_type` of the target (its language model).
        n_layers: decoder layers of the target.
        version: the engine's; empty is a current one.
    """
    if not ids:
        return default_boundaries(n_layers)
    if engine == "vllm":
        return tuple(ids)
    return tuple(k + _sglang_step(ids, target_type, n_layers, version) for k in ids)


def _sglang_step(ids: Sequence[int], target_type: str, n_layers: int, version: str) -> int:
    if target_type in _BY_LAST_ID:
        return 0 if max(ids) == n_layers else 1
    new_rule = not version or version_tuple(version) >= _RULE_SINCE
    if target_type in _BY_FIRST_ID and new_rule:
        return 1 if ids[0] == 1 else 0
    return 1


def ids_to_write(
    boundaries: Sequence[int],
    *,
    engine: Engine,
    target_type: str,
    n_layers: int,
    version: str = "",
) -> list[int] | None:
    """Return the ids that make an engine capture these boundaries; None when it needs none.

    Raises:
        ConfigError: if no ids do.
    """
    wanted = tuple(boundaries)
    if wanted == default_boundaries(n_layers):
        return None
    for step in (1, 0):
        ids = [k - step for k in wanted]
        seen = captured(
            ids, engine=engine, target_type=target_type, n_layers=n_layers, version=version
        )
        if min(ids) >= 0 and seen == wanted:
            return ids
    raise ConfigError(
        f"{engine} cannot be told to capture the boundaries {list(wanted)} of a {target_type} "
        f"target; extract with other layers, such as {list(default_boundaries(n_layers))}"
    )
