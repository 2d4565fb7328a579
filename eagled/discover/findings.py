"""What a run of discover knows in the end, as plain data for the report and for the choice.

Guarantee: `read_findings(write_findings(f))` gives the same; the file is written whole or not at
all, so that `--choose` works on what the person saw, not on what the hub says a day later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagled.artifacts import read_json, write_json
from eagled.config import Config
from eagled.discover.assume import Assumption, assumptions
from eagled.discover.categories import Category
from eagled.discover.facts import FACTS_VERSION, Facts
from eagled.discover.figures import Figures, Setting, figures_of
from eagled.discover.propose import Entry, Proposal, Rejected, alternatives, propose
from eagled.discover.rank import Ranked
from eagled.errors import ArtifactError

FINDINGS_NAME, MARKDOWN_NAME, PAGE_NAME = "findings.json", "report.md", "report.html"


@dataclass(frozen=True, slots=True)
class Choice:
    """A mix that can be chosen, with what it takes."""

    proposal: Proposal
    figures: Figures


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked; the names are those of `Findings`."""

    goal: int
    target: str
    at: str
    note: str


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that is reported.

    Attributes:
        goal: conversations wanted.
        target: name of the target.
        at: when, ISO 8601 UTC.
        unit: tokens if prompts were counted with the target's tokenizer, else characters.
        note: why they were not.
        ranked: candidates, the best first.
        choices: the proposed mix, then the known ones.
        rejected: what the proposed mix leaves out.
        assumptions: of the proposed mix.
        failures: searches that did not work.
        titles: of the categories by name.
    """

    goal: int
    target: str
    at: str
    unit: str
    note: str
    ranked: Sequence[Ranked]
    choices: Sequence[Choice]
    rejected: Sequence[Rejected]
    assumptions: Sequence[Assumption]
    failures: Sequence[str]
    titles: Mapping[str, str]

    @property
    def proposed(self) -> Choice:
        """The mix made of what was found; without entries if that was nothing."""
        return self.choices[0]

    def choice(self, name: str) -> Choice:
        """Return a mix by its name.

        Raises:
            ArtifactError: naming those there are.
        """
        for choice in self.choices:
            if choice.proposal.name == name:
                return choice
        known = ", ".join(choice.proposal.name for choice in self.choices)
        raise ArtifactError(f"no mix is called {name!r}; there are {known}")

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        value = dataclasses.asdict(self)
        for item, ranked in zip(value["ranked"], self.ranked, strict=True):
            item["facts"] = ranked.facts.to_json()
        for item, choice in zip(value["choices"], self.choices, strict=True):
            item["proposal"]["count"] = choice.proposal.count
        return {"version": FACTS_VERSION, **value}


def conclude(
    ranked: Sequence[Ranked],
    categories: Sequence[Category],
    config: Config,
    setting: Setting,
    asked: Asked,
    failures: Sequence[str],
) -> Findings:
    """Return the findings of a run over ranked candidates."""
    proposal, rejected = propose(ranked, categories, asked.goal)
    facts = {item.facts.source: item.facts for item in ranked}
    choices = tuple(
        Choice(each, figures_of(each, facts, setting))
        for each in (proposal, *alternatives(asked.goal, facts))
    )
    found = assumptions(choices[0].figures, config, setting.rate_tok_per_s)
    return Findings(
        goal=asked.goal,
        target=asked.target,
        at=asked.at,
        unit="characters" if asked.note else "tokens",
        note=asked.note,
        ranked=tuple(ranked),
        choices=choices,
        rejected=tuple(rejected),
        assumptions=tuple(found),
        failures=tuple(failures),
        titles={c.name: c.title for c in categories},
    )


def write_findings(path: Path, findings: Findings) -> None:
    """Keep the findings for `--choose`."""
    write_json(path, findings.to_json())


def read_findings(path: Path) -> Findings:
    """Return the findings of the last run.

    Raises:
        ArtifactError: if there are none, or of another version.
    """
    try:
        value = read_json(path)
    except ArtifactError as exc:
        raise ArtifactError(f"{exc}; run `eagled discover` first") from exc
    if value.pop("version", None) != FACTS_VERSION:
        raise ArtifactError(f"{path} is of another version: run `eagled discover` again")
    try:
        return Findings(
            ranked=tuple(_ranked(item) for item in value.pop("ranked")),
            choices=tuple(_choice(item) for item in value.pop("choices")),
            rejected=tuple(Rejected(**item) for item in value.pop("rejected")),
            assumptions=tuple(Assumption(**item) for item in value.pop("assumptions")),
            **value,
        )
    except (KeyError, TypeError) as exc:
        raise ArtifactError(f"{path} is incomplete: {exc!r}") from exc


def _ranked(value: Mapping[str, Any]) -> Ranked:
    return Ranked(Facts.from_json(value["facts"]), value["score"], value["flaw"])


def _choice(value: Mapping[str, Any]) -> Choice:
    proposal = {k: v for k, v in value["proposal"].items() if k != "count"}
    entries = tuple(Entry(**entry) for entry in proposal.pop("entries"))
    return Choice(Proposal(entries=entries, **proposal), Figures(**value["figures"]))
