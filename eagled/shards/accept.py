"""Accept or refuse what a back end computed for one sample.

Guarantee: states that pass have one row a token of exactly this sample, the planned layers, width
and dtype, and finite values; nothing is cut, padded, cast or reshaped to make it fit.
A refusal is a `StatesRejectedError` that names the sample, both counts and the likely cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from eagled.errors import StatesRejectedError
from eagled.shards.format import Bits
from eagled.types import OutputReason

_BF16_EXPONENT = 0x7F80  # all ones: infinity or NaN
_BF16_MAGNITUDE = 0x7FFF  # all bits but the sign


@dataclass(frozen=True, slots=True)
class StatesRequest:
    """What was asked for one sample.

    Attributes:
        sample: name of the sample in messages.
        token_ids: ids that were fed, i64 [T].
        layers: boundary ids, in the order of the layer axis.
        hidden_size: D.
        dtype: dtype of the states as the plan has it.
        capture: `prefill` gives a row a token, `one_pass` one fewer (the last is never fed).
        final_layer: whether the plan says that a further, final layer comes along.
    """

    sample: str
    token_ids: npt.NDArray[np.integer[Any]]
    layers: tuple[int, ...]
    hidden_size: int
    dtype: str = "bfloat16"
    capture: Literal["prefill", "one_pass"] = "prefill"
    final_layer: bool = False

    @property
    def rows(self) -> int:
        """Rows that the capture must yield."""
        return len(self.token_ids) - (self.capture == "one_pass")

    @property
    def shape(self) -> tuple[int, int, int]:
        """[rows, layers, D]."""
        return (self.rows, len(self.layers) + self.final_layer, self.hidden_size)


@dataclass(frozen=True, slots=True)
class Offer:
    """What came back: the ids it claims to be of, and states [rows, layers, D].

    `values` has the bits (u16) when `dtype` is bfloat16, else numbers.
    """

    token_ids: npt.NDArray[np.integer[Any]]
    dtype: str
    values: npt.NDArray[Any]


def accept_states(request: StatesRequest, offer: Offer) -> Bits:
    """Return the states as bf16 bits [rows, layers, D], unchanged.

    Raises:
        StatesRejectedError: listing everything that is wrong, reason `bad_states`.
    """
    problems = [*_shape_problems(request, offer), *_id_problems(request, offer)]
    if offer.dtype != request.dtype:
        problems.append(f"dtype {offer.dtype}, {request.dtype} is planned")
    problems += _value_problems(offer, len(request.layers))
    if problems:
        raise rejected(request.sample, "; ".join(problems))
    return offer.values


def accept_batch(
    requests: Sequence[StatesRequest], offers: Sequence[Offer]
) -> list[Bits | StatesRejectedError]:
    """Return for each sample of a batch its states, or why they are refused.

    When the rows as a whole are there but lie with the wrong samples, the message says so; such
    samples are to be extracted again one at a time.
    """
    total = sum(r.rows for r in requests)
    mixed = len(requests) == len(offers) > 1 and total == sum(_rows(o) for o in offers)
    results: list[Bits | StatesRejectedError] = []
    for request, offer in zip(requests, offers, strict=True):
        try:
            results.append(accept_states(request, offer))
        except StatesRejectedError as exc:
            note = "; the batch's rows are all there but in the wrong results" if mixed else ""
            wrong = note if _rows(offer) != request.rows else ""
            results.append(StatesRejectedError(exc.reason, exc.detail + wrong))
    return results


def finite(bits: Bits) -> npt.NDArray[np.bool_]:
    """Return where bf16 bit patterns are finite numbers; same shape."""
    result: npt.NDArray[np.bool_] = (bits & _BF16_EXPONENT) != _BF16_EXPONENT
    return result


def zero_rows(bits: Bits) -> npt.NDArray[np.intp]:
    """Return the indices along the first axis whose values are all zero (of either sign)."""
    flat = bits.reshape(len(bits), -1)
    return np.flatnonzero(~(flat & _BF16_MAGNITUDE).any(axis=1))


def check_ids(sample: str, ids: npt.NDArray[np.integer[Any]], vocab_size: int) -> None:
    """Raise unless the sample has at least two ids, each inside 0..vocab_size-1.

    Raises:
        StatesRejectedError: reason `id_out_of_vocabulary`, naming the position and the id.
    """
    bad = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if bad.size:
        at = int(bad[0])
        raise StatesRejectedError(
            OutputReason.ID_OUT_OF_VOCABULARY,
            f"sample {sample}: id {int(ids[at])} at position {at} is outside 0..{vocab_size - 1} "
            f"of the target model ({bad.size} such ids); was another tokenizer used?",
        )
    if len(ids) < 2:  # noqa: PLR2004 - a row and its target
        raise rejected(sample, f"{len(ids)} tokens: nothing to learn from")


def rejected(sample: str, detail: str) -> StatesRejectedError:
    """Return the refusal of one sample's states."""
    return StatesRejectedError(OutputReason.BAD_STATES, f"sample {sample}: {detail}")


