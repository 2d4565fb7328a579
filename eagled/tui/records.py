"""What the daemon answers beyond its status, as frozen records: samples, causes, plans, training.

As tolerant as `model.py`: a missing or odd value becomes None, nothing raises, every text is made
printable once, and lists are cut at a bound. `key` and `uid` keep the exact words for the API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from eagled.printable import printable
from eagled.training_view import SILENT_MS
from eagled.tui.model import NAME_CHARS, flag_of, mapping_of, number_of, text_of

MAX_ITEMS = 500  # of one answer; the daemon sends no more
MAX_TEXT = 4_000_000  # characters of one sample that are shown
_DETAIL_CHARS = 400


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a list of samples."""

    number: int
    uid: str
    dataset: str
    lane: str | None
    state: str
    turn: float | None
    attempt: float | None
    failures: float | None
    n_prompt: float | None
    n_output: float | None
    finish: str | None
    reason: str | None
    detail: str | None
    updated_ms: float | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One failed attempt at a sample."""

    number: float | None
    at_ms: float | None
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class Detail:
    """Everything but the text of one sample."""

    sample: Sample
    conversation: str | None
    source: str | None
    server: str | None
    elapsed_s: float | None
    checked: bool | None
    shard: str | None
    shard_index: float | None
    crashes: float | None
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring ids as text (not yet printable); a special id stands alone."""

    text: str
    n: int
    special: bool
    trained: bool


