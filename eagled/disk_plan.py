"""What hidden states will take of the disk under each storage policy, and which one to choose.

Guarantee: lengths are those of the run's own samples; of a sample that has no answer yet, the mean
over those of its dataset and lane that have one (else of its dataset, else of all); what nothing is
known of is None, never a guess. Bytes are those of a row a token, so at most one row a sample too
many. The share of `lossless` is measured on the run's own states, or marked as assumed.
Price: one pass over the samples' lengths in chunks, and the encoding of a few MiB of one shard.
Loads neither torch nor transformers.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagled.config import Config
from eagled.errors import ArtifactError, DiskError, UsageError
from eagled.plan_render import human_bytes
from eagled.shards.codecs import encode, pieces
from eagled.shards.format import CODEC_DTYPES, SHARD_SUFFIX, Codec, read_shard_header
from eagled.shards.policy import StorePolicy
from eagled.shards.stored import map_shard

_BF16 = 2
_TOKEN_BYTES = 5  # id and mask
_POSITION_BYTES = 4
ASSUMED_LOSSLESS = 0.70  # only until the run's own states tell; docs/benchmarks.md has others'
_GOOD_WINDOW = 1024  # tokens before the answer in the option `window`


@dataclass(frozen=True, slots=True)
class Lengths:
    """Samples of one dataset and lane.

    Attributes:
        dataset: its name.
        lane: its lane; empty while a sample has none.
        prompt: tokens of the prompts of samples that have an answer, i64 [n].
        answer: tokens of those answers, i64 [n].
        extracted: which of these have their states already, bool [n].
        open: samples that have no answer yet and may get one.
    """

    dataset: str
    lane: str
    prompt: npt.NDArray[np.int64]
    answer: npt.NDArray[np.int64]
    extracted: npt.NDArray[np.bool_]
    open: int


@dataclass(frozen=True, slots=True)
class Model:
    """What decides the size of a row: layers, width, and the measured share of `lossless`."""

    layers: int
    hidden_size: int
    lossless: float = ASSUMED_LOSSLESS
    lossless_measured: bool = False

    def row_bytes(self, codec: Codec, layers: int) -> float:
        """Return the bytes of one row of so many layers."""
        if codec == "fp8":
            return layers * (self.hidden_size + 4)
        return layers * self.hidden_size * _BF16 * (self.lossless if codec == "lossless" else 1.0)


@dataclass(frozen=True, slots=True)
class Room:
    """What there is to use, in bytes, and how it shrinks.

    Attributes:
        free_bytes: what extraction may still write: free or budget, less what is held back.
        own_bytes_per_s: growth of the shards lately; None while unknown.
        others_bytes_per_s: growth of everything else on the file system.
    """

    free_bytes: int
    own_bytes_per_s: float | None = None
    others_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class GroupBytes:
    """Bytes still to be written for one dataset and lane."""

    dataset: str
    lane: str
    samples: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Option:
    """One policy and what it means.

    Attributes:
        name: what `--choose` takes.
        policy: the policy.
        trade: what it costs, in words.
        bytes_left: still to be written; None while no length is known.
        bytes_per_token: of a sample's own tokens, whatever is stored of them.
        bytes_per_supervised: bytes for each supervised token whose row is stored.
        supervised_kept: share of the supervised tokens whose rows are stored.
        fits: whether it fits the room; None while unknown.
        full_in_s: seconds until the room ends at the present rates; None if it does not, or
            unknown.
        groups: the same by dataset and lane.
    """

    name: str
    policy: StorePolicy
    trade: str
    bytes_left: int | None
    bytes_per_token: float | None
    bytes_per_supervised: float | None
    supervised_kept: float | None
    fits: bool | None
    full_in_s: float | None
    groups: tuple[GroupBytes, ...] = ()


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """Options in order of harm, the first being what holds now.

    Attributes:
        options: what could be chosen.
        recommended: name of the first that fits, or `stream` when none does; empty: not known.
        room: what there is.
        model: what the sizes come from.
        why: the recommendation in a sentence.
    """

    options: tuple[Option, ...]
    recommended: str
    room: Room
    model: Model
    why: str = ""

    @property
    def now(self) -> Option:
        """The policy that holds."""
        return self.options[0]

    def option(self, name: str) -> Option:
        """Return the option called `name`.

        Raises:
            ArtifactError: naming those there are.
        """
        for option in self.options:
            if option.name == name:
                return option
        known = ", ".join(o.name for o in self.options)
        raise ArtifactError(f"no option is called {name!r}; there are {known}")

    def require_fit(self) -> None:
        """Raise unless the policy that holds fits.

        Raises:
            DiskError: with the shortfall and what would fit.
        """
        left = self.now.bytes_left
        if self.now.fits is False and left is not None:
            short = left - self.room.free_bytes
            raise DiskError(
                f"{left:,} bytes of states are to come ({self.now.policy.words()}), "
                f"{self.room.free_bytes:,} are free for them: {short:,} bytes are missing. "
                f"{self.why}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return dataclasses.asdict(self)


_CODECS = tuple(CODEC_DTYPES)
_WORDS = {"codec": _CODECS, "codec_last": _CODECS, "last": ("supervised", "all", "none")}
_LADDER: tuple[tuple[str, Mapping[str, Any], str], ...] = (
    ("lossless", {"codec": "lossless", "codec_last": "lossless"},
     "nothing is lost; encoding and decoding take CPU time"),
    ("fp8", {"codec": "fp8", "codec_last": "lossless"},
     "the draft's input is rounded to 8 bits; the target's distribution is exact"),
    ("fp8-all", {"codec": "fp8", "codec_last": "fp8"},
     "the target's distribution is computed from rounded states as well"),
    ("window", {"codec": "lossless", "codec_last": "lossless", "keep_prompt": _GOOD_WINDOW},
     f"the draft attends to at most {_GOOD_WINDOW:,} tokens before each answer in training"),
    ("window-fp8", {"codec": "fp8", "codec_last": "lossless", "keep_prompt": _GOOD_WINDOW},
     "both: a window before the answer, and 8 bits for the draft's input"),
    ("no-last", {"codec": "lossless", "last": "none"},
     "no teacher distribution: only for trainers that compute it themselves"),
)  # fmt: skip


def changed_policy(
    current: StorePolicy, changes: Mapping[str, str | int | None]
) -> StorePolicy | None:
    """Return a policy with what is given changed; None if nothing is.

    Raises:
        UsageError: if a word or number is not accepted.
    """
    given = {k: v for k, v in changes.items() if v is not None}
    if strange := sorted(set(given) - {f.name for f in dataclasses.fields(StorePolicy)}):
        raise UsageError(f"{strange[0]!r} is no part of a storage policy")
    for name, words in _WORDS.items():
        if name in given and given[name] not in words:
            raise UsageError(f"{name} = {given[name]!r}: accepted: {', '.join(words)}")
    for name in ("max_tokens", "keep_prompt"):
        if name in given and not str(given[name]).isdecimal():
            raise UsageError(f"{name} = {given[name]!r}: must be a whole number, 0 or more")
        if name in given:
            given[name] = int(given[name])
    return dataclasses.replace(current, **given) if given else None  # type: ignore[arg-type] # checked above


def make_plan(
    lengths: Sequence[Lengths],
    model: Model,
    room: Room,
    current: StorePolicy,
    asked: StorePolicy | None = None,
) -> DiskPlan:
    """Return what each policy takes; `asked` is one more that the user wants to see."""
    options = [_option("now", current, "what holds at present", lengths, model, room)]
    if asked is not None:
        options.append(_option("asked", asked, "what you asked for", lengths, model, room))
    for name, changes, trade in _LADDER:
        policy = dataclasses.replace(current, **changes)
        if policy != current:
            options.append(_option(name, policy, trade, lengths, model, room))
    recommended, why = _recommend(options, room)
    options = _with_rates(options, room)
    return DiskPlan(tuple(options), recommended, room, model, why)


def uniform(samples: int, tokens: int, answer: int | None = None) -> list[Lengths]:
    """Return lengths of samples that do not exist yet, all alike, for an estimate by numbers."""
    own = tokens - 1 if answer is None else answer
    one = np.asarray([tokens - own])
    return [Lengths("assumed", "", one, np.asarray([own]), np.asarray([True]), samples)]


def group_lengths(
    rows: Iterable[tuple[str, str | None, str, int | None, int | None]],
) -> list[Lengths]:
    """Group rows (dataset, lane, state, n_prompt, n_output) by dataset and lane."""
    known: defaultdict[tuple[str, str], list[tuple[int, int, bool]]] = defaultdict(list)
    missing: defaultdict[tuple[str, str], int] = defaultdict(int)
    for dataset, lane, state, n_prompt, n_output in rows:
        key = (dataset, lane or "")
        if state in ("failed", "rejected", "cancelled"):
            continue
        if n_prompt is not None and n_output is not None:
            known[key].append((n_prompt, n_output, state == "extracted"))
        else:
            missing[key] += 1
    out = []
    for key in sorted({*known, *missing}):
        table = np.asarray(known[key], np.int64).reshape(-1, 3)
        done = table[:, 2].astype(np.bool_)
        out.append(Lengths(*key, table[:, 0], table[:, 1], done, missing[key]))
    return out


@dataclass(slots=True)
class _Sums:
    """Stored bytes, tokens, supervised tokens (all and stored) and number of samples."""

    bytes: float = 0.0
    tokens: int = 0
    supervised: int = 0
    kept: int = 0
    n: int = 0

    def add(self, other: _Sums) -> None:
        for name in ("bytes", "tokens", "supervised", "kept", "n"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def _stored(
    prompt: npt.NDArray[np.int64], answer: npt.NDArray[np.int64], policy: StorePolicy, model: Model
) -> _Sums:
    """Return what samples of these lengths take."""
    total = prompt + answer
    start = np.maximum(0, prompt - policy.keep_prompt) if policy.keep_prompt else prompt * 0
    end = total.copy()
    if policy.max_tokens:
        over = total - start > policy.max_tokens
        start = np.where(over, np.maximum(start, prompt - policy.max_tokens // 2), start)
        end = np.where(over, np.minimum(total, start + policy.max_tokens), end)
    rows = int((end - start).sum())
    kept = int((end - prompt).sum())
    n_last = {"all": rows, "supervised": kept, "none": 0}[policy.last]
    size = rows * (model.row_bytes(policy.codec, model.layers) + _TOKEN_BYTES)
    size += n_last * (model.row_bytes(policy.codec_last, 1) + _POSITION_BYTES)
    return _Sums(size, int(total.sum()), int(answer.sum()), kept, len(total))


def states_bytes(tokens: int, policy: StorePolicy, model: Model) -> int:
    """Return the bytes of states alone of so many tokens, each supervised."""
    row = model.row_bytes(policy.codec, model.layers)
    last = 0.0 if policy.last == "none" else model.row_bytes(policy.codec_last, 1)
    return round(tokens * (row + last))


def _option(
    name: str,
    policy: StorePolicy,
    trade: str,
    lengths: Sequence[Lengths],
    model: Model,
    room: Room,
) -> Option:
    every = [_stored(g.prompt, g.answer, policy, model) for g in lengths]
    by_dataset: defaultdict[str, _Sums] = defaultdict(_Sums)
    all_ = _Sums()
    for group, sums in zip(lengths, every, strict=True):
        by_dataset[group.dataset].add(sums)
        all_.add(sums)
    groups = tuple(
        _group(group, _mean_of(sums, by_dataset[group.dataset], all_), policy, model)
        for group, sums in zip(lengths, every, strict=True)
    )
    unknown = not all_.n and any(g.open for g in lengths)
    left = None if unknown or not lengths else sum(g.bytes for g in groups)
    return Option(
        name=name,
        policy=policy,
        trade=trade,
        bytes_left=left,
        bytes_per_token=all_.bytes / all_.tokens if all_.tokens else None,
        bytes_per_supervised=all_.bytes / all_.kept if all_.kept else None,
        supervised_kept=all_.kept / all_.supervised if all_.supervised else None,
        fits=None if left is None else left <= room.free_bytes,
        full_in_s=None,
        groups=groups,
    )


def _mean_of(*sums: _Sums) -> _Sums:
    """Return the first that has samples."""
    return next((s for s in sums if s.n), sums[-1])


def _group(group: Lengths, like: _Sums, policy: StorePolicy, model: Model) -> GroupBytes:
    """Return what a group still takes: answers without states, and samples without answers."""
    todo = ~group.extracted
    exact = _stored(group.prompt[todo], group.answer[todo], policy, model)
    per = group.open / like.n if like.n else 0.0
    return GroupBytes(
        dataset=group.dataset,
        lane=group.lane,
        samples=exact.n + group.open,
        tokens=exact.tokens + round(like.tokens * per),
        bytes=round(exact.bytes + like.bytes * per),
    )


def _recommend(options: Sequence[Option], room: Room) -> tuple[str, str]:
    now = options[0]
    if now.bytes_left is None:
        return "", "no length is known yet: it can be told after the first answers"
    fitting = next((o for o in options if o.fits and o.name not in ("asked", "no-last")), None)
    if fitting is now:
        spare = room.free_bytes - now.bytes_left
        return "now", f"what holds now fits, with {human_bytes(spare)} to spare"
    if fitting is not None:
        return fitting.name, (
            f"`eagled plan disk --choose {fitting.name}` would fit: {fitting.policy.words()}; "
            f"{fitting.trade}"
        )
    return "stream", (
        'nothing fits: set disk.mode = "stream" and train from the ring, or make room, '
        "or take fewer samples"
    )


def _with_rates(options: Sequence[Option], room: Room) -> list[Option]:
    """Add when the room ends: our rate changes in proportion to the bytes, others' does not."""
    now = options[0].bytes_per_token
    others = max(0.0, room.others_bytes_per_s or 0.0)
    out = []
    for option in options:
        seconds = None
        if room.own_bytes_per_s and now and option.bytes_per_token and option.bytes_left:
            own = room.own_bytes_per_s * option.bytes_per_token / now
            until_full = max(0, room.free_bytes) / (own + others)
            seconds = until_full if until_full < option.bytes_left / own else None
        out.append(dataclasses.replace(option, full_in_s=seconds))
    return out


def measure_lossless(folder: Path) -> float | None:
    """Return stored / raw bytes of `lossless` on the first sample of a raw shard, or None."""
    for path in sorted(folder.glob(f"*{SHARD_SUFFIX}")):
        try:
            header = read_shard_header(path)
            if not header.samples or header.manifest.codec == "fp8":
                continue
            bits = map_shard(header).states("aux", 0)
        except (ArtifactError, OSError):
            continue  # being reclaimed, or damaged: the next one will do
        part = next(iter(pieces(bits, header.manifest.hidden_size)))
        piece = encode("lossless", part, header.manifest.hidden_size)
        return sum(map(len, piece.chunks)) / part.nbytes
    return None


def room_of(config: Config, disk: Mapping[str, Any], free_bytes: int, used_bytes: int) -> Room:
    """Return the room of this moment.

    Args:
        config: for budget and reserve.
        disk: the `disk` part of a status document; may be empty.
        free_bytes: of the file system.
        used_bytes: of the state directory.
    """
    budget = config.disk.budget_bytes or used_bytes + free_bytes
    free = min(free_bytes, budget - used_bytes) - config.disk.reserve_bytes
    return Room(max(0, free), disk.get("own_bytes_per_s"), disk.get("others_bytes_per_s"))
