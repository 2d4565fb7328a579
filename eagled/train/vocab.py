"""The draft vocabulary: which target tokens the draft can propose, chosen from a corpus.

Guarantee: exactly `size` different ids, sorted; control tokens and `always_keep` are always in,
then the most frequent supervised tokens of the train split, ties by id; when the corpus has too few
different tokens the rest is filled with the smallest unused ids and reported. `d2t[i]` is an
offset: draft id i is target id i + d2t[i]. A mapping made for other sizes, another corpus or
another tokenizer is refused, never used silently. The same corpus gives the same bytes.
Price: one pass over the corpus; numpy only.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

import eagled
from eagled.artifacts import MANIFEST_NAME, read_json, sha256_file, write_bytes, write_json
from eagled.config import Config
from eagled.errors import ArtifactError, ConfigError
from eagled.holdout import TRAIN
from eagled.lanes import lane_for
from eagled.paths import StatePaths
from eagled.shards.container import map_arrays, read_container
from eagled.shards.target import read_target, resolve_model
from eagled.train.corpus import Corpus
from eagled.train.special import special_ids

_log = logging.getLogger(__name__)
VOCAB_FORMAT = "eagled-vocab/1"
TABLE_NAME = "vocab.safetensors"
_FLUSH_TOKENS = 1 << 20  # ids counted at a time
_SIZE_STEP = 64  # a size chosen by coverage is a multiple of it

Counts = npt.NDArray[np.int64]
LaneOf = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class DraftVocab:
    """A mapping between draft and target ids.

    Attributes:
        d2t: offsets, i64 [Vd]; draft id i is target id i + d2t[i].
        t2d: whether a target id is in, bool [V].
    """

    d2t: npt.NDArray[np.int64]
    t2d: npt.NDArray[np.bool_]

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """Target ids in draft order, ascending, i64 [Vd]."""
        result: npt.NDArray[np.int64] = np.arange(len(self.d2t), dtype=np.int64) + self.d2t
        return result

    @classmethod
    def of_ids(cls, ids: npt.NDArray[np.int64], target_vocab: int) -> DraftVocab:
        """Return the mapping that holds exactly `ids` (ascending, inside the target)."""
        t2d = np.zeros(target_vocab, np.bool_)
        t2d[ids] = True
        return cls(ids - np.arange(len(ids), dtype=np.int64), t2d)


@dataclass(frozen=True, slots=True)
class Selection:
    """Chosen ids, ascending, and how many of them are fillers that the corpus never uses."""

    ids: npt.NDArray[np.int64]
    fillers: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """Supervised tokens of one dataset (or lane) and split, and those that the draft can give."""

    dataset: str
    split: str
    tokens: int
    covered: int

    @property
    def share(self) -> float:
        """Covered share, 0 for none."""
        return self.covered / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class VocabResult:
    """A vocabulary on disk; `created` is False if the same one was there."""

    folder: Path
    vocab: DraftVocab
    coverage: tuple[Coverage, ...]
    fillers: int
    created: bool
    lanes: tuple[Coverage, ...] = ()


@dataclass(frozen=True, slots=True)
class CorpusCounts:
    """How often each target id is supervised, i64 [V], by (dataset, split) and (lane, split)."""

    by_part: Mapping[tuple[str, str], Counts]
    target_vocab: int
    by_lane: Mapping[tuple[str, str], Counts] = field(default_factory=dict)

    @property
    def train(self) -> Counts:
        """Counts of the train split."""
        total = np.zeros(self.target_vocab, np.int64)
        for (_, split), counts in self.by_part.items():
            if split == TRAIN:
                total += counts
        return total


def check_size(size: object, target_vocab: int) -> int:
    """Return `size` if a draft vocabulary can have it.

    Raises:
        ConfigError: naming the setting and the allowed range.
    """
    if type(size) is not int or not 1 <= size <= target_vocab:
        raise ConfigError(
            f"vocab.size = {size!r} is not allowed: a whole number in 1..{target_vocab} "
            "(the target's vocabulary)"
        )
    return size


def choose_ids(counts: Counts, size: object, keep: Iterable[int] = ()) -> Selection:
    """Return the ids of the draft vocabulary.

    Args:
        counts: supervised occurrences by target id, i64 [V].
        size: Vd.
        keep: ids that are in whatever their count.

    Raises:
        ConfigError: if the size or an id is out of range, or more ids are to be kept than fit.
    """
    target_vocab = len(counts)
    places = check_size(size, target_vocab)
    kept = sorted(set(keep))
    outside = [i for i in kept if not 0 <= i < target_vocab]
    if outside:
        raise ConfigError(f"vocab.always_keep: {outside} are outside 0..{target_vocab - 1}")
    if len(kept) > places:
        raise ConfigError(
            f"vocab.size = {places} is too small for the {len(kept)} control tokens and "
            f"always_keep ids; allowed: {len(kept)}..{target_vocab}"
        )
    order = np.lexsort((np.arange(target_vocab), -counts))  # frequent first, ties by id
    chosen = np.zeros(target_vocab, np.bool_)
    chosen[kept] = True
    used = [i for i in order[: np.count_nonzero(counts)] if not chosen[i]]
    chosen[used[: places - len(kept)]] = True
    fillers = places - int(chosen.sum())
    chosen[np.flatnonzero(~chosen)[:fillers]] = True
    return Selection(np.flatnonzero(chosen).astype(np.int64), fillers)


def count_corpus(corpus: Corpus, target_vocab: int, lane_of: LaneOf | None = None) -> CorpusCounts:
    """Count the supervised ids of every dataset, lane and split.

    Args:
        corpus: the corpus.
        target_vocab: V.
        lane_of: the lane of a prompt length; None counts no lanes.

    Raises:
        ArtifactError: if an id is outside the target's vocabulary, or nothing is supervised.
    """
    pieces: dict[tuple[str, str, str], list[npt.NDArray[np.int32]]] = defaultdict(list)
    found: dict[tuple[str, str, str], Counts] = {}
    held = 0
    for row in corpus.rows():
        lane = lane_of(row.n_prompt) if lane_of else ""
        pieces[row.dataset, lane, row.split].append(row.input_ids[row.n_prompt :])
        held += len(row.input_ids)
        if held >= _FLUSH_TOKENS:
            _count(pieces, found, target_vocab)
            held = 0
    _count(pieces, found, target_vocab)
    lanes = _summed({(lane, split): None for _, lane, split in found if lane}, found, 1)
    parts = _summed({(dataset, split): None for dataset, _, split in found}, found, 0)
    result = CorpusCounts(parts, target_vocab, lanes)
    if not result.train.any():
        raise ArtifactError(f"{corpus.folder}: nothing in its train split is supervised")
    return result


def _summed(
    keys: Iterable[tuple[str, str]], found: Mapping[tuple[str, str, str], Counts], place: int
) -> dict[tuple[str, str], Counts]:
    """Return the counts of each (name, split), where `place` of a key holds the name."""
    return {
        (name, split): np.sum([c for k, c in found.items() if (k[place], k[2]) == (name, split)], 0)
        for name, split in sorted(keys)
    }


def _count(
    pieces: dict[tuple[str, str, str], list[npt.NDArray[np.int32]]],
    parts: dict[tuple[str, str, str], Counts],
    target_vocab: int,
) -> None:
    """Add the collected ids to the counts, and forget them."""
    for key, arrays in pieces.items():
        ids = np.concatenate(arrays)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < target_vocab:
            raise ArtifactError(
                f"dataset {key[0]!r} has ids {ids.min()}..{ids.max()}, the target's vocabulary is "
                f"0..{target_vocab - 1}: was the corpus made with another tokenizer?"
            )
        parts.setdefault(key, np.zeros(target_vocab, np.int64))
        parts[key] += np.bincount(ids, minlength=target_vocab)
    pieces.clear()


def coverage_of(vocab: DraftVocab, parts: Mapping[tuple[str, str], Counts]) -> tuple[Coverage, ...]:
    """Return the coverage of every (dataset or lane, split), sorted."""
    return tuple(
        Coverage(name, split, int(c.sum()), int(c[vocab.t2d].sum()))
        for (name, split), c in sorted(parts.items())
    )


def size_for(counts: Counts, share: float, keep: Iterable[int], most: int) -> int:
    """Return the fewest draft ids that cover a share of the supervised tokens, at most `most`.

    Kept ids take their places first. A multiple of 64, which matrix products like, unless `most`
    is reached before.
    """
    kept = sorted(set(keep))
    wanted = share * int(counts.sum()) - int(counts[kept].sum())
    rest = np.delete(counts, kept)
    gained = np.cumsum(np.sort(rest)[::-1])
    more = int(np.searchsorted(gained, wanted)) + 1 if wanted > 0 else 0
    return min(most, -(-(len(kept) + more) // _SIZE_STEP) * _SIZE_STEP)


@dataclass(frozen=True, slots=True)
class VocabInputs:
    """What decides a vocabulary, apart from the corpus.

    Attributes:
        size: Vd.
        target_vocab: V.
        tokenizer_hash: of the target's tokenizer file.
        special: control tokens, from the tokenizer's files.
        always_keep: further ids from the configuration.
        coverage: share of the supervised train tokens that decides the size, then at most `size`;
            0 takes `size`.
        lane_of: the lane of a prompt length, for the report; None leaves lanes out.
    """

    size: int
    target_vocab: int
    tokenizer_hash: str
    special: tuple[int, ...] = ()
    always_keep: tuple[int, ...] = field(default=())
    coverage: float = 0.0
    lane_of: LaneOf | None = field(default=None, compare=False)


def build_vocab(corpus: Corpus, root: Path, inputs: VocabInputs) -> VocabResult:
    """Choose and write the vocabulary of a corpus into `root`/<version>-<size>.

    A vocabulary that is there already is kept if it was made from the same inputs.

    Raises:
        ConfigError: if a size or id is out of range.
        ArtifactError: if the corpus does not fit the target.
        DiskError: if it cannot be written.
    """
    check_size(inputs.size, inputs.target_vocab)
    counts = count_corpus(corpus, inputs.target_vocab, inputs.lane_of)
    keep = (*inputs.special, *inputs.always_keep)
    size = inputs.size
    if inputs.coverage:
        size = size_for(counts.train, inputs.coverage, keep, size)
    selection = choose_ids(counts.train, size, keep)
    vocab = DraftVocab.of_ids(selection.ids, inputs.target_vocab)
    coverage, lanes = (coverage_of(vocab, part) for part in (counts.by_part, counts.by_lane))
    if selection.fillers:
        _log.warning("few different tokens fillers=%d size=%d", selection.fillers, size)
    folder = root / f"{corpus.version}-{size}"
    table = _encode(vocab)
    manifest = _manifest(corpus, inputs, selection, (*coverage, *lanes))
    created = not _is_there(folder, table, manifest)
    if created:
        write_bytes(folder / TABLE_NAME, table)
        manifest["table_sha256"] = sha256_file(folder / TABLE_NAME)
        write_json(folder / MANIFEST_NAME, manifest)
    return VocabResult(folder, vocab, coverage, selection.fillers, created, lanes)


def vocab_inputs(config: Config) -> VocabInputs:
    """Return the inputs that a configuration names, reading the target's JSON files.

    Raises:
        ConfigError: if there is no target folder, or a setting is out of range.
    """
    folder = resolve_model(config.target.model, config.target.revision)
    target = read_target(folder)
    return VocabInputs(
        size=config.vocab.size,
        target_vocab=target.vocab_size,
        tokenizer_hash=target.tokenizer_hash,
        special=special_ids(
            folder, Path(config.target.tokenizer) if config.target.tokenizer else None
        ),
        always_keep=config.vocab.always_keep,
        coverage=config.vocab.coverage,
        lane_of=lambda n: lane_for(config, n, server_context=None) or "none",
    )


def vocab_run(config: Config, corpus: Corpus) -> VocabResult:
    """Build the vocabulary of `corpus` for the run of `config`."""
    return build_vocab(corpus, StatePaths(config.run.state_dir).vocab, vocab_inputs(config))


def load_vocab(
    folder: Path,
    *,
    target_vocab: int,
    draft_vocab: int | None,
    corpus: Corpus | None = None,
    tokenizer_hash: str | None = None,
) -> DraftVocab:
    """Return the mapping in `folder` if it is the one that is asked for.

    Args:
        folder: as `build_vocab` names it.
        target_vocab: V of the target.
        draft_vocab: Vd that is asked for; None is the full vocabulary, which needs no mapping.
        corpus: the corpus it must have been made from; None takes any.
        tokenizer_hash: the tokenizer it must have been made for; None takes any.

    Raises:
        ArtifactError: naming what differs, or that the file is damaged.
    """
    manifest = read_json(folder / MANIFEST_NAME)
    wanted = {
        "format": VOCAB_FORMAT,
        "draft_vocab": draft_vocab if draft_vocab is not None else "full",
        "target_vocab": target_vocab,
        **({"members_hash": corpus.members_hash} if corpus else {}),
        **({"tokenizer_hash": tokenizer_hash} if tokenizer_hash else {}),
    }
    stale = [
        f"{key} is {manifest.get(key)!r}, asked for {value!r}"
        for key, value in wanted.items()
        if manifest.get(key) != value
    ]
    if stale:
        raise ArtifactError(
            f"{folder} is not the vocabulary asked for: {'; '.join(stale)}; run `eagled vocab`"
        )
    container = read_container(folder / TABLE_NAME)
    if sha256_file(container.path) != manifest.get("table_sha256"):
        raise ArtifactError(f"{container.path} was altered: its checksum differs; build it again")
    arrays = map_arrays(container, ("d2t", "t2d"))
    return check_mapping(
        arrays["d2t"], arrays["t2d"], draft_vocab=draft_vocab, target_vocab=target_vocab
    )


def check_mapping(
    d2t: npt.NDArray[Any] | None,
    t2d: npt.NDArray[Any] | None,
    *,
    draft_vocab: int | None,
    target_vocab: int,
) -> DraftVocab:
    """Return a mapping whose two halves agree with each other and with the sizes.

    Raises:
        ArtifactError: if a reduced draft has no mapping (its ids would silently mean the first
            ones), or type, length, order or content is wrong.
    """
    size = target_vocab if draft_vocab is None else draft_vocab
    if d2t is None or t2d is None:
        raise ArtifactError(f"a draft with {size} of {target_vocab} tokens needs d2t and t2d")
    found = (str(d2t.dtype), d2t.shape, str(t2d.dtype), t2d.shape)
    want = ("int64", (size,), "bool", (target_vocab,))
    if found != want:
        raise ArtifactError(f"the vocabulary mapping is {found}, expected {want} (d2t, t2d)")
    vocab = DraftVocab(d2t, t2d)
    if not np.array_equal(vocab.ids, np.flatnonzero(t2d)):
        raise ArtifactError(
            "d2t and t2d disagree: i + d2t[i] must be the ids of t2d, ascending; does d2t hold "
            "absolute ids instead of offsets?"
        )
    return vocab


def mapping_to_continue(own: DraftVocab, built: DraftVocab) -> tuple[DraftVocab, str]:
    """Return the mapping to continue a checkpoint with: its own; and what differs, or nothing.

    The head's rows are in the order of its mapping, so another one would silently change what
    each row means.
    """
    if np.array_equal(own.d2t, built.d2t) and np.array_equal(own.t2d, built.t2d):
        return own, ""
    new = int(np.count_nonzero(~np.isin(built.ids, own.ids)))
    return own, (
        f"the corpus would give another vocabulary ({len(built.ids)} ids, {new} of them not in "
        f"the checkpoint's {len(own.ids)}); the checkpoint's is kept"
    )


def _encode(vocab: DraftVocab) -> bytes:
    data: bytes = save({"d2t": vocab.d2t, "t2d": vocab.t2d}, metadata={"format": VOCAB_FORMAT})
    return data


def _manifest(
    corpus: Corpus, inputs: VocabInputs, selection: Selection, coverage: Sequence[Coverage]
) -> dict[str, Any]:
    return {
        "format": VOCAB_FORMAT,
        "eagled": eagled.__version__,
        "corpus": corpus.version,
        "members_hash": corpus.members_hash,
        "tokenizer_hash": inputs.tokenizer_hash,
        "target_vocab": inputs.target_vocab,
        "draft_vocab": len(selection.ids),
        "special": sorted(inputs.special),
        "always_keep": sorted(inputs.always_keep),
        "fillers": selection.fillers,
        "coverage": {f"{c.dataset} {c.split}": round(c.share, 6) for c in coverage},
        "coverage_tokens": [asdict(c) for c in coverage],
    }


def _is_there(folder: Path, table: bytes, manifest: Mapping[str, Any]) -> bool:
    try:
        known = read_json(folder / MANIFEST_NAME)
        same = (folder / TABLE_NAME).read_bytes() == table
    except (ArtifactError, OSError):
        return False
    known.pop("table_sha256", None)
    return same and known == dict(manifest)
