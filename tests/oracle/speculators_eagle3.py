"""Run speculators' own EAGLE-3 model on given weights and data; a program, not a test.

    PYTHONPATH=<folder with speculators> python speculators_eagle3.py INPUT OUTPUT

INPUT is a safetensors file: the draft's weights as `w.<name>`, `embed`, `teacher_head` (rows of
the draft vocabulary), `aux` [T, 3D], `tokens`, `y`, `mask`, `documents`, `positions` [T], all
shifted as its trainer shifts them; metadata `config` (JSON). OUTPUT gets `logits` [K, T, Vd],
`losses` [K]
(times decay^k, as it reports them), `loss`, and `grad.<name>` of the weights.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig  # type: ignore[import-not-found]  # as above
from speculators.losses import resolve_loss_config  # type: ignore[import-not-found]  # only in the oracle's folder
from speculators.models.eagle3 import Eagle3SpeculatorConfig  # type: ignore[import-not-found]  # as above
from speculators.models.eagle3.core import Eagle3DraftModel  # type: ignore[import-not-found]  # as above
from speculators.proposals.greedy import (  # type: ignore[import-not-found]  # as above
    GreedyTokenProposalConfig,
)
from torch import Tensor, nn
from transformers import LlamaConfig


def build(given: dict[str, Tensor], config: dict[str, Any]) -> Any:
    """Return speculators' model with the given weights."""
    layer = LlamaConfig(**config["llama"], attn_implementation="eager")
    model = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=layer,
            draft_vocab_size=len(given["teacher_head"]),
            norm_before_residual=config.get("norm_before_residual", False),
            eagle_aux_hidden_state_layer_ids=[2, 4, 5],
            speculators_config=SpeculatorsConfig(
                algorithm="eagle3",
                proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=config["steps"])],
                default_proposal_method="greedy",
                verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
            ),
        )
    ).float()
    weights = {
        k[2:].replace("midlayer.", "layers.0."): v for k, v in given.items() if k[:2] == "w."
    }
    weights["embed_tokens.weight"] = given["embed"]
    weights["verifier_lm_head.weight"] = given["teacher_head"]
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"d2t", "t2d", "verifier_norm.weight"}, missing
    model.verifier_norm = nn.Identity()  # the states come after the target's norm
    model.lm_head.weight.requires_grad_(True)  # noqa: FBT003 - torch's name for it
    return model


def main(source: str, result: str) -> None:
    """Run the model and write what it gives."""
    with safe_open(source, framework="pt") as file:
        given = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        config = json.loads(file.metadata()["config"])
    model = build(given, config)
    logits: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda *call: logits.append(call[2].detach()[0]))
    _, loss, metrics = model(
        hidden_states=given["aux"][None],
        input_ids=given["tokens"][None],
        document_ids=given["documents"][None],
        loss_mask=given["mask"][None],
        position_ids=given["positions"][None],
        verifier_last_hidden_states=given["y"][None],
        ttt_steps=config["steps"],
        ttt_step_loss_decay=config["decay"],
        loss_config=resolve_loss_config(config["loss"], "eager"),
    )
    loss.backward()
    out = {
        "logits": torch.stack(logits),
        "losses": torch.stack([metrics[f"loss_{k}_sum"] for k in range(config["steps"])]),
        "loss": loss.detach(),
    }
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            out[f"grad.{name.replace('layers.0.', 'midlayer.')}"] = parameter.grad
    save_file({k: v.contiguous() for k, v in out.items()}, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
