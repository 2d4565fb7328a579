"""Mixes of prompt datasets that `eagled init --mix` writes into a new configuration.

Guarantee: a mix is plain `[[datasets]]` text, every value of which can be changed; nothing else in
eagled knows about mixes. Counts are wishes: prep takes that many rows by chance (or all there are),
and says so when a source gives fewer.
Coupled: the datasets' ids, sizes and licences are second-hand (cards and mirrors); prep pins the
commit that it really reads in the manifest.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from eagled.errors import UsageError
from eagled.types import Mode

_WIDTH = 96


@dataclass(frozen=True, slots=True)
class MixEntry:
    """One dataset of a mix; `settings` are further settings of its section, `note` a comment."""

    name: str
    source: str
    count: int
    note: str
    mode: Mode = Mode.REGENERATE
    shuffle: bool = True
    settings: Mapping[str, str | int | Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MixGroup:
    """Datasets that belong together."""

    title: str
    entries: tuple[MixEntry, ...]

    @property
    def count(self) -> int:
        """Rows of the group."""
        return sum(entry.count for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Mix:
    """A whole mix; `text` says what it is for."""

    name: str
    text: str
    groups: tuple[MixGroup, ...]

    @property
    def count(self) -> int:
        """Rows of the mix."""
        return sum(group.count for group in self.groups)


_ULTRACHAT = MixEntry(
    "ultrachat", "HuggingFaceH4/ultrachat_200k", 15_000,
    "207,865 conversations, MIT. All of it is inside open-perfectblend too: do not use both.",
    settings={"split": "train_sft"},
)  # fmt: skip
_SHAREGPT = MixEntry(
    "sharegpt", "Aeala/ShareGPT_Vicuna_unfiltered", 10_000,
    "About 94,000 conversations of ChatGPT users in many languages; rights of the texts are "
    'unclear. Long chats were split into pieces. For one language: languages = ["en"].',
)  # fmt: skip

AGENTIC = Mix(
    "agentic",
    "Heavy on agents and code, for a target that is served with tools. Regenerated prompts "
    "85,000; native answers 4,800; one turn of each of 10,000 recorded agent runs.",
    (
        MixGroup("agents and tools", (
            MixEntry(
                "swe-agent", "nebius/SWE-agent-trajectories", 10_000,
                "80,036 runs, CC-BY-4.0, 1.1 GB. The answers are a Llama's, so one turn of each "
                "run is asked again, behind the run as it was recorded; mostly for the long lane. "
                "Tasks were run many times: four runs of each at most. "
                "Made from issues like SWE-bench's: name its prompts in prep.exclude if that is "
                "your benchmark.",
                settings={"turns": 1, "max_per_task": 4},
            ),
            MixEntry(
                "deepswe", "SWE-Factory/DeepSWE-Agent-Kimi-K2-Trajectories-2.8K", 2_800,
                "2,809 runs, MIT. Kimi-K2's own answers, without reasoning: native for a Kimi "
                'target with thinking off. For another target: mode = "regenerate".',
                mode=Mode.NATIVE, shuffle=False,
            ),
            MixEntry(
                "glaive", "glaiveai/glaive-function-calling-v2", 10_000,
                "112,960 conversations, Apache-2.0; about a third has no functions.",
            ),
        )),
        MixGroup("code", (
            MixEntry(
                "opencode", "nvidia/OpenCodeInstruct", 15_000,
                "5,000,000 rows, CC-BY-4.0. Only the first 200,000 are read, because all would be "
                "many gigabytes.",
                settings={"read_rows": 200_000},
            ),
            MixEntry(
                "magicoder", "ise-uiuc/Magicoder-Evol-Instruct-110K", 10_000,
                "111,183 rows. Paraphrases of HumanEval were found in it: name the benchmark's "
                "prompts in prep.exclude. Overlaps open-perfectblend.",
            ),
        )),
        MixGroup("reasoning", (
            *(
                MixEntry(
                    f"thoughts-{part}", "open-r1/Mixture-of-Thoughts", 5_000,
                    f"{size} rows; short prompts, long answers. Overlaps OpenThoughts in maths: "
                    "what stands further up in this file wins.",
                    settings={"config": part},
                )
                for part, size in (("math", "93,733"), ("code", "83,070"), ("science", "172,514"))
            ),
            MixEntry(
                "openthoughts", "open-thoughts/OpenThoughts-114k", 10_000,
                "113,957 rows, Apache-2.0, 78% maths. Its system text asks for another model's "
                "tags and is not sent.",
            ),
        )),
        MixGroup("chat", (_ULTRACHAT, _SHAREGPT)),
        MixGroup("written by Kimi", (
            MixEntry(
                "kimi-2000x", "crownelius/KimiK2.5-2000x", 2_000,
                "About 2,000 rows. Its columns could not be looked at beforehand: try `eagled prep "
                "--inspect crownelius/KimiK2.5-2000x` first. Native for Kimi-K2.5 only.",
                mode=Mode.NATIVE, shuffle=False,
            ),
        )),
    ),
)  # fmt: skip

PERFECTBLEND = Mix(
    "perfectblend",
    "A subsample of one broad set: chat, maths and code, without tools.",
    (
        MixGroup("everything", (
            MixEntry(
                "perfectblend", "mlabonne/open-perfectblend", 100_000,
                "1,420,909 rows, 1.5 GB, of which by chance: MetaMathQA, UltraInteract, UltraChat, "
                "orca-math, UltraFeedback, evol-codealpaca, AutoIF, LMSYS arena.",
            ),
        )),
    ),
)  # fmt: skip

CHAT = Mix(
    "chat",
    "What most drafts elsewhere are trained on: plain conversations, no tools, little code.",
    (MixGroup("chat", (_SHAREGPT, _ULTRACHAT)),),
)

MIXES: Mapping[str, Mix] = {mix.name: mix for mix in (AGENTIC, PERFECTBLEND, CHAT)}


def mix_named(name: str) -> Mix:
    """Return a mix.

    Raises:
        UsageError: if there is none of this name; the message lists them.
    """
    if name not in MIXES:
        raise UsageError(f"--mix {name}: there is no such mix; choose {', '.join(MIXES)}")
    return MIXES[name]


def mix_toml(mix: Mix) -> str:
    """Return the `[[datasets]]` sections of a mix, with comments."""
    return "\n".join(_mix_lines(mix)) + "\n"


def _mix_lines(mix: Mix) -> Iterator[str]:
    yield from _comment(f'The mix "{mix.name}": {mix.count:,} conversations. {mix.text}')
    yield from _comment(
        "Every row is asked of the target again, except where mode is native. A question that "
        "stands in two datasets counts in the first. `eagled prep NAME` prepares one of them."
    )
    yield ""
    for group in mix.groups:
        yield f"# -- {group.title}: {group.count:,}"
        yield ""
        for entry in group.entries:
            yield from _entry_lines(entry)


def _entry_lines(entry: MixEntry) -> Iterator[str]:
    yield "[[datasets]]"
    yield from _comment(entry.note)
    values: dict[str, str | int | Sequence[str]] = {
        "name": entry.name,
        "source": entry.source,
        **entry.settings,
    }
    values |= {"mode": entry.mode.value, "count": entry.count}
    yield from (f"{key} = {json.dumps(value)}" for key, value in values.items())
    if entry.shuffle:
        yield "shuffle = true"
    yield ""


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]
