"""From samples to packed batches: what each row reads, which rows carry loss, and at which step.

The alignment, for a sample of T tokens x_0..x_{T-1}:

    row i (0..T-2) reads the states a_i and the token x_{i+1}; step k reads x_{i+1+k}
    it is compared with the target's distribution after that token, which predicts x_{i+2+k}
    it carries loss at step k when token x_{i+1+k} is supervised (the mask of the *input* token)
    and the final state after it is stored

So the first row with loss is the one that serving starts from: states of the last prompt token,
first generated token. The last token has no successor and carries none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagled.shards.reader import Sample
from eagled.train.attention import Spans
from eagled.train.model import Rows


@dataclass(frozen=True, slots=True)
class Document:
    """One sample, aligned; row i is token i.

    Attributes:
        uid: its identity.
        dataset: where it comes from.
        skip: tokens of the sample before row 0 that are not stored.
        tokens: x_{i+1}, i64 [R].
        supervised: the mask moved along with the tokens, bool [R].
        aux: a_i, [R, 3*Dt].
        last: final states [P, Dt].
        teacher: row of `last` for the token of this row (y_{i+1}), i64 [R]; -1 for none.
    """

    uid: str
    dataset: str
    skip: int
    tokens: Tensor
    supervised: Tensor
    aux: Tensor
    last: Tensor
    teacher: Tensor

    @property
    def n_prompt(self) -> int:
        """Tokens before the first supervised one, those that are not stored included."""
        return self.skip + 1 + int(self.supervised.nonzero()[0, 0])

    def wanted(self, steps: int) -> Tensor:
        """Return where a row carries loss, bool [K, R]."""
        has_loss = self.supervised & (self.teacher >= 0)
        wanted = torch.zeros(steps, len(self.tokens), dtype=torch.bool)
        for k in range(min(steps, len(self.tokens))):
            wanted[k, : len(self.tokens) - k] = has_loss[k:]
        return wanted


def shifted(ids: Tensor, mask: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """Return targets and mask of each position, moved by the same amount; tail without loss.

    Position p is compared with `ids[p + shift]` and carries loss when that token is supervised.
    """
    targets, moved = torch.zeros_like(ids), torch.zeros_like(mask, dtype=torch.bool)
    if shift < len(ids):
        targets[: len(ids) - shift] = ids[shift:]
        moved[: len(ids) - shift] = mask[shift:].bool()
    return targets, moved


def align(sample: Sample, max_tokens: int = 0) -> Document | None:
    """Return a sample's rows, or None if no row of it carries loss.

    Args:
        sample: the sample.
        max_tokens: longest sample; a longer one is cut at its end. 0 is no limit.
    """
    n = len(sample["input_ids"])
    if max_tokens:
        n = min(n, max_tokens)
    targets, supervised = shifted(sample["input_ids"][:n], sample["loss_mask"][:n], 1)
    row_of = torch.full((n + 1,), -1, dtype=torch.int64)  # token -> row of `last`
    stored = sample["last_positions"] < n - 1  # the last token's successor is unknown or cut off
    row_of[sample["last_positions"][stored]] = torch.arange(len(sample["last_positions"]))[stored]
    rows = n - 1
    document = Document(
        uid=sample["uid"],
        dataset=sample["dataset"],
        skip=sample["skip"],
        tokens=targets[:rows],
        supervised=supervised[:rows],
        aux=sample["aux"][:rows],
        last=sample["last"],
        teacher=row_of[1 : rows + 1],
    )
    return document if bool(document.wanted(1).any()) else None


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose rows they are: sample, dataset, and how long its prompt is."""

    uid: str
    dataset: str
    n_prompt: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed documents and where their loss is.

    Attributes:
        rows: what the head reads.
        last: final states of all documents [P, Dt].
        picks: i64 [M, 3], one line for each (query row, step) with loss, sorted by step:
            index among the query rows, step, row of `last`.
        counts: rows with loss at each step, i64 [K].
        targets: i64 [M], the token that really follows each pick, x_{i+2+k}; -1 if there is none.
        documents: what is packed, in order.
        owner: i64 [Q], the document of each query row.
    """

    rows: Rows
    last: Tensor
    picks: Tensor
    counts: Tensor
    targets: Tensor
    documents: tuple[Origin, ...]
    owner: Tensor

    @property
    def n_rows(self) -> int:
        """R."""
        return len(self.rows.tokens)

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """Return a copy on `device`; states in `dtype`."""

        def move(x: Tensor) -> Tensor:
            return x.to(device, non_blocking=True)

        r = self.rows
        rows = Rows(
            move(r.aux).to(dtype), move(r.tokens), move(r.positions), move(r.active),
            r.spans.to(device),
        )  # fmt: skip
        rest = (move(self.targets), self.documents, move(self.owner))
        return Batch(rows, move(self.last).to(dtype), move(self.picks), self.counts, *rest)

    def pinned(self) -> Batch:
        """Return a copy in page-locked memory, from which copies to a GPU do not wait."""
        r = self.rows
        rows = Rows(
            r.aux.pin_memory(), r.tokens.pin_memory(), r.positions.pin_memory(),
            r.active.pin_memory(), r.spans,
        )  # fmt: skip
        rest = (self.targets.pin_memory(), self.documents, self.owner.pin_memory())
        return Batch(rows, self.last.pin_memory(), self.picks.pin_memory(), self.counts, *rest)


def pack(documents: Sequence[Document], steps: int) -> Batch:
    """Return documents as one batch for K steps; no padding between them."""
    wanted = [d.wanted(steps) for d in documents]
    first = [int(w.any(0).nonzero()[0, 0]) for w in wanted]  # first query row
    lengths = [len(d.tokens) for d in documents]
    queries = [n - f for n, f in zip(lengths, first, strict=True)]
    starts, q_starts, p_starts = (
        _starts(sizes) for sizes in (lengths, queries, [len(d.last) for d in documents])
    )
    active = [torch.arange(f, n) + s for f, n, s in zip(first, lengths, starts, strict=True)]
    picks = [
        _picks(d, w, f, q, p)
        for d, w, f, q, p in zip(documents, wanted, first, q_starts, p_starts, strict=True)
    ]
    order = torch.cat([p[:, 1] for p in picks]).argsort(stable=True)
    lines = torch.cat(picks)[order]
    rows = Rows(
        aux=torch.cat([d.aux for d in documents]),
        tokens=torch.cat([d.tokens for d in documents]),
        positions=torch.cat([torch.arange(len(d.tokens)) + d.skip for d in documents]),
        active=torch.cat(active),
        spans=Spans.of_lengths(lengths, queries),
    )
    return Batch(
        rows=rows,
        last=torch.cat([d.last for d in documents]),
        picks=lines[:, :3].contiguous(),
        counts=torch.bincount(lines[:, 1], minlength=steps),
        targets=lines[:, 3].contiguous(),
        documents=tuple(Origin(d.uid, d.dataset, d.n_prompt) for d in documents),
        owner=torch.repeat_interleave(torch.arange(len(queries)), torch.tensor(queries)),
    )


def _starts(sizes: Sequence[int]) -> list[int]:
    total, starts = 0, []
    for size in sizes:
        starts.append(total)
        total += size
    return starts


def _picks(d: Document, wanted: Tensor, first: int, q_start: int, last_start: int) -> Tensor:
    """Return the lines of one document: query row, step, row of `last`, following token."""
    step, row = wanted.nonzero(as_tuple=True)
    teacher = d.teacher[row + step] + last_start
    follows = torch.cat([d.tokens, d.tokens.new_full((1,), -1)])[row + step + 1]
    return torch.stack([row - first + q_start, step, teacher, follows], 1)
