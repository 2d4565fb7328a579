"""Tokens a second and peak memory of one training step, against speculators' model and optimiser.

    python -m bench.train check                    # the fused attention against the written-out one
    python -m bench.train measure --size 8b        # both, one after the other, each in a process
    PYTHONPATH=.oracle-venv                        # where speculators is, see `make oracle`

Both get the same packed documents (random states, prompts of a third), the same K, widths and draft
vocabulary, float32 weights with bfloat16 products, on one GPU, data already in memory. The
reference is speculators 0.9.0 as its trainer runs it there: compiled forward with FlexAttention,
fused KL loss, its optimiser (Muon with AdamW; --theirs-adamw for AdamW alone) and its frozen output
head, with its three norms off so that both compute the same function. Loading of files is left out
on both sides. The last line of stdout is JSON; `ratio` is ours / theirs, the bar is 1.0.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from eagled.config import TrainConfig
from eagled.shards.reader import Sample
from eagled.train.attention import Spans, attend_flash, attend_plain
from eagled.train.fused import compile_fused
from eagled.train.geometry import Geometry
from eagled.train.model import DraftHead
from eagled.train.objective import Objective, TeacherView, objective_loss
from eagled.train.rows import Batch, align, pack
from eagled.train.trainer import make_optimizer

BAR = 1.0
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden": 64, "inner": 128, "heads": 4, "kv": 2, "dim": 16, "vocab": 512, "vd": 256},
    "1b": {"hidden": 2048, "inner": 8192, "heads": 32, "kv": 8, "dim": 64, "vocab": 128_256,
           "vd": 32_000},
    "8b": {"hidden": 4096, "inner": 14_336, "heads": 32, "kv": 8, "dim": 128, "vocab": 128_256,
           "vd": 32_000},
    "kimi": {"hidden": 7168, "inner": 18_432, "heads": 64, "kv": 64, "dim": 128,
             "vocab": 163_840, "vd": 32_000},
}  # fmt: skip


def geometry(size: str) -> Geometry:
    """Return the geometry of a draft of this size."""
    s = SIZES[size]
    return Geometry(
        hidden_size=s["hidden"], target_hidden_size=s["hidden"], intermediate_size=s["inner"],
        n_heads=s["heads"], n_kv_heads=s["kv"], head_dim=s["dim"], vocab_size=s["vocab"],
        draft_vocab_size=s["vd"], rms_norm_eps=1e-5, max_positions=8192, layers=(2, 16, 29),
        target_layers=32, target_type="llama", rope={"rope_theta": 500_000.0},
    )  # fmt: skip


def documents(g: Geometry, tokens: int, length: int, generator: torch.Generator) -> list[Sample]:
    """Return so many tokens of samples, each a third prompt."""
    result = []
    for number in range(max(1, tokens // length)):
        mask = torch.arange(length) >= length // 3
        positions = mask[1:].nonzero()[:, 0]
        result.append(
            Sample(
                uid=str(number), dataset="random", skip=0, loss_mask=mask,
                input_ids=torch.randint(0, g.vocab_size, (length,), generator=generator),
                aux=torch.randn(length - 1, 3 * g.hidden_size, generator=generator).bfloat16(),
                last=torch.randn(len(positions), g.hidden_size, generator=generator).bfloat16(),
                last_positions=positions,
            )
        )  # fmt: skip
    return result


def check() -> dict[str, Any]:
    """Compare the fused attention on the GPU with the written-out one in float32."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for heads, kv, width in ((4, 4, 64), (32, 8, 128), (16, 16, 128)):
        spans = Spans.of_lengths([200, 77, 512], [130, 77, 300])
        rows, queries = 789, 507
        given = [
            torch.randn(*shape, generator=generator).cuda().requires_grad_()
            for shape in (
                (queries, heads, width), (rows, kv, width), (rows, kv, width),
                (queries, 3, kv, width), (queries, 3, kv, width),
            )
        ]  # fmt: skip
        q, k, v, own_k, own_v = given
        plain = attend_plain(q, k, v, (own_k, own_v), spans)
        half = [t.detach().bfloat16().requires_grad_() for t in given]
        hq, hk, hv, h_own_k, h_own_v = half
        fast = attend_flash(hq, hk, hv, (h_own_k, h_own_v), spans.to(q.device))
        way = torch.randn(plain.shape, generator=generator).cuda()
        ours = [fast, *torch.autograd.grad(fast, half, way.bfloat16())]
        theirs = [plain, *torch.autograd.grad(plain, given, way)]
        worst = max(
            [
                worst,
                *(
                    float((a.float() - b).norm() / b.norm())
                    for a, b in zip(ours, theirs, strict=True)
                ),
            ]
        )
    assert worst < 0.02, worst  # bfloat16 keeps eight bits
    return {"largest_relative_difference": worst}


