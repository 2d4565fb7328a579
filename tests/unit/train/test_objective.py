"""Which rows carry loss, what the loss is by hand, and how it is averaged."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from eagled.train.losses import LossName, first_choice, head_loss
from eagled.train.objective import Objective, objective_loss
from eagled.train.rows import align, shifted
from tests.faults import fault_file
from tests.unit.train.kit import (
    DRAFT_VOCAB,
    STEPS,
    WIDTH,
    batch_of,
    make_head,
    sample,
    target_ends,
    teacher_view,
)


def case(name: str) -> dict[str, Any]:
    """Return a fault's input."""
    return dict(json.loads(fault_file(f"{name}.json").read_text(encoding="utf-8")))


@pytest.mark.fault("F30")
def test_ids_targets_and_mask_move_together() -> None:
    """With a shift of 1 the supervised positions are 2, 3, 4 with 13, 14, 15; the last has none."""
    given = case("mask/shift")
    ids, mask = torch.tensor(given["input_ids"]), torch.tensor(given["loss_mask"])
    targets, moved = shifted(ids, mask, given["target_shift"])

    assert [2, 3, 4] == moved.nonzero()[:, 0].tolist()
    assert [13, 14, 15] == targets[moved].tolist()
    assert not moved[-1]


def test_loss_begins_where_serving_begins() -> None:
    """Prompt of 4, answer of 5: rows 3..6 at step 0, the input token being the answer's."""
    document = align(sample(4, 5))
    assert document is not None
    wanted = document.wanted(3)

    assert [3, 4, 5, 6] == wanted[0].nonzero()[:, 0].tolist()  # row 7 reads the last token
    assert [2, 3, 4, 5] == wanted[1].nonzero()[:, 0].tolist()
    assert [1, 2, 3, 4] == wanted[2].nonzero()[:, 0].tolist()
    assert 4 == document.n_prompt


def test_a_pick_meets_its_own_teacher() -> None:
    """Row i at step k is compared with the state after token i + 1 + k; the next token follows."""
    one = sample(4, 6)
    batch = batch_of([sample(3, 4, 1), one], 3)
    for query, step, last in batch.picks.tolist():
        if int(batch.owner[query]) == 0:
            continue
        row = int(batch.rows.positions[batch.rows.active[query]])
        stored = int((one["last_positions"] == row + 1 + step).nonzero()[0, 0])
        assert torch.equal(one["last"][stored], batch.last[last])
    follows = [
        int(one["input_ids"][int(batch.rows.positions[batch.rows.active[q]]) + 2 + k])
        for q, k, _ in batch.picks.tolist()
        if int(batch.owner[q]) == 1
    ]
    mine = [i for i, (q, _, _) in enumerate(batch.picks.tolist()) if int(batch.owner[q]) == 1]

    assert follows == batch.targets[mine].tolist()


@pytest.mark.parametrize(("name", "expected"), [("soft_ce", math.log(4)), ("kl", None)])
def test_the_loss_by_hand(name: LossName, expected: float | None) -> None:
    """A draft that knows nothing of four tokens, a target of 1/2, 1/4, 1/8, 1/8.

    Cross-entropy is ln 4; the target's entropy is 7/4 ln 2, so the divergence is 1/4 ln 2. The
    gradient of the draft's logits is 1/4 - p.
    """
    head = torch.zeros(4, 4, requires_grad=True)
    h = torch.eye(4)[:1].clone().requires_grad_()
    p = torch.tensor([0.5, 0.25, 0.125, 0.125])
    teacher_head = torch.zeros(4, 4)
    teacher_head[:, 0] = p.log()
    loss, scores = head_loss(h, head, torch.eye(4)[:1], teacher_head, torch.ones(1), name)
    loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
    assert head.grad is not None

    assert pytest.approx(expected or math.log(2) / 4, rel=1e-6) == loss.item()
    torch.testing.assert_close(head.grad[:, 0], 0.25 - p)
    assert 0 == scores.teacher.item()


@pytest.mark.fault("F85")
def test_a_step_is_averaged_over_supervised_tokens() -> None:
    """Rows of 8 with 8 and 2 supervised, each costing 1.0: 1.0, not the mean over positions."""
    given = case("train/loss_scale")
    ones = [row["ones"] for row in given["rows"]]
    # a flat draft over four tokens costs ln 4 a token: the weight brings each to 1.0
    h = torch.zeros(sum(ones), 4)
    cost = math.log(4)
    weight = torch.full((sum(ones),), given["per_token_loss"] / cost / sum(ones))
    loss, _ = head_loss(h, torch.zeros(4, 4), h, torch.zeros(4, 4), weight, "soft_ce")

    assert pytest.approx(1.0) == loss.item()
    assert 0.625 == sum(ones) / sum(row["len"] for row in given["rows"])


def test_the_total_is_the_decayed_sum_of_means() -> None:
    """decay^k times the mean over the rows with loss at step k, whatever the batches are."""
    head, teacher = make_head(), teacher_view()
    samples = [sample(4, 9), sample(6, 3, 1)]
    objective = Objective(3, 0.5, "soft_ce")
    whole = batch_of(samples, 3)
    total, sums = objective_loss(head, whole, teacher, objective, whole.counts)
    parts = [batch_of([s], 3) for s in samples]
    split = sum(objective_loss(head, p, teacher, objective, whole.counts)[0].item() for p in parts)

    expected = sum(0.5**k * float(sums.loss[k] / sums.rows[k]) for k in range(3))
    assert pytest.approx(expected, rel=1e-5) == total.item()
    assert pytest.approx(split, rel=1e-5) == total.item()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Packed with others or alone, a document's outputs are the same."""
    head, embed = make_head(), teacher_view().embed
    single, several = (
        batch_of(samples)
        for samples in ([sample(6, 3, 1)], [sample(4, 9), sample(6, 3, 1), sample(2, 5, 2)])
    )
    alone, packed = (torch.stack(head(b.rows, embed, STEPS)) for b in (single, several))
    query, step, _ = single.picks.unbind(1)  # rows past the end carry no loss

    torch.testing.assert_close(
        alone[step, query], packed[:, several.owner == 1][step, query], rtol=1e-5, atol=1e-6
    )


def test_the_first_choice_is_found_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunked over the vocabulary, the target's most likely ids are those of the whole product."""
    monkeypatch.setattr("eagled.train.losses._CHUNK_VALUES", 64)
    ends = target_ends()
    y = torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(2))

    assert torch.equal((y @ ends.head.t()).argmax(-1), first_choice(y, ends.head))


def test_chunks_of_rows_do_not_change_loss_or_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows at a time or all at once: the same."""
    found = []
    for size in (1 << 20, 2 * DRAFT_VOCAB):
        monkeypatch.setattr("eagled.train.losses._CHUNK_VALUES", size)
        head, batch = make_head(), batch_of([sample(4, 9)])
        total, _ = objective_loss(head, batch, teacher_view(), Objective(4), batch.counts)
        total.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        found.append([total.detach(), *(p.grad for p in head.parameters())])

    for a, b in zip(*found, strict=True):
        assert a is not None
        assert b is not None
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