@dataclass(frozen=True, slots=True)
class SampleText:
    """Ids and text of a sample; without a text worker only ids, and why (`note`)."""

    uid: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    pieces: tuple[Piece, ...] | None
    note: str

    @property
    def n_chars(self) -> int:
        """Characters of the text, or about as many as the ids take."""
        if self.pieces is None:
            return 6 * (len(self.prompt_ids) + len(self.output_ids))
        return sum(len(piece.text) for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Cause:
    """Given-up samples of one dataset with one cause, and the price of trying again."""

    key: str
    cause: str
    dataset: str
    state: str
    reason: str
    pattern: str
    n: float | None
    example: str
    detail: str | None
    tokens_in: float | None
    tokens_out: float | None
    retry_s: float | None


@dataclass(frozen=True, slots=True)
class PlanGroup:
    """Bytes still to come of one dataset and lane."""

    dataset: str
    lane: str
    samples: float | None
    n_bytes: float | None


@dataclass(frozen=True, slots=True)
class PlanOption:
    """One way to store states, and what it takes."""

    name: str
    words: str
    trade: str
    bytes_left: float | None
    bytes_per_token: float | None
    kept: float | None
    fits: bool | None
    full_s: float | None
    groups: tuple[PlanGroup, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The disk plan; the first option is what holds now."""

    options: tuple[PlanOption, ...]
    recommended: str
    why: str
    free: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a training run."""

    step: float | None
    epoch: float | None
    loss: float | None
    lr: float | None
    accept: float | None
    grad_norm: float | None
    tok_rate: float | None


@dataclass(frozen=True, slots=True)
class Training:
    """The newest training run; `name` is None when there is none.

    `step`, `loss` and `accept` are as the run says of itself, without looking at its steps.
    """

    name: str | None
    updated_ms: float | None
    total: float | None
    eta_s: float | None
    done: bool
    steps: tuple[Step, ...]
    estimates: tuple[tuple[float, float], ...]
    step: float | None = None
    loss: float | None = None
    accept: float | None = None

    def runs(self, now_ms: int) -> bool:
        """Return whether it is going on: neither done nor silent for `SILENT_MS`."""
        return (
            self.name is not None
            and not self.done
            and self.updated_ms is not None
            and now_ms - self.updated_ms < SILENT_MS
        )


def items_of(value: object) -> Iterator[Mapping[str, object]]:
    """Yield the objects of a list, at most `MAX_ITEMS`."""
    rows = value[:MAX_ITEMS] if isinstance(value, list) else []
    yield from map(mapping_of, rows)


def _word(doc: Mapping[str, object], key: str, limit: int = NAME_CHARS) -> str:
    return text_of(doc, key, limit) or ""


def parse_sample(doc: Mapping[str, object]) -> Sample:
    """Return a row of a list of samples."""
    return Sample(
        number=int(number_of(doc, "id") or 0),
        uid=_word(doc, "uid"),
        dataset=_word(doc, "dataset"),
        lane=text_of(doc, "lane", NAME_CHARS),
        state=_word(doc, "state") or "?",
        turn=number_of(doc, "turn"),
        attempt=number_of(doc, "attempt"),
        failures=number_of(doc, "failures"),
        n_prompt=number_of(doc, "n_prompt"),
        n_output=number_of(doc, "n_output"),
        finish=text_of(doc, "finish", NAME_CHARS),
        reason=text_of(doc, "reason", NAME_CHARS),
        detail=text_of(doc, "detail", _DETAIL_CHARS),
        updated_ms=number_of(doc, "updated_ms"),
    )


def parse_samples(reply: object) -> tuple[Sample, ...]:
    """Return the rows of an answer of /v1/samples."""
    return tuple(parse_sample(doc) for doc in items_of(mapping_of(reply).get("samples")))


def parse_detail(reply: object) -> Detail:
    """Return an answer of /v1/samples/{uid}."""
    doc = mapping_of(reply)
    log = items_of(doc.get("failures_log"))
    return Detail(
        sample=parse_sample(mapping_of(doc.get("row"))),
        conversation=text_of(doc, "conversation", NAME_CHARS),
        source=text_of(doc, "source_id", NAME_CHARS),
        server=text_of(doc, "server", NAME_CHARS),
        elapsed_s=number_of(doc, "elapsed_s"),
        checked=flag_of(doc, "checked"),
        shard=text_of(doc, "shard", NAME_CHARS),
        shard_index=number_of(doc, "shard_index"),
        crashes=number_of(doc, "crashes"),
        attempts=tuple(
            Attempt(
                number_of(row, "attempt"), number_of(row, "at_ms"), _word(row, "kind"),
                _word(row, "detail", _DETAIL_CHARS),
            )
            for row in log
        ),
    )  # fmt: skip


def _ids(value: object) -> tuple[int, ...]:
    return tuple(i for i in value if isinstance(i, int)) if isinstance(value, list) else ()


def _pieces(value: object, *, trained: bool) -> Iterator[Piece]:
    for item in value if isinstance(value, list) else ():
        match item:
            case [str(text), int(n), bool(special)]:
                yield Piece(text[:MAX_TEXT], n, special, trained)


def parse_text(reply: object) -> SampleText:
    """Return an answer of /v1/samples/{uid}/text."""
    doc = mapping_of(reply)
    known = doc.get("prompt") is not None or doc.get("output") is not None
    pieces = (
        *_pieces(doc.get("prompt"), trained=False),
        *_pieces(doc.get("output"), trained=True),
    )
    return SampleText(
        uid=_word(doc, "uid"),
        prompt_ids=_ids(doc.get("prompt_ids")),
        output_ids=_ids(doc.get("output_ids")),
        pieces=pieces if known else None,
        note=_word(doc, "note", _DETAIL_CHARS),
    )


def parse_causes(reply: object) -> tuple[Cause, ...]:
    """Return the groups of an answer of /v1/failures."""
    return tuple(map(_cause, items_of(mapping_of(reply).get("failures"))))


def _cause(doc: Mapping[str, object]) -> Cause:
    cause, dataset = _word(doc, "cause"), str(doc.get("dataset") or "")
    return Cause(
        key=f"{cause} {doc.get('state')} {dataset}",
        cause=cause,
        dataset=printable(dataset, NAME_CHARS),
        state=_word(doc, "state"),
        reason=_word(doc, "reason"),
        pattern=_word(doc, "pattern", _DETAIL_CHARS),
        n=number_of(doc, "n"),
        example=_word(doc, "example"),
        detail=text_of(doc, "detail", _DETAIL_CHARS),
        tokens_in=number_of(doc, "tokens_in"),
        tokens_out=number_of(doc, "tokens_out"),
        retry_s=number_of(doc, "retry_s"),
    )


def _policy_words(doc: Mapping[str, object]) -> str:
    names = ("codec", "codec_last", "last", "max_tokens", "keep_prompt")
    return printable("  ".join(f"{n} {doc[n]}" for n in names if doc.get(n) not in (None, 0)), 120)


def _plan_option(doc: Mapping[str, object]) -> PlanOption:
    groups = (
        PlanGroup(_word(g, "dataset"), _word(g, "lane"), number_of(g, "samples"),
                  number_of(g, "bytes"))
        for g in items_of(doc.get("groups"))
    )  # fmt: skip
    return PlanOption(
        name=_word(doc, "name"),
        words=_policy_words(mapping_of(doc.get("policy"))),
        trade=_word(doc, "trade", _DETAIL_CHARS),
        bytes_left=number_of(doc, "bytes_left"),
        bytes_per_token=number_of(doc, "bytes_per_token"),
        kept=number_of(doc, "supervised_kept"),
        fits=flag_of(doc, "fits"),
        full_s=number_of(doc, "full_in_s"),
        groups=tuple(groups),
    )


def parse_plan(reply: object) -> Plan:
    """Return an answer of /v1/plan/disk."""
    doc = mapping_of(reply)
    return Plan(
        options=tuple(map(_plan_option, items_of(doc.get("options")))),
        recommended=_word(doc, "recommended"),
        why=_word(doc, "why", _DETAIL_CHARS),
        free=number_of(mapping_of(doc.get("room")), "free_bytes"),
    )


def _step(doc: Mapping[str, object]) -> Step:
    names = ("step", "epoch", "loss", "lr", "accept_length", "grad_norm", "tok_per_s")
    return Step(*(number_of(doc, name) for name in names))


def parse_training(reply: object) -> Training:
    """Return an answer of /v1/training."""
    doc = mapping_of(reply)
    said = mapping_of(doc.get("status"))
    points = (
        (number_of(e, "step"), number_of(e, "length")) for e in items_of(doc.get("estimates"))
    )
    return Training(
        name=text_of(doc, "name", NAME_CHARS),
        updated_ms=number_of(doc, "updated_ms"),
        total=number_of(said, "total"),
        eta_s=number_of(said, "eta_s"),
        done=doc.get("done") is True,
        steps=tuple(map(_step, items_of(doc.get("steps")))),
        estimates=tuple((s, n) for s, n in points if s is not None and n is not None),
        step=number_of(said, "step"),
        loss=number_of(said, "loss"),
        accept=number_of(said, "accept_length"),
    )