def timed(step: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return seconds a step (median) and peak memory in GB, after two steps to warm up."""
    on_gpu = torch.cuda.is_available()
    for _ in range(3):
        step()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        step()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else 0.0
    return sorted(seconds)[len(seconds) // 2], peak


def ours(args: argparse.Namespace) -> tuple[float, float]:
    """Measure our step."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    g, generator = geometry(args.size), torch.Generator().manual_seed(1)
    head = DraftHead(g).to(device)
    ids = torch.arange(0, g.vocab_size, g.vocab_size // g.draft_vocab_size)[: g.draft_vocab_size]
    embed = torch.randn(g.vocab_size, g.hidden_size, generator=generator).to(device, dtype)
    teacher = TeacherView(embed, embed[ids.to(device)] * 0.02, ids.to(device))
    samples = documents(g, args.tokens, args.length, generator)
    aligned = [d for d in map(align, samples) if d is not None]
    batch: Batch = pack(aligned, args.steps).to(device, dtype)
    compile_fused(device.type == "cuda" and not args.eager)
    optimizer = make_optimizer(head, TrainConfig(), fused=device.type == "cuda")
    objective = Objective(args.steps, 0.8, "kl")

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss, _ = objective_loss(head, batch, teacher, objective, batch.counts)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return timed(step, args.repeats)


def theirs(args: argparse.Namespace) -> tuple[float, float]:
    """Measure speculators' step, as its trainer does it."""
    from speculators.config import (  # type: ignore[import-not-found]  # in the oracle's folder
        SpeculatorsConfig,
        VerifierConfig,
    )
    from speculators.losses import resolve_loss_config  # type: ignore[import-not-found]  # as above
    from speculators.models.eagle3 import Eagle3SpeculatorConfig  # type: ignore[import-not-found]  # as above
    from speculators.models.eagle3.core import Eagle3DraftModel  # type: ignore[import-not-found]  # as above
    from speculators.proposals.greedy import (  # type: ignore[import-not-found]  # as above
        GreedyTokenProposalConfig,
    )
    from transformers import LlamaConfig

    on_gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    g, generator = geometry(args.size), torch.Generator().manual_seed(1)
    layer = LlamaConfig(
        hidden_size=g.hidden_size, intermediate_size=g.intermediate_size, num_hidden_layers=1,
        num_attention_heads=g.n_heads, num_key_value_heads=g.n_kv_heads, head_dim=g.head_dim,
        vocab_size=g.vocab_size, rms_norm_eps=g.rms_norm_eps, max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        attn_implementation="simple_flex_attention" if on_gpu else "eager",
    )  # fmt: skip
    proposal = GreedyTokenProposalConfig(speculative_tokens=args.steps)
    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    config = SpeculatorsConfig(
        algorithm="eagle3", proposal_methods=[proposal], default_proposal_method="greedy",
        verifier=verifier,
    )  # fmt: skip
    model = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=layer, draft_vocab_size=g.draft_vocab_size,
            norm_before_residual=False, eagle_aux_hidden_state_layer_ids=list(g.layers),
            speculators_config=config,
        )
    ).float()  # fmt: skip
    for weights in (model.embed_tokens, model.lm_head, model.verifier_lm_head):
        torch.nn.init.normal_(weights.weight, std=0.02)
    model.to(device).train()
    parts = documents(g, args.tokens, args.length, generator)
    batch = _their_batch(parts, g, args.tokens, device, dtype)
    optimizers = _their_optimizers(model, adamw=args.theirs_adamw)
    losses = resolve_loss_config("kl_div", args.theirs_loss if on_gpu else "eager")

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu):
            _, loss, _ = model(
                **batch, ttt_steps=args.steps, ttt_step_loss_decay=0.8, loss_config=losses
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return timed(step, args.repeats)


def _their_optimizers(model: Any, *, adamw: bool) -> list[torch.optim.Optimizer]:  # noqa: ANN401 - foreign class
    from speculators.train.optimizers import (  # type: ignore[import-not-found]  # as above
        build_optimizers,
    )

    settings = argparse.Namespace(
        optimizer="adamw" if adamw else "muon", lr=1e-4, weight_decay=0.01, muon_lr=1e-3,
        muon_momentum=0.95, muon_weight_decay=0.01, muon_ns_steps=5, muon_adjust_lr_fn=None,
    )  # fmt: skip
    return list(build_optimizers(model, settings))


def _their_batch(
    parts: list[Sample], g: Geometry, total: int, device: str, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return the samples as its collation lays them out: shifted by one, padded to `total`."""
    ids = torch.zeros(total, dtype=torch.int64)
    aux, last = torch.zeros(total, 3 * g.hidden_size), torch.zeros(total, g.hidden_size)
    mask = torch.zeros(total, dtype=torch.bool)
    owner, position = torch.full((total,), -1), torch.zeros(total, dtype=torch.int64)
    start = 0
    for number, s in enumerate(parts):
        n = len(s["input_ids"]) - 1
        rows = slice(start, start + n)
        ids[rows], aux[rows], mask[rows] = s["input_ids"][1:], s["aux"].float(), s["loss_mask"][1:]
        last[start + s["last_positions"][1:] - 1] = s["last"][1:].float()
        owner[rows], position[rows] = number, torch.arange(1, n + 1)
        start += n
    return {
        "hidden_states": aux.to(device, dtype)[None],
        "verifier_last_hidden_states": last.to(device, dtype)[None],
        "input_ids": ids.to(device)[None], "loss_mask": mask.to(device)[None],
        "document_ids": owner.to(device)[None], "position_ids": position.to(device)[None],
    }  # fmt: skip


def measure(args: argparse.Namespace, rest: list[str]) -> dict[str, Any]:
    """Run each side in a process of its own and compare."""
    found: dict[str, Any] = {"size": args.size, "steps": args.steps, "tokens": args.tokens}
    for side in ("ours", "theirs"):
        command = [sys.executable, "-m", "bench.train", side, *rest]
        print("$", " ".join(command), flush=True)
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[side] = json.loads(done.stdout.splitlines()[-1])
        print(found[side], flush=True)
    found["reference"] = "speculators 0.9.0"
    found["ratio"] = found["ours"]["tok_per_s"] / found["theirs"]["tok_per_s"]
    return found


def main() -> int:
    """Measure and print; return 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("check", "measure", "ours", "theirs"))
    parser.add_argument("--size", choices=tuple(SIZES), default="8b")
    parser.add_argument("--steps", type=int, default=5, help="K")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of a packed batch")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a document")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--eager", action="store_true", help="ours without torch.compile")
    parser.add_argument("--theirs-adamw", action="store_true")
    parser.add_argument("--theirs-loss", choices=("fused", "eager"), default="fused")
    args = parser.parse_args()
    if args.what in ("check", "measure"):
        result = check() if args.what == "check" else measure(args, sys.argv[2:])
        print(json.dumps(result))
        return 0 if result.get("ratio", BAR) >= BAR else 1
    seconds, peak = ours(args) if args.what == "ours" else theirs(args)
    rows = args.tokens // args.length * args.length
    print(json.dumps({"tok_per_s": rows / seconds, "step_s": seconds, "peak_gb": peak}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
