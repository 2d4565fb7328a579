"""The training loop: from the steps of a feed to checkpoints, metrics and a finished draft.

Guarantee: the losses of a run depend on its settings, data and number of processes, not on where it
was stopped: after a kill at any moment it goes on from its last checkpoint, cuts metrics.jsonl back
to it, and on one CPU gives the same bits as a run that was never stopped. A checkpoint of another
vocabulary, corpus, target or setting is refused with both values.
Price: what was done since the last checkpoint is done again.

The weights are float32; on a GPU, matrix products are done in bfloat16.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagled.artifacts import require_same
from eagled.config import TrainConfig
from eagled.errors import ArtifactError
from eagled.train.accept import Estimate, estimate
from eagled.train.checkpoint import (
    Checkpoint,
    checkpoints,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
)
from eagled.train.feed import Feed
from eagled.train.fused import compile_fused
from eagled.train.geometry import Geometry
from eagled.train.metrics import Metrics, StepRecord
from eagled.train.model import DraftHead
from eagled.train.objective import Objective, StepSums, TeacherView, objective_loss
from eagled.train.rows import Batch
from eagled.train.schedule import Schedule
from eagled.train.start import new_head, state_size
from eagled.train.teacher import Teacher
from eagled.train.team import Team
from eagled.train.vocab import DraftVocab

_BETAS = (0.9, 0.95)
_NOT_OF_THE_RESULT = {"device", "threads", "compile", "checkpoint_every"}


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What a run is made of, apart from its data.

    Attributes:
        folder: where checkpoints and metrics go.
        config: settings.
        seed: of weights and order.
        geometry: shape of the draft.
        vocab: its vocabulary.
        facts: identity of target and data; a checkpoint of others is refused.
    """

    folder: Path
    config: TrainConfig
    seed: int
    geometry: Geometry
    vocab: DraftVocab
    facts: Mapping[str, Any]

    @property
    def objective(self) -> Objective:
        """How the K steps add up."""
        return Objective(self.config.ttt_steps, self.config.decay, self.config.loss)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How a run ended.

    Attributes:
        step: optimiser steps done.
        total: optimiser steps planned.
        before: estimate of the draft before its first step, None without held-out samples.
        after: estimate at the end.
        left_out: training samples without a supervised row.
        over: whether the data ended, maybe before all planned steps.
    """

    step: int
    total: int
    before: Estimate | None
    after: Estimate | None
    left_out: int
    over: bool = False

    @property
    def finished(self) -> bool:
        """Whether all planned steps were done, or all that the data gives."""
        return self.over or self.step == self.total


class Trainer:
    """One process of a run."""

    def __init__(
        self,
        spec: RunSpec,
        team: Team,
        teacher: Teacher,
        feed: Feed,
        report: Callable[[StepRecord], None] | None = None,
    ) -> None:
        """Make the head, or read it from the last checkpoint.

        Args:
            spec: the run.
            team: the processes.
            teacher: the target's ends, on the CPU.
            feed: its steps.
            report: called with every step by the leading process.

        Raises:
            ArtifactError: if a checkpoint is of another run.
        """
        c = spec.config
        self.spec, self.team, self.feed = spec, team, feed
        self._report = report or (lambda _: None)
        self._pending: _Pending | None = None
        self.stop = False
        self.schedule = Schedule(c.lr, feed.total, round(c.warmup * feed.total), c.lr_floor)
        ids = torch.from_numpy(spec.vocab.ids.copy())
        fresh = not checkpoints(spec.folder / "checkpoints")
        size = state_size(feed.first(), spec.geometry.n_aux) if fresh else 1.0
        self.head = new_head(spec.geometry, teacher, ids, start=c.start, seed=spec.seed, size=size)
        self.head.to(team.device)
        on_gpu = team.device.type == "cuda"
        self._dtype = torch.bfloat16 if on_gpu else torch.float32
        compile_fused(on_gpu and c.compile)
        self.teacher = teacher_view(teacher, ids, team.device, self._dtype)
        self.optimizer = make_optimizer(self.head, c, fused=on_gpu)
        self.mean = _copies(self.head) if c.ema else {}
        self.metrics = Metrics(spec.folder) if team.leads else None
        self.step = self._resume()

    def run(self) -> TrainResult:
        """Train to the end, or until `stop` is set; the last checkpoint is written either way."""
        before = self._estimate() if self.step == 0 else None
        if before is not None and self.metrics:
            self.metrics.estimate(0, before)
        after = self._loop()
        total, over = self.feed.total, self.feed.over
        if (over or self.step == total) and after is None:
            after = self._estimate()
            if over and after is not None and self.metrics and not self.metrics.has(self.step):
                self.metrics.estimate(self.step, after)
        self._save()
        self.team.wait()
        return TrainResult(self.step, total, before, after, self.feed.counts().left_out, over)

    def _loop(self) -> Estimate | None:
        """Do the steps that are left; return the estimate of the last one if it was made."""
        latest, every = None, self.spec.config.checkpoint_every
        with contextlib.closing(self.feed.steps(self)) as steps:
            for number, batches in steps:
                current = self._optimise(number, batches)
                self._log()  # a step late, so that a GPU never waits for the log
                self._pending, self.step = current, number + 1
                latest = None
                stopping = self.stopping()
                if self._estimate_due(self.step):
                    self._log()
                    latest = self._estimate()
                    if latest is not None and self.metrics:
                        self.metrics.estimate(self.step, latest)
                if stopping:
                    break
                if self.step % every == 0 or self.feed.wants_checkpoint():
                    self.checkpoint()
        self._log()
        return latest

    def stopping(self) -> bool:
        """Return whether any process was asked to stop."""
        return self.team.any(self.stop)

    def checkpoint(self) -> None:
        """Write a checkpoint of the steps done, their log lines included."""
        self._log()
        self._save()

    def _optimise(self, number: int, batches: Sequence[Batch]) -> _Pending:
        """Do one optimiser step."""
        started = time.monotonic()
        totals = sum((b.counts for b in batches), torch.zeros(self.spec.objective.steps))
        totals = self.team.add_up(totals).cpu()
        sums = torch.zeros(6, self.spec.objective.steps, dtype=torch.float64)
        sums = sums.to(self.team.device)
        loss = torch.zeros((), device=self.team.device)
        for batch in batches:
            moved = batch.to(self.team.device, self._dtype)
            with self._autocast():
                part, seen = objective_loss(
                    self.head, moved, self.teacher, self.spec.objective, totals
                )
            part.backward()  # type: ignore[no-untyped-call]  # torch does not type it
            loss += part.detach()
            sums += seen.stacked().to(sums.device)
        parameters = list(self.head.parameters())
        self.team.add_up_gradients(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.spec.config.clip)
        rate = self.schedule.rate(number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._follow()
        rows = sum(b.n_rows for b in batches)
        return _Pending(number + 1, rate, loss, norm, sums, rows, started)

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the running mean of the weights."""
        if self.mean:
            decay = self.spec.config.ema
            for name, weight in self.head.named_parameters():
                self.mean[name].lerp_(weight.detach(), 1 - decay)

    def _log(self) -> None:
        """Write the line of the step that has none yet."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        shared = torch.cat([pending.sums.flatten(), pending.loss.double().view(1)])
        shared = self.team.add_up(torch.cat([shared, shared.new_tensor([float(pending.rows)])]))
        if self.metrics is None:
            return
        values = shared.cpu()
        k = self.spec.objective.steps
        record = StepRecord(
            step=pending.step, total=self.feed.total, epoch=self.feed.epoch_of(pending.step - 1),
            lr=pending.rate, loss=float(values[-2]), grad_norm=float(pending.norm),
            sums=StepSums.of_stacked(values[: 6 * k].view(6, k)), tokens=int(values[-1]),
            seconds=time.monotonic() - pending.started,
        )  # fmt: skip
        self.metrics.step(record)
        self._report(record)

    def _estimate_due(self, step: int) -> bool:
        every = self.spec.config.eval_every
        return step % every == 0 if every else self.feed.ends_epoch(step)

    def _estimate(self) -> Estimate | None:
        """Return the held-out estimate; only the leading process makes one, others wait."""
        result = None
        held = self.feed.held_out() if self.team.leads else None
        if held is not None:
            with self.exported_weights():
                result = estimate(
                    self.head, held.source, held.items, self.teacher,
                    steps=self.spec.config.draft_steps or self.spec.config.ttt_steps,
                    batch_tokens=self.spec.config.batch_tokens, lane_of=held.lane_of,
                    max_tokens=self.spec.config.max_tokens,
                )  # fmt: skip
        self.team.wait()
        return result

    @contextlib.contextmanager
    def exported_weights(self) -> Iterator[DraftHead]:
        """Give the head the weights that are exported: the running mean, if there is one."""
        kept = _copies(self.head) if self.mean else {}
        _assign(self.head, self.mean)
        try:
            yield self.head
        finally:
            _assign(self.head, kept)

    def _autocast(self) -> torch.autocast:
        kind = self.team.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=self._dtype == torch.bfloat16)

    def _save(self) -> None:
        if self.metrics is not None:
            self._write(self.metrics.size())
        self.feed.saved()

    def _write(self, metrics_bytes: int) -> None:
        tensors = {f"model.{k}": v.detach().cpu() for k, v in self.head.named_parameters()}
        tensors |= {f"mean.{k}": v.cpu() for k, v in self.mean.items()}
        tensors |= optimizer_tensors(self.optimizer, self._names())
        tensors |= {
            "d2t": torch.from_numpy(self.spec.vocab.d2t.copy()),
            "t2d": torch.from_numpy(self.spec.vocab.t2d.copy()),
        }
        facts = {**self._facts(), **self.feed.facts()}
        save_checkpoint(
            self.spec.folder / "checkpoints",
            Checkpoint(self.step, tensors, facts, metrics_bytes, self.feed.record()),
        )

    def _resume(self) -> int:
        """Take over the newest checkpoint; return its step, 0 if there is none."""
        found = checkpoints(self.spec.folder / "checkpoints")
        if not found:
            if self.metrics:
                self.metrics.cut(0)
            return 0
        last = load_checkpoint(found[-1])
        for key, ours in self._facts().items():
            require_same(key, ours, last.facts.get(key), where=str(found[-1]))
        if not torch.equal(last.tensors["d2t"], torch.from_numpy(self.spec.vocab.d2t.copy())):
            raise ArtifactError(f"{found[-1]} has another vocabulary than the one of this run")
        _assign(self.head, _part(last.tensors, "model."))
        for name, value in _part(last.tensors, "mean.").items():
            self.mean[name].copy_(value)
        restore_optimizer(self.optimizer, self._names(), last.tensors, last.step)
        if self.metrics:
            self.metrics.cut(last.metrics_bytes)
        return last.step

    def _facts(self) -> dict[str, Any]:
        """Return what decides the result, so that a run is only continued as itself."""
        settings = self.spec.config.model_dump(mode="json", exclude=_NOT_OF_THE_RESULT)
        return {
            **{f"train.{key}": value for key, value in settings.items()},
            "seed": self.spec.seed,
            "processes": self.team.world,
            "steps": self.feed.total,
            "geometry": self.spec.geometry.to_dict(),
            **self.spec.facts,
        }

    def _names(self) -> dict[Tensor, str]:
        return {parameter: name for name, parameter in self.head.named_parameters()}


@dataclass(frozen=True, slots=True)
class _Pending:
    """A step whose numbers may still be on their way from the GPU."""

    step: int
    rate: float
    loss: Tensor
    norm: Tensor
    sums: Tensor
    rows: int
    started: float


def teacher_view(
    teacher: Teacher, ids: Tensor, device: torch.device, dtype: torch.dtype
) -> TeacherView:
    """Return what training needs of the target's ends, on the device."""
    return TeacherView(
        teacher.embed.to(device, dtype), teacher.head[ids].to(device, dtype), ids.to(device)
    )


def make_optimizer(head: DraftHead, c: TrainConfig, *, fused: bool) -> torch.optim.AdamW:
    """Return the optimiser of a run; norms do not decay."""
    matrices = [p for p in head.parameters() if p.dim() > 1]
    scales = [p for p in head.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": c.weight_decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=c.lr, betas=_BETAS, fused=fused)


def _copies(head: DraftHead) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in head.named_parameters()}


@torch.no_grad()
def _assign(head: DraftHead, weights: Mapping[str, Tensor]) -> None:
    for name, weight in head.named_parameters():
        if name in weights:
            weight.copy_(weights[name])


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
