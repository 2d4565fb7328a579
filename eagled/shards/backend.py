"""What every hidden-state back end offers; the worker knows nothing else of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

import eagled
from eagled.shards.accept import Offer
from eagled.shards.format import Bits, LastPolicy, ShardManifest
from eagled.shards.target import TargetFacts

Ids = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Captured:
    """What one forward pass gave for one sample of T tokens.

    Attributes:
        token_ids: the ids it belongs to, i64 [T].
        aux: bf16 bits [rows, L, D], layers in the order of the plan.
        last: bf16 bits [rows, D], after the final norm.
        capture: `prefill` gives a row a token, `one_pass` one fewer (the last is never fed).
    """

    token_ids: Ids
    aux: Bits
    last: Bits
    capture: Literal["prefill", "one_pass"] = "prefill"

    @property
    def aux_offer(self) -> Offer:
        """The aux states as they are offered for acceptance."""
        return Offer(self.token_ids, "bfloat16", self.aux)

    @property
    def last_offer(self) -> Offer:
        """The final states as a layer axis of one."""
        return Offer(self.token_ids, "bfloat16", self.last[:, None, :])


class StatesBackend(Protocol):
    """Gives hidden states of whole samples, computed now or captured while they were generated."""

    @property
    def manifest(self) -> ShardManifest:
        """What its states are."""

    def capture(self, batch: Sequence[Ids]) -> list[Captured]:
        """Return the states of each sample, in order; blocking, for a worker thread.

        Raises:
            RetryableError: if they cannot be had now, through no fault of the samples.
        """

    def release(self, batch: Sequence[Ids]) -> None:
        """Forget what is kept of samples whose states are in a committed shard; blocking."""

    def self_check(self) -> None:
        """Raise `ArtifactError` unless a known short input gives the states it must."""


def states_manifest(
    target: TargetFacts,
    *,
    name: str,
    revision: str | None,
    layers: tuple[int, ...],
    last: LastPolicy,
    compute_dtype: str,
    backend: str,
) -> ShardManifest:
    """Return what a back end's states of `target` are; an empty `name` is its folder's."""
    return ShardManifest(
        target=name or target.folder.name,
        revision=revision,
        target_hash=target.target_hash,
        tokenizer_hash=target.tokenizer_hash,
        n_layers=target.n_layers,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        layers=layers,
        last=last,
        compute_dtype=compute_dtype,
        backend=backend,
        eagled=eagled.__version__,
    )
