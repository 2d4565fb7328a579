"""Attention of training-time test: one softmax over a causal group and a few own keys.

At step k a query at row i sees the step-0 keys of rows 0..i of its document, and of each later
step 1..k only the key at row i itself. Two ways to compute the same thing:

- `attend_plain` writes it out, document by document; any device and dtype; memory grows with the
  square of a document's length. This is the reference.
- `attend_flash` lets a fused SDPA kernel do the causal group and folds the own keys in afterwards,
  by its log-sum-exp. Backward calls the kernel's backward with the *merged* output and
  log-sum-exp: its formula, P = exp(S - lse), then gives exactly the gradient of the joint softmax.

Queries may be a suffix of each document: rows whose loss is never wanted only serve as keys.
Letters: R rows, Q query rows, N heads, G key-value heads, E head width, S own keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagled.train.fused import fused

_KERNELS: Any = torch.ops.aten  # with log-sum-exp, which `scaled_dot_product_attention` keeps back
_GPU_FORWARD = _KERNELS._flash_attention_forward  # noqa: SLF001 - torch names its kernels so
_GPU_BACKWARD = _KERNELS._flash_attention_backward  # noqa: SLF001 - as above
_CPU_FORWARD = _KERNELS._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001 - as above
_CPU_BACKWARD = _KERNELS._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001 - as above


@dataclass(frozen=True, slots=True)
class Spans:
    """Where documents lie in packed rows.

    Attributes:
        keys: i32 [n + 1], row bounds of each document.
        queries: i32 [n + 1], bounds of its query rows among all query rows; they are the last
            rows of the document.
        max_keys: rows of the longest document.
        max_queries: most query rows of a document.
    """

    keys: Tensor
    queries: Tensor
    max_keys: int
    max_queries: int

    @classmethod
    def of_lengths(cls, keys: list[int], queries: list[int]) -> Spans:
        """Return the spans of documents with so many rows and query rows each."""
        return cls(_bounds(keys), _bounds(queries), max(keys), max(queries))

    def to(self, device: torch.device) -> Spans:
        """Return a copy whose bounds are on `device`."""
        keys = self.keys.to(device, non_blocking=True)
        queries = self.queries.to(device, non_blocking=True)
        return Spans(keys, queries, self.max_keys, self.max_queries)


def _bounds(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def attend(q: Tensor, k0: Tensor, v0: Tensor, own: tuple[Tensor, Tensor], spans: Spans) -> Tensor:
    """Return the attention output [Q, N, E].

    Args:
        q: [Q, N, E], rotated.
        k0: step-0 keys [R, G, E], rotated.
        v0: step-0 values [R, G, E].
        own: keys and values of later steps at the query rows, each [Q, S, G, E]; S may be 0.
        spans: the documents.
    """
    if flash_usable(q):
        return attend_flash(q, k0, v0, own, spans)
    return attend_plain(q, k0, v0, own, spans)


def flash_usable(q: Tensor) -> bool:
    """Return whether the fused kernel takes these queries: CUDA, 16 bit, head width at most 256."""
    return q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] <= 256  # noqa: PLR2004 - the kernel's limit


def attend_plain(
    q: Tensor, k0: Tensor, v0: Tensor, own: tuple[Tensor, Tensor], spans: Spans
) -> Tensor:
    """Return `attend`, written out."""
    groups = q.shape[1] // k0.shape[1]
    k0, v0 = (t.repeat_interleave(groups, dim=1) for t in (k0, v0))  # [R, N, E]
    own_k, own_v = (t.repeat_interleave(groups, dim=2) for t in own)  # [Q, S, N, E]
    rows, asked = spans.keys.tolist(), spans.queries.tolist()
    parts = [
        _document(q[a:b], k0[s:e], v0[s:e], own_k[a:b], own_v[a:b])
        for s, e, a, b in zip(rows, rows[1:], asked, asked[1:], strict=False)
    ]
    return torch.cat(parts)


def _document(q: Tensor, k0: Tensor, v0: Tensor, own_k: Tensor, own_v: Tensor) -> Tensor:
    n_keys, first = len(k0), len(k0) - len(q)
    scale = 1 / math.sqrt(q.shape[-1])
    causal = torch.einsum("qne,rne->nqr", q, k0).float() * scale
    row = torch.arange(first, n_keys, device=q.device)
    unseen = torch.arange(n_keys, device=q.device) > row[:, None]  # [Q, R]
    causal = causal.masked_fill(unseen, -torch.inf)
    mine = torch.einsum("qne,qsne->nqs", q, own_k).float() * scale
    p = torch.cat([causal, mine], dim=-1).softmax(-1).to(v0.dtype)  # [N, Q, R + S]
    out = torch.einsum("nqr,rne->qne", p[..., :n_keys], v0)
    return out + torch.einsum("nqs,qsne->qne", p[..., n_keys:], own_v)


def attend_flash(
    q: Tensor, k0: Tensor, v0: Tensor, own: tuple[Tensor, Tensor], spans: Spans
) -> Tensor:
    """Return `attend` by a fused kernel for the causal group."""
    out: Tensor = _Merged.apply(q, k0, v0, *own, spans)  # type: ignore[no-untyped-call]  # torch's own signature
    return out


class _Merged(torch.autograd.Function):
    """The causal group by the kernel, own keys merged in by log-sum-exp."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context object
        q: Tensor,
        k0: Tensor,
        v0: Tensor,
        own_k: Tensor,
        own_v: Tensor,
        spans: Spans,
    ) -> Tensor:
        q, k0, v0 = q.contiguous(), k0.contiguous(), v0.contiguous()
        out, lse, *state = kernel_forward(q, k0, v0, spans)  # [Q, N, E], [N, Q] f32
        if own_k.shape[1]:
            out, lse = _merge(q, out, lse.t(), own_k, own_v)
        ctx.save_for_backward(q, k0, v0, own_k, own_v, out, lse, *state)
        ctx.spans = spans
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch's context object
        q, k0, v0, own_k, own_v, out, lse, *state = ctx.saved_tensors
        grad = grad.contiguous()
        dq, dk0, dv0 = kernel_backward(grad, q, k0, v0, out, lse, state, ctx.spans)
        if not own_k.shape[1]:
            return dq, dk0, dv0, torch.zeros_like(own_k), torch.zeros_like(own_v), None
        dq_own, dk, dv = _own_backward(grad, q, own_k, own_v, out, lse.t())
        return dq + dq_own, dk0, dv0, dk, dv, None


