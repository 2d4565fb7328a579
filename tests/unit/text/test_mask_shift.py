"""A mask made here carries loss where the trainer predicts the answer's tokens."""

from __future__ import annotations

import json

import pytest
import torch

from eagled.train.rows import shifted
from tests.faults import fault_file


@pytest.mark.fault("F30")
def test_ids_targets_and_mask_move_together() -> None:
    """Position p predicts the token behind it; the last one predicts nothing."""
    case = json.loads(fault_file("mask/shift.json").read_text(encoding="utf-8"))
    ids, mask = (torch.tensor(case[key]) for key in ("input_ids", "loss_mask"))
    targets, supervised = shifted(ids, mask, case["target_shift"])

    assert [2, 3, 4] == supervised.nonzero().flatten().tolist()
    assert [13, 14, 15] == targets[supervised].tolist()
    assert not supervised[-1]
