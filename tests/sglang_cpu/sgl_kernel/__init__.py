"""Stand-in for SGLang's compiled kernel package, in plain torch, for the CPU engine.

SGLang imports `sgl_kernel` unconditionally. For a dense model on the `torch_native` attention back
end the CPU engine calls two of its helpers, and for speculation those of `speculation.py`;
anything else raises with its name, so that a new
need shows itself. This folder goes on PYTHONPATH of the test server and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

from .speculation import (
    assign_draft_cache_locs_contiguous_cpu,
    build_draft_decode_metadata_cpu,
    build_tree_kernel_efficient_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    register,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

if TYPE_CHECKING:
    import torch

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]
register()


def _spans(
    rows: torch.Tensor, start: torch.Tensor, end: torch.Tensor
) -> Iterator[tuple[int, slice, slice]]:
    """Yield (row, columns of the table, places in the flat list) of each non-empty request."""
    offset = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        count = max(last - first, 0)
        if count:
            yield row, slice(first, last), slice(offset, offset + count)
        offset += count


def assign_req_to_token_pool_cpu(
    rows: torch.Tensor,
    table: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    slots: torch.Tensor,
    _width: int,
) -> None:
    """Write each request's slots from the flat list into its row of the table."""
    for row, columns, places in _spans(rows, start, end):
        table[row, columns] = slots[places].to(table.dtype)


def assign_extend_cache_locs_cpu(
    rows: torch.Tensor,
    table: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    slots: torch.Tensor,
    _width: int,
) -> None:
    """Read each request's slots from its row of the table into the flat list."""
    for row, columns, places in _spans(rows, start, end):
        slots[places] = table[row, columns].to(slots.dtype)


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Return a function that says which helper is missing when it is called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"the CPU stand-in for sgl_kernel has no {name}")

    missing.__name__ = name
    return missing