def _rows(offer: Offer) -> int:
    return int(offer.values.shape[0]) if offer.values.ndim else 0


def _shape_problems(request: StatesRequest, offer: Offer) -> list[str]:
    shape, want = offer.values.shape, request.shape
    if shape == want:
        return []
    if len(shape) != len(want):
        return [f"{len(shape)} axes {list(shape)}, expected [tokens, layers, hidden] {list(want)}"]
    if shape == (want[1], want[0], want[2]):
        swapped = f"axes are [layers, tokens, hidden] {list(shape)}"
        planned = f"expected [tokens, layers, hidden] {list(want)}"
        return [f"{swapped}, {planned}; a reshape would scramble the values"]
    problems = [_row_problem(request, offer)] if shape[0] != want[0] else []
    if shape[1:] != want[1:]:
        problems.append(
            f"width {shape[1] * shape[2]}, expected {want[1] * want[2]} "
            f"({shape[1]} layers of {shape[2]}, planned {want[1]} of {want[2]})"
        )
    return problems


def _row_problem(request: StatesRequest, offer: Offer) -> str:
    got, want = _rows(offer), request.rows
    counts = f"{got} rows for {len(request.token_ids)} tokens"
    if request.capture == "one_pass":
        counts += f" ({want} expected: the last token is never fed)"
    if got == 0:
        return f"{counts}: nothing came back; the rows may have landed in another sample's result"
    if got < want:
        return (
            f"{counts}: likely prefix caching (cached tokens yield no rows; switch it off while "
            "capturing), or a prompt worked off in pieces of which not all came back"
        )
    if len(offer.token_ids) == got:
        return f"{counts}: padding came along; it is never stored"
    if got % want == 0:
        return (
            f"{counts}: the exact multiple {got // want}, likely one copy per tensor-parallel "
            "rank, or the rows of other samples of the batch"
        )
    return f"{counts}: more than were asked for, likely another sample's rows"


def _id_problems(request: StatesRequest, offer: Offer) -> list[str]:
    want, got = request.token_ids, offer.token_ids
    if len(want) != len(got):
        return [f"ids of {len(got)} tokens came back, {len(want)} were sent"]
    differ = np.flatnonzero(want != got)
    if not differ.size:
        return []
    at = int(differ[0])
    both = f"{int(got[at])}, sent {int(want[at])}"
    return [f"token ids differ from position {at} on: {both}; another sample's states?"]


def _value_problems(offer: Offer, n_layers: int) -> list[str]:
    values = offer.values
    good = finite(values) if offer.dtype == "bfloat16" else np.isfinite(values)
    problems = []
    if not good.all():
        first = np.unravel_index(int(np.argmin(good)), good.shape)
        place = ", ".join(
            f"{word} {int(i)}"
            for word, i in zip(("position", "layer index", "channel"), first, strict=False)
        )
        problems.append(f"not finite ({place}; {int((~good).sum())} values in all)")
    if values.ndim == 3 and values.shape[0]:  # noqa: PLR2004 - [rows, layers, D]
        problems += _twin_problems(values[:, :n_layers])
    return problems


def _twin_problems(values: npt.NDArray[Any]) -> list[str]:
    n = values.shape[1]
    twins = [
        (a, b)
        for a in range(n)
        for b in range(a + 1, n)
        if np.array_equal(values[:, a], values[:, b])
    ]
    if not twins:
        return []
    if len(twins) == n * (n - 1) // 2 and n > 2:  # noqa: PLR2004 - all of them
        return [f"the {n} layers are identical; the same layer was captured {n} times"]
    pairs = ", ".join(f"{a} and {b}" for a, b in twins)
    return [f"layers at index {pairs} are identical; the same layer was captured twice"]
