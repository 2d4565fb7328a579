"""From claimed jobs to accepted samples: ids, batches of similar length, forward pass, acceptance.

Guarantee: every piece of work comes back once, as a sample or as the reason why not; one bad sample
fails alone. A batch that raises (out of memory, an odd input) is halved until it passes or one
sample stands accused; a sample refused in a batch is tried once more alone. A back end that is away
accuses nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eagled.errors import EagledError, RetryableError, StatesRejectedError
from eagled.shards.accept import StatesRequest, accept_batch, check_ids
from eagled.shards.backend import Captured, StatesBackend
from eagled.shards.format import Bits, ShardManifest, StatesSample, last_positions
from eagled.shards.trim import Trim
from eagled.tokens import unpack_ids
from eagled.types import ExtractJob

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """One claimed sample: its ids, i64 [T], and its loss mask, u8 [T]."""

    job: ExtractJob
    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.uint8]

    @property
    def uid(self) -> str:
        """The sample's uid in hex, its name in messages."""
        return self.job.uid.hex()


@dataclass(frozen=True, slots=True)
class Refused:
    """Work that gave no sample.

    `content` says that trying again gives the same; `away` that it is the back end's fault, which
    is held against no sample.
    """

    job: ExtractJob
    reason: str
    detail: str
    content: bool
    away: bool = False


Result = tuple[Work, StatesSample] | Refused


def open_job(job: ExtractJob, vocab_size: int) -> Work:
    """Return a job's ids and mask: 1 on every token of the answer, 0 on the prompt.

    Raises:
        ArtifactError: if the stored ids are damaged.
        StatesRejectedError: if an id is outside the vocabulary.
    """
    prompt = unpack_ids(job.prompt.z, job.prompt.crc)
    output = unpack_ids(job.output.z, job.output.crc)
    ids = np.concatenate([prompt, output]).astype(np.int64)
    check_ids(job.uid.hex(), ids, vocab_size)
    mask = np.zeros(len(ids), np.uint8)
    mask[len(prompt) :] = 1
    return Work(job, ids, mask)


def open_jobs(jobs: Sequence[ExtractJob], vocab_size: int) -> tuple[list[Work], list[Refused]]:
    """Return the jobs that can be fed, and those that cannot."""
    works: list[Work] = []
    refused: list[Refused] = []
    for job in jobs:
        try:
            works.append(open_job(job, vocab_size))
        except EagledError as exc:
            refused.append(_refused(job, exc))
    return works, refused


def length_batches(works: Sequence[Work], batch_tokens: int) -> Iterator[list[Work]]:
    """Yield batches, longest first, whose padded size is at most `batch_tokens`.

    A sample that is longer than that goes alone.
    """
    batch: list[Work] = []
    for work in sorted(works, key=lambda w: (-len(w.ids), w.job.fence.sample_id)):
        if batch and (len(batch) + 1) * len(batch[0].ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(work)
    if batch:
        yield batch


def compute(backend: StatesBackend, batch: Sequence[Work]) -> list[Result]:
    """Return a result for each work of the batch, in order; blocking."""
    try:
        captured = backend.capture([w.ids for w in batch])
    except RetryableError as exc:
        return [_refused(work.job, exc) for work in batch]
    except Exception as exc:  # noqa: BLE001 - the edge of a batch: whatever it is, it is reported
        if len(batch) == 1:
            _log.exception("extraction failed sample=%s", batch[0].uid)
            return [_refused(batch[0].job, exc)]
        _log.warning("batch halved samples=%d cause=%s", len(batch), type(exc).__name__)
        middle = len(batch) // 2
        return [*compute(backend, batch[:middle]), *compute(backend, batch[middle:])]
    results = _accept(backend.manifest, batch, captured)
    if len(batch) == 1:
        return results
    return [
        compute(backend, [work])[0] if isinstance(result, Refused) else result
        for work, result in zip(batch, results, strict=True)
    ]


def _accept(
    manifest: ShardManifest, batch: Sequence[Work], captured: Sequence[Captured]
) -> list[Result]:
    pairs = list(zip(batch, captured, strict=True))
    width = manifest.hidden_size
    aux_requests = [
        StatesRequest(w.uid, w.ids, manifest.layers, width, capture=c.capture) for w, c in pairs
    ]
    last_requests = [StatesRequest(w.uid, w.ids, (-1,), width, capture=c.capture) for w, c in pairs]
    aux = accept_batch(aux_requests, [c.aux_offer for c in captured])
    last = accept_batch(last_requests, [c.last_offer for c in captured])
    return [_result(manifest, *row) for row in zip(batch, aux, last, strict=True)]


def _result(
    manifest: ShardManifest,
    work: Work,
    aux: Bits | StatesRejectedError,
    last: Bits | StatesRejectedError,
) -> Result:
    for states in (aux, last):
        if isinstance(states, StatesRejectedError):
            return _refused(work.job, states)
    assert not isinstance(aux, StatesRejectedError)  # noqa: S101 - the loop has returned
    assert not isinstance(last, StatesRejectedError)  # noqa: S101 - the loop has returned
    return work, to_sample(work, aux, last[:, 0], manifest)


def to_sample(work: Work, aux: Bits, last: Bits, manifest: ShardManifest) -> StatesSample:
    """Cut accepted states to what a shard stores.

    Args:
        work: the sample's ids and mask.
        aux: [T, L, D]; the last token's row is dropped, its target is unknown.
        last: [T, D]; the rows of the policy are kept.
        manifest: names the policies: which tokens, which rows of `last`.
    """
    start, end = Trim(manifest.max_tokens, manifest.keep_prompt).span_of(work.mask)
    mask = work.mask[start:end]
    positions = last_positions(mask, manifest.last)
    return StatesSample(
        uid=work.uid,
        sample=work.job.fence.sample_id,
        attempt=work.job.fence.attempt,
        dataset=work.job.dataset,
        input_ids=work.ids[start:end].astype(np.int32),
        loss_mask=mask,
        aux=aux[start : end - 1].reshape(end - start - 1, manifest.aux_width),  # [T-1, L*D]
        last=last[start:end][positions],  # [P, D]
        last_positions=positions,
        skip=start,
        cut=len(work.ids) - end,
    )


def _refused(job: ExtractJob, exc: Exception) -> Refused:
    if isinstance(exc, StatesRejectedError):
        return Refused(job, exc.reason, exc.detail, content=True)
    away = isinstance(exc, RetryableError)
    content = isinstance(exc, EagledError) and not away
    return Refused(job, type(exc).__name__, str(exc), content=content, away=away)