def _grouped(x: Tensor, n_kv: int) -> Tensor:
    """View [Q, N, E] as [Q, G, N/G, E]."""
    return x.view(x.shape[0], n_kv, -1, x.shape[-1])


@fused
def _own_scores(q: Tensor, own_k: Tensor) -> Tensor:
    """Return scaled scores of the own keys, f32 [Q, S, N]."""
    grouped = _grouped(q, own_k.shape[2]).unsqueeze(1)  # [Q, 1, G, N/G, E]
    scores = (grouped * own_k.unsqueeze(3)).sum(-1, dtype=torch.float32)  # [Q, S, G, N/G]
    return scores.flatten(2) / math.sqrt(q.shape[-1])


@fused
def _merge(
    q: Tensor, out: Tensor, lse: Tensor, own_k: Tensor, own_v: Tensor
) -> tuple[Tensor, Tensor]:
    """Return output [Q, N, E] and log-sum-exp [N, Q] of both groups; `lse` comes as [Q, N]."""
    scores = _own_scores(q, own_k)  # [Q, S, N]
    joint = torch.logsumexp(torch.cat([lse.unsqueeze(1), scores], 1), 1)  # [Q, N]
    merged = out.float() * (lse - joint).exp().unsqueeze(-1)
    p = (scores - joint.unsqueeze(1)).exp().view(*own_k.shape[:3], -1, 1)  # [Q, S, G, N/G, 1]
    merged = merged + (p * own_v.unsqueeze(3)).sum(1).flatten(1, 2)
    return merged.to(out.dtype), joint.t().contiguous()


