"""What chain speculation (top-k 1) on the CPU asks of the kernel package, in plain torch.

Lengths, places and tables are SGLang's own; each function says what it writes. `register` makes
the two attention kernels known as the operators that SGLang's `intel_amx` back end calls.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own convention

_FULL_MASK, _BIT_MASK = 0, 2  # layouts of the tree mask


def assign_draft_cache_locs_contiguous_cpu(
    rows: Tensor, table: Tensor, lengths: Tensor, slots: Tensor, _width: int, topk: int, steps: int
) -> None:
    """Read the slots behind each request's tokens, `topk * steps` of them, into the flat list."""
    count = topk * steps
    for i, (row, n) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        slots[i * count : (i + 1) * count] = table[row, n : n + count].to(slots.dtype)


def copy_all_layer_kv_cache_cpu(
    pointers: Tensor, strides: Tensor, targets: Tensor, sources: Tensor
) -> None:
    """Copy cache rows `sources` to `targets` in every layer; all are read before one is written."""
    for base, size in zip(pointers.tolist(), strides.tolist(), strict=True):
        held = [ctypes.string_at(base + s * size, size) for s in sources.tolist()]
        for target, row in zip(targets.tolist(), held, strict=False):
            ctypes.memmove(base + target * size, row, size)


def fill_bonus_tokens_cpu(accepted: Tensor, lengths: Tensor, bonus: Tensor, stride: int) -> None:
    """Write the last accepted token of each request."""
    last = torch.arange(lengths.numel()) * stride + lengths.long() - 1
    bonus[: last.numel()] = accepted.reshape(-1)[last].to(bonus.dtype)


def fill_accept_out_cache_loc_cpu(index: Tensor, slots: Tensor, accepted: Tensor) -> None:
    """Write the slots of the accepted places, in order; -1 marks a place that was not."""
    flat = index.reshape(-1)
    kept = flat[flat > -1].long()
    accepted[: kept.numel()] = slots[kept].to(accepted.dtype)


def rotate_input_ids_cpu(
    ids: Tensor, starts: Tensor, lengths: Tensor, new: Tensor, places: Tensor | None = None
) -> None:
    """Move each request's ids one to the left and put its new id at the end (or at its place)."""
    fresh = new.reshape(-1).tolist()
    for i, (start, n) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        if n > 0:
            ids[start : start + n - 1] = ids[start + 1 : start + n].clone()
            ids[start + n - 1 if places is None else int(places[i])] = fresh[i]


def build_tree_kernel_efficient_cpu(
    _parents: Tensor,
    _selected: Tensor,
    lengths: Tensor,
    mask: Tensor,
    positions: Tensor,
    index: Tensor,
    following: Tensor,
    _siblings: Tensor,
    topk: int,
    _depth: int,
    width: int,
    mode: int,
) -> None:
    """Write index, successor, position and mask of a chain: place i follows place i - 1."""
    if topk != 1 or int(mode) == _BIT_MASK:
        raise NotImplementedError(f"the CPU stand-in for sgl_kernel knows chains, not top-k {topk}")
    seen = torch.ones(width, width, dtype=torch.bool).tril()
    start = 0
    for b, n in enumerate(lengths.tolist()):
        index[b] = torch.arange(b * width, (b + 1) * width)
        following[b, : width - 1] = torch.arange(1, width)
        positions[b * width : (b + 1) * width] = n + torch.arange(width)
        before = n if int(mode) == _FULL_MASK else 0
        block = mask[start : start + width * (before + width)].view(width, before + width)
        block[:, before:] = seen
        start += block.numel()


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,  # noqa: ARG001 - a chain has none
    target_predict: Tensor,
) -> None:
    """Accept guesses while each is the target's choice; write its choices up to the first miss."""
    wanted = target_predict.reshape(-1).tolist()
    for b in range(len(candidates)):
        guesses, places = candidates[b].tolist(), retrive_index[b].tolist()
        after = retrive_next_token[b].tolist()
        node, count = 0, 0
        accept_index[b, 0] = places[0]
        predicts[places[0]] = wanted[places[0]]
        while count + 1 < accept_index.shape[1] and after[node] != -1:
            if guesses[after[node]] != wanted[places[node]]:
                break
            node, count = after[node], count + 1
            accept_index[b, count] = places[node]
            predicts[places[node]] = wanted[places[node]]
        accept_token_num[b] = count


def build_draft_decode_metadata_cpu(
    table: Tensor, rows: Tensor, lengths: Tensor, topk: int, steps: int, width: int
) -> Tensor:
    """Return the table of slots that each guess of a request sees, [requests * topk, width]."""
    result = torch.zeros((lengths.numel() * topk, width), dtype=table.dtype)
    for b, (row, n) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        for t in range(topk):
            end = min(steps, width - n)
            mine = result[b * topk + t]
            mine[:n] = table[row, :n]
            mine[n : n + end] = table[row, n + t * steps : n + t * steps + end]
    return result


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Return attention over one request, [n, heads, width]."""
    groups = q.shape[1] // k.shape[1]
    query = q.transpose(0, 1)
    key, value = (t.transpose(0, 1).to(q.dtype).repeat_interleave(groups, 0) for t in (k, v))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return out.transpose(0, 1)


def _without_scales(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what follows the two scales of a quantised cache; older versions pass none."""
    return args if torch.is_tensor(args[0]) else args[2:]


def decode_attention_cpu(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any) -> None:
    """Store each request's new key and value, and attend from its one query."""
    out, k, v, slots, _, table, rows, lengths, scale, *_ = _without_scales(rest)
    if k is not None:
        k_cache[slots] = k.view(-1, *k_cache.shape[1:]).to(k_cache.dtype)
        v_cache[slots] = v.view(-1, *v_cache.shape[1:]).to(v_cache.dtype)
    for i, (row, n) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        seen = table[row, :n].long()
        out[i : i + 1] = _attend(q[i : i + 1], k_cache[seen], v_cache[seen], scale, None)


def extend_attention_cpu(
    q: Tensor, _k: Tensor, _v: Tensor, out: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any
) -> None:
    """Attend from several new tokens of each request; a chain's mask is the causal one."""
    table, rows, lengths, new, starts, _, scale, *_ = _without_scales(rest)
    lists = (t.tolist() for t in (rows, lengths, new, starts))
    for row, n, count, start in zip(*lists, strict=True):
        if count > 0:
            seen = table[row, :n].long()
            mask = torch.ones(count, n, dtype=torch.bool).tril(n - count)
            mine = slice(start, start + count)
            out[mine] = _attend(q[mine], k_cache[seen], v_cache[seen], scale, mask)


def register() -> None:
    """Make the attention kernels known under the names that SGLang calls."""
    operators: Any = torch.ops.sgl_kernel
    operators.decode_attention_cpu = decode_attention_cpu
    operators.extend_attention_cpu = extend_attention_cpu
