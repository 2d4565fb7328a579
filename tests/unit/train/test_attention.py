"""Joint attention over a causal group and own keys: two computations, one result."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from eagled.train.attention import Spans, attend_flash, attend_plain

HEADS, GROUPS, WIDTH = 4, 2, 8
SPANS = Spans.of_lengths([7, 12, 3], [4, 12, 1])
ROWS, QUERIES = 22, 17


def inputs(own: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Return q, k0, v0 and own keys and values."""
    g = torch.Generator().manual_seed(seed)
    shapes = [(QUERIES, HEADS), (ROWS, GROUPS), (ROWS, GROUPS), *[(QUERIES, own, GROUPS)] * 2]
    return tuple(
        torch.randn(*shape, WIDTH, generator=g, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    )


@pytest.mark.parametrize("own", [0, 1, 3])
def test_merged_kernel_equals_the_written_out_form(own: int) -> None:
    """Output and all gradients agree, with key groups, query suffixes and several documents."""
    q, k0, v0, own_k, own_v = given = inputs(own)
    plain = attend_plain(q, k0, v0, (own_k, own_v), SPANS)
    merged = attend_flash(q, k0, v0, (own_k, own_v), SPANS)
    direction = torch.randn(plain.shape, generator=torch.Generator().manual_seed(9)).double()

    torch.testing.assert_close(merged, plain, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(
        torch.autograd.grad(merged, given, direction),
        torch.autograd.grad(plain, given, direction, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_own_keys_share_one_softmax_with_the_causal_group() -> None:
    """By hand: two keys of score 0 and one own key of score ln 2 weigh 1/4, 1/4, 1/2."""
    q = torch.tensor([[[1.0, 0.0]]])
    k0 = torch.tensor([[[0.0, 5.0]], [[0.0, 7.0]]])
    v0 = torch.tensor([[[4.0, 0.0]], [[0.0, 4.0]]])
    own_k = torch.tensor([[[[math.log(2) * math.sqrt(2), 0.0]]]])
    own_v = torch.tensor([[[[8.0, 8.0]]]])
    spans = Spans.of_lengths([2], [1])

    torch.testing.assert_close(
        attend_plain(q, k0, v0, (own_k, own_v), spans), torch.tensor([[[5.0, 5.0]]])
    )


def test_documents_do_not_see_each_other() -> None:
    """A change in one document's keys leaves the others' outputs as they are."""
    q, k0, v0, own_k, own_v = inputs(2)
    before = attend_plain(q, k0, v0, (own_k, own_v), SPANS)
    other = k0.detach().clone()
    other[:7] += 3
    after = attend_plain(q, other, v0, (own_k, own_v), SPANS)

    assert torch.equal(before[4:], after[4:])
    assert not torch.equal(before[:4], after[:4])


def test_a_query_does_not_see_later_rows() -> None:
    """The last row's key changes only the last query of its document."""
    q, k0, v0, own_k, own_v = inputs(0)
    before = attend_plain(q, k0, v0, (own_k, own_v), SPANS)
    other = v0.detach().clone()
    other[18] += 1  # last row of the second document
    after = attend_plain(q, k0, other, (own_k, own_v), SPANS)
    changed = (before != after).flatten(1).any(1)

    assert [15] == changed.nonzero()[:, 0].tolist()