@fused
def _own_backward(
    grad: Tensor, q: Tensor, own_k: Tensor, own_v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q (own part), own keys and own values; `lse` is [Q, N]."""
    n_kv = own_k.shape[2]
    p = (_own_scores(q, own_k) - lse.unsqueeze(1)).exp()  # [Q, S, N]
    p = p.view(*own_k.shape[:3], -1, 1)  # [Q, S, G, N/G, 1]
    g = _grouped(grad, n_kv).unsqueeze(1).float()  # [Q, 1, G, N/G, E]
    delta = (grad.float() * out.float()).sum(-1)  # [Q, N]
    delta = delta.view(len(q), 1, n_kv, -1, 1)
    d_scores = p * ((g * own_v.unsqueeze(3)).sum(-1, keepdim=True) - delta)
    d_scores = d_scores / math.sqrt(q.shape[-1])
    dq = (d_scores * own_k.unsqueeze(3)).sum(1).flatten(1, 2)  # [Q, N, E]
    dk = (d_scores * _grouped(q, n_kv).unsqueeze(1)).sum(3)  # [Q, S, G, E]
    dv = (p * g).sum(3)
    return dq.to(q.dtype), dk.to(own_k.dtype), dv.to(own_v.dtype)


def kernel_forward(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> tuple[Tensor, ...]:
    """Run the fused causal kernel over packed documents: output, lse [N, Q], its random state.

    Query rows are aligned with the end of their document. On the CPU, where the kernel knows no
    packed documents, each is a call of its own (used by tests).
    """
    if q.is_cuda:
        bounds = (spans.queries, spans.keys, spans.max_queries, spans.max_keys)
        out, lse, rng, unused, _ = _GPU_FORWARD(
            q, k, v, *bounds, dropout_p=0.0, is_causal=True, return_debug_mask=False
        )
        return out, lse, rng, unused
    parts = [_CPU_FORWARD(*qkv, attn_mask=mask) for *qkv, mask in _cpu_documents(q, k, v, spans)]
    out = torch.cat([o.squeeze(0).transpose(0, 1) for o, _ in parts])
    return out.contiguous(), torch.cat([s.squeeze(0) for _, s in parts], -1)


def kernel_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    state: list[Tensor],
    spans: Spans,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the kernel's gradients of q, k and v for a given output and log-sum-exp."""
    if q.is_cuda:
        bounds = (spans.queries, spans.keys, spans.max_queries, spans.max_keys)
        dq, dk, dv = _GPU_BACKWARD(
            grad, q, k, v, out, lse, *bounds, 0.0, is_causal=True, rng_state=state[0],
            unused=state[1],
        )  # fmt: skip
        return dq, dk, dv
    asked, groups = spans.queries.tolist(), q.shape[1] // k.shape[1]
    grads = []
    for i, (*qkv, mask) in enumerate(_cpu_documents(q, k, v, spans)):
        a, b = asked[i], asked[i + 1]
        mine, ours = (t[a:b].transpose(0, 1).unsqueeze(0) for t in (grad, out))
        part = lse[:, a:b].unsqueeze(0)
        grads.append(_CPU_BACKWARD(mine, *qkv, ours, part, 0.0, is_causal=False, attn_mask=mask))
    dq, dk, dv = (torch.cat([g[j].squeeze(0).transpose(0, 1) for g in grads]) for j in range(3))
    dk, dv = (t.view(len(k), k.shape[1], groups, -1).sum(2) for t in (dk, dv))
    return dq, dk, dv


def _cpu_documents(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> list[tuple[Tensor, ...]]:
    """Return q, k, v as [1, N, rows, E] and the additive mask of each document."""
    rows, asked = spans.keys.tolist(), spans.queries.tolist()
    groups = q.shape[1] // k.shape[1]
    result = []
    for s, e, a, b in zip(rows, rows[1:], asked, asked[1:], strict=False):
        row = torch.arange(e - s - (b - a), e - s)
        mask = torch.zeros(b - a, e - s, dtype=q.dtype)
        mask = mask.masked_fill(torch.arange(e - s) > row[:, None], -torch.inf)
        heads = [
            t.repeat_interleave(n, 1).transpose(0, 1).unsqueeze(0)
            for t, n in ((q[a:b], 1), (k[s:e], groups), (v[s:e], groups))
        ]
        result.append((*heads, mask))
    return result
