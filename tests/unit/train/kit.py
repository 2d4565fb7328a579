"""Small drafts, samples and batches with reproducible random values, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from eagled.config import TrainConfig
from eagled.shards.reader import Sample
from eagled.train.data import MemorySource, usable
from eagled.train.feed import CorpusFeed, HeldOut
from eagled.train.geometry import Geometry
from eagled.train.metrics import read_metrics
from eagled.train.model import DraftHead
from eagled.train.objective import TeacherView
from eagled.train.rows import Batch, align, pack
from eagled.train.teacher import Teacher
from eagled.train.team import Team
from eagled.train.trainer import RunSpec, Trainer
from eagled.train.vocab import DraftVocab

VOCAB, DRAFT_VOCAB, WIDTH = 96, 40, 32
STEPS, DECAY = 4, 0.8


def geometry(**changes: object) -> Geometry:
    """Return a toy geometry: 4 heads of 8, 2 key-value heads, three aux layers."""
    values: dict[str, object] = {
        "hidden_size": WIDTH, "target_hidden_size": WIDTH, "intermediate_size": 48, "n_heads": 4,
        "n_kv_heads": 2, "head_dim": 8, "vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB,
        "rms_norm_eps": 1e-5, "max_positions": 512, "layers": (2, 4, 5), "target_layers": 8,
        "target_type": "llama", "rope": {"rope_theta": 10_000.0},
    }  # fmt: skip
    return Geometry.from_dict(values | changes)


def make_head(seed: int = 0, **changes: object) -> DraftHead:
    """Return a head whose every weight, norms included, is random."""
    head = DraftHead(geometry(**changes))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.3 * noise if "norm" in name else 0.15 * noise)
    return head


def teacher_view(seed: int = 1) -> TeacherView:
    """Return random ends of a target, and a draft vocabulary of every second id or so."""
    generator = torch.Generator().manual_seed(seed)
    embed = torch.randn(VOCAB, WIDTH, generator=generator)
    ids = torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB].sort().values
    return TeacherView(embed, 0.5 * torch.randn(DRAFT_VOCAB, WIDTH, generator=generator), ids)


def sample(
    prompt: int, answer: int, seed: int = 0, *, dtype: torch.dtype = torch.float32
) -> Sample:
    """Return a sample of so many prompt and answer tokens."""
    generator = torch.Generator().manual_seed(1000 + seed)
    n = prompt + answer
    mask = torch.arange(n) >= prompt
    positions = mask[1:].nonzero()[:, 0]  # the layout of shards: rows whose target is supervised
    return Sample(
        uid=f"{seed:032x}",
        dataset=f"set{seed % 2}",
        skip=0,
        input_ids=torch.randint(0, VOCAB, (n,), generator=generator),
        loss_mask=mask,
        aux=torch.randn(n - 1, 3 * WIDTH, generator=generator).to(dtype),
        last=torch.randn(len(positions), WIDTH, generator=generator).to(dtype),
        last_positions=positions,
    )


def batch_of(samples: Sequence[Sample], steps: int = STEPS) -> Batch:
    """Return samples as one batch."""
    documents = [align(s) for s in samples]
    return pack([d for d in documents if d is not None], steps)


def shifted_inputs(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Return samples as an independent trainer lays them out: (x_{i+1}, a_i, y_{i+1}, mask_{i+1}).

    Positions start at 1 in each document. Final states that are not stored are zero, unmasked.
    """
    parts = []
    for number, s in enumerate(samples):
        n = len(s["input_ids"])
        y = torch.zeros(n, WIDTH)
        y[s["last_positions"]] = s["last"].float()
        stored = torch.zeros(n, dtype=torch.bool)
        stored[s["last_positions"]] = True
        mask = s["loss_mask"] & stored
        parts.append(
            (s["input_ids"][1:], s["aux"], y[1:], mask[1:], torch.full((n - 1,), number),
             torch.arange(1, n))
        )  # fmt: skip
    names = ("tokens", "aux", "y", "mask", "documents", "positions")
    return {n: torch.cat(list(p)) for n, p in zip(names, zip(*parts, strict=True), strict=True)}


def target_ends(seed: int = 1) -> Teacher:
    """Return the whole ends that `teacher_view` is a part of."""
    view = teacher_view(seed)
    head = 0.5 * torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(seed + 50))
    head[view.ids] = view.head
    return Teacher(view.embed, head, torch.ones(WIDTH))


def vocabulary() -> DraftVocab:
    """Return the draft vocabulary of `teacher_view`."""
    return DraftVocab.of_ids(teacher_view().ids.numpy(), VOCAB)


def learnable(count: int, seed: int = 0) -> list[Sample]:
    """Return samples whose next token can be told from the states and the token before it."""
    ends = target_ends()
    known = teacher_view().ids  # answers stay within the draft vocabulary
    table = torch.arange(VOCAB)
    table[known] = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(5))]
    result = []
    for number in range(count):
        made = sample(3 + number % 4, 8 + number % 5, seed + number)
        ids = known[made["input_ids"] % len(known)]
        for i in range(1, len(ids)):
            ids[i] = table[ids[i - 1]]
        made["input_ids"] = ids
        made["aux"] = ends.embed[ids[:-1]].repeat(1, 3)
        follows = ids[made["last_positions"] + 1]
        made["last"] = 6.0 * ends.head[follows] / ends.head[follows].norm(dim=-1, keepdim=True)
        result.append(made)
    return result


def spec(folder: Path, *, facts: dict[str, object] | None = None, **settings: object) -> RunSpec:
    """Return a short run on the CPU."""
    config = TrainConfig.model_validate(
        {
            "device": "cpu", "ttt_steps": 3, "epochs": 4, "batch_tokens": 48, "lr": 1e-2,
            "checkpoint_every": 5, **settings,
        }
    )  # fmt: skip
    return RunSpec(folder, config, 3, geometry(), vocabulary(), facts or {"corpus": "c1"})


def trainer(run: RunSpec, samples: Sequence[Sample], held: Sequence[Sample] = ()) -> Trainer:
    """Return a trainer that is alone on the CPU."""
    team = Team(0, 1, torch.device("cpu"))
    held_out = None
    if held:
        source = MemorySource(held)
        held_out = HeldOut(source, usable(source), lambda n: "short" if n < 5 else "long")
    feed = CorpusFeed(
        MemorySource(samples), run.config, seed=run.seed, team=team, held_out=held_out
    )
    return Trainer(run, team, target_ends(), feed)


def lines(folder: Path) -> list[dict[str, object]]:
    """Return the metrics of a run without its times."""
    return [{k: v for k, v in line.items() if k != "timing"} for line in read_metrics(folder)]
