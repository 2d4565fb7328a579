"""Write a chosen mix into the configuration, and the decision into the plan.

Guarantee: the new file differs from the old one in its datasets only (compared as parsed TOML), is
a right configuration, and replaces the old one whole or not at all. Old sections stay as comments.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from eagled.artifacts import write_bytes
from eagled.config_load import LoadedConfig, load_config
from eagled.discover import view
from eagled.discover.decision import write_decision
from eagled.discover.findings import FINDINGS_NAME, Choice, Findings, read_findings
from eagled.discover.pages import markdown_text
from eagled.discover.propose import to_mix
from eagled.errors import ArtifactError, ConfigError, UsageError
from eagled.mix import mix_toml
from eagled.paths import StatePaths
from eagled.plan import write_plan
from eagled.plan_render import DataFacts

_HEADER = re.compile(r"^\s*\[\[?\s*(?P<name>[\w.\"' -]+?)\s*\]\]?\s*(?:#.*)?$")
_SECTION = "datasets"


def choose(loaded: LoadedConfig, name: str, *, replace: bool) -> tuple[Choice, Path]:
    """Write a mix of the last findings; return it and the plan that says so.

    Args:
        loaded: the configuration to change.
        name: of the mix.
        replace: whether datasets that are configured may become comments.

    Raises:
        ArtifactError: if there are no findings, or no such mix, or it is empty.
        UsageError: if there are datasets and they may not be replaced.
        ConfigError: if the file cannot be changed safely.
    """
    paths = StatePaths(loaded.config.run.state_dir)
    findings = read_findings(paths.discover / FINDINGS_NAME)
    choice = findings.choice(name)
    if not choice.proposal.entries:
        raise ArtifactError(f"the mix {name!r} is empty: there is nothing to write")
    if loaded.config.datasets and not replace:
        raise UsageError(
            f"{loaded.path} has {len(loaded.config.datasets)} datasets already; --replace makes "
            "comments of them"
        )
    changed = write_datasets(loaded.path, mix_toml(to_mix(choice.proposal)))
    write_decision(paths.data_choice, decision_of(findings, choice))
    return choice, write_plan(changed.config, None)


def write_datasets(path: Path, text: str) -> LoadedConfig:
    """Replace the datasets of a configuration file; return what holds now.

    Raises:
        ConfigError: if the result would be wrong; the file is then as it was.
    """
    file = path.resolve()
    old = file.read_text(encoding="utf-8-sig")
    new = "\n".join([*_commented(old), "", text])
    _require_same(old, new, text, file)
    trial = file.with_name(f".{file.name}.trial")
    try:
        write_bytes(trial, new.encode())
        trial.chmod(file.stat().st_mode & 0o777)
        load_config(trial)
        trial.replace(file)
    finally:
        trial.unlink(missing_ok=True)
    return load_config(path)


def _commented(text: str) -> Iterator[str]:
    """Yield the lines of a configuration, its datasets as comments."""
    inside = False
    for line in text.rstrip("\n").split("\n"):
        if header := _HEADER.match(line):
            inside = header["name"].split(".")[0].strip("\"' ") == _SECTION
        live = inside and line.strip() and not line.lstrip().startswith("#")
        yield f"# {line}" if live else line


def _require_same(old: str, new: str, added: str, file: Path) -> None:
    """Raise unless the new text is the old one with other datasets."""
    wanted = {**tomllib.loads(old), _SECTION: tomllib.loads(added)[_SECTION]}
    try:
        same = tomllib.loads(new) == wanted
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise ConfigError(
            f"{file} is written in a way that its datasets cannot be replaced safely; make "
            "comments of its [[datasets]] by hand, then choose again"
        )


def decision_of(findings: Findings, choice: Choice) -> DataFacts:
    """Return what the plan says of a choice."""
    proposal = choice.proposal
    others = [
        (c.proposal.name, f"not chosen: {c.proposal.trade}")
        for c in findings.choices
        if c is not choice
    ]
    rejected = [(r.source, r.why) for r in findings.rejected if not _has(choice, r.source)]
    compared = [view.compare_head(findings.choices), *view.compare_rows(findings.choices)]
    text = (
        f"{proposal.title} for {findings.target}: {proposal.count:,} conversations of a goal of "
        f"{findings.goal:,}. Found at {findings.at}."
    )
    return DataFacts(
        text=markdown_text(text),
        entries=_cells(view.entry_rows(choice)),
        rejected=_cells([*others, *rejected]),
        compared=_cells(compared),
        assumptions=_cells(view.assumption_rows(findings)),
    )


def _cells(rows: Iterable[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Return rows for a Markdown table; what is in them came from a hub."""
    return tuple(tuple(map(markdown_text, row)) for row in rows)


def _has(choice: Choice, source: str) -> bool:
    return any(entry.source == source for entry in choice.proposal.entries)
