"""Logits, losses and gradients equal those of an independent implementation, speculators 0.9.0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagled.train.model import DraftHead
from eagled.train.objective import Objective, objective_loss
from eagled.train.rows import Batch
from tests.unit.train.kit import (
    DECAY,
    STEPS,
    VOCAB,
    batch_of,
    make_head,
    sample,
    shifted_inputs,
    teacher_view,
)

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "oracle" / "speculators_eagle3.py"
FOLDER = Path(os.environ.get("EAGLED_ORACLE", ROOT / ".oracle-venv"))
pytestmark = pytest.mark.skipif(
    not (FOLDER / "speculators").is_dir(), reason="speculators is not there: `make oracle`"
)
# prompts of at least K tokens, so that no row of one document meets a supervised token of the next:
# speculators shifts over the packed row and would count such rows
SAMPLES = [sample(6, 9, 0), sample(11, 5, 1), sample(5, 14, 2)]
TOLERANCE = 2e-5


def run_oracle(folder: Path, head: DraftHead, **config: object) -> dict[str, Tensor]:
    """Return what speculators gives for these weights."""
    teacher, g = teacher_view(), head.geometry
    llama = {
        "hidden_size": g.hidden_size, "intermediate_size": g.intermediate_size,
        "num_hidden_layers": 1, "num_attention_heads": g.n_heads, "vocab_size": VOCAB,
        "num_key_value_heads": g.n_kv_heads, "head_dim": g.head_dim, "pad_token_id": None,
        "rms_norm_eps": g.rms_norm_eps, "max_position_embeddings": g.max_positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": g.rope["rope_theta"]},
    }  # fmt: skip
    settings = {"llama": llama, "steps": STEPS, "decay": DECAY, "loss": "kl_div", **config}
    weights = {f"w.{k}": v.detach() for k, v in head.state_dict().items()}
    ends = {"embed": teacher.embed, "teacher_head": teacher.head}
    given, result = folder / "given.safetensors", folder / "result.safetensors"
    save_file(
        {k: v.contiguous() for k, v in {**weights, **ends, **shifted_inputs(SAMPLES)}.items()},
        given,
        metadata={"config": json.dumps(settings)},
    )
    environment = {
        **os.environ, "PYTHONPATH": str(FOLDER), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(given), str(result)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr[-3000:]
    return dict(load_file(result))


def our_logits(head: DraftHead, batch: Batch) -> Tensor:
    """Return logits [K, Q, Vd]."""
    with torch.no_grad():
        return torch.stack([head.lm_head(h) for h in head(batch.rows, teacher_view().embed, STEPS)])


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """Return what speculators gives for the toy head."""
    return run_oracle(tmp_path_factory.mktemp("oracle"), make_head())


def difference(head: DraftHead, batch: Batch, oracle: dict[str, Tensor]) -> float:
    """Return the largest difference of a logit that carries loss."""
    ours, theirs = our_logits(head, batch), oracle["logits"][:, batch.rows.active]
    query, step, _ = batch.picks.unbind(1)
    return float((ours[step, query] - theirs[step, query]).abs().max())


def test_logits_are_equal_at_all_steps(oracle: dict[str, Tensor]) -> None:
    """Every logit that carries loss, of three packed documents and four steps, is theirs."""
    batch = batch_of(SAMPLES)

    assert sorted(set(batch.picks[:, 1].tolist())) == list(range(STEPS))
    assert difference(make_head(), batch, oracle) < TOLERANCE


def test_losses_are_equal_at_all_steps(oracle: dict[str, Tensor]) -> None:
    """Each step's decayed loss, and their sum, are theirs; soft cross-entropy differs in value."""
    head, batch, teacher = make_head(), batch_of(SAMPLES), teacher_view()
    total, sums = objective_loss(head, batch, teacher, Objective(STEPS, DECAY, "kl"), batch.counts)
    each = sums.loss / sums.rows * DECAY ** torch.arange(STEPS)

    torch.testing.assert_close(each.float(), oracle["losses"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(total.detach(), oracle["loss"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", ["kl", "soft_ce"])
def test_gradients_are_equal(oracle: dict[str, Tensor], loss: str) -> None:
    """Every weight's gradient is theirs, and the two losses have the same one."""
    head, batch = make_head(), batch_of(SAMPLES)
    objective = Objective(STEPS, DECAY, loss)  # type: ignore[arg-type]  # parametrized
    total, _ = objective_loss(head, batch, teacher_view(), objective, batch.counts)
    total.backward()  # type: ignore[no-untyped-call]  # torch does not type it
    ours = {f"grad.{name}": p.grad for name, p in head.named_parameters()}

    assert {k for k in oracle if k.startswith("grad.")} == set(ours)
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, oracle[name], rtol=1e-4, atol=2e-5)


def _swap_layers(head: DraftHead, batch: Batch) -> tuple[DraftHead, Batch]:
    low, mid, high = batch.rows.aux.chunk(3, -1)
    batch.rows.aux.copy_(torch.cat([mid, low, high], -1))
    return head, batch


def _hidden_first(head: DraftHead, batch: Batch) -> tuple[DraftHead, Batch]:
    attention = head.midlayer.self_attn
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight.data = projection.weight.data.roll(head.geometry.hidden_size, 1)
    return head, batch


def _tokens_not_moved(head: DraftHead, batch: Batch) -> tuple[DraftHead, Batch]:
    batch.rows.tokens.copy_(batch.rows.tokens.roll(1))
    return head, batch


def _other_rope(_: DraftHead, batch: Batch) -> tuple[DraftHead, Batch]:
    return make_head(rope={"rope_theta": 50_000.0}), batch


MISTAKES = {
    "wrong layer order": _swap_layers,
    "hidden state before the embedding": _hidden_first,
    "tokens not moved": _tokens_not_moved,
    "another rotary base": _other_rope,
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_in_the_model_shows(
    oracle: dict[str, Tensor],
    mistake: Callable[[DraftHead, Batch], tuple[DraftHead, Batch]],
) -> None:
    """The comparison of logits fails for each way of wiring the head wrongly."""
    head, batch = mistake(make_head(), batch_of(SAMPLES))

    assert difference(head, batch, oracle) > 100 * TOLERANCE


def _losses(batch: Batch, objective: Objective) -> Tensor:
    total, _ = objective_loss(make_head(), batch, teacher_view(), objective, batch.counts)
    return total.detach()


def _mask_not_moved() -> Batch:
    samples = [dict(s) for s in SAMPLES]
    for s in samples:
        s["loss_mask"] = s["loss_mask"].roll(1)  # type: ignore[attr-defined]  # a tensor
    return batch_of(samples)  # type: ignore[arg-type]  # still the keys of a sample


def _norm_twice() -> Batch:
    samples = [dict(s) for s in SAMPLES]
    for s in samples:
        last: Tensor = s["last"]  # type: ignore[assignment]  # a tensor
        s["last"] = 3.0 * last  # before the final norm, states are not of unit size
    return batch_of(samples)  # type: ignore[arg-type]  # still the keys of a sample


@pytest.mark.parametrize(
    ("batch", "decay"),
    [(_mask_not_moved, DECAY), (_norm_twice, DECAY), (lambda: batch_of(SAMPLES), 1.0)],
    ids=["shifted mask", "final states before the norm", "decay ignored"],
)
def test_a_mistake_in_the_loss_shows(
    oracle: dict[str, Tensor], batch: Callable[[], Batch], decay: float
) -> None:
    """The comparison of losses fails for each way of feeding it wrongly."""
    ours = _losses(batch(), Objective(STEPS, decay, "kl"))

    assert abs(float(ours - oracle["loss"])) > 1e-3


def test_a_mapping_read_as_absolute_shows(oracle: dict[str, Tensor]) -> None:
    """Teacher rows selected by d2t as if it held ids give another loss."""
    teacher = teacher_view()
    offsets = teacher.ids - torch.arange(len(teacher.ids))
    whole = torch.randn(VOCAB, teacher.head.shape[1], generator=torch.Generator().manual_seed(3))
    whole[teacher.ids] = teacher.head
    wrong = type(teacher)(teacher.embed, whole[offsets], offsets)
    batch = batch_of(SAMPLES)
    total, _ = objective_loss(
        make_head(), batch, wrong, Objective(STEPS, DECAY, "kl"), batch.counts
    )

    assert abs(float(total.detach() - oracle["loss"])) > 1e-3


def test_the_residual_is_the_state_before_its_norm(tmp_path: Path) -> None:
    """Speculators' own default, the normed state as residual, is another model than ours."""
    other = run_oracle(tmp_path, make_head(), norm_before_residual=True)

    assert difference(make_head(), batch_of(SAMPLES), other) > 100 * TOLERANCE
