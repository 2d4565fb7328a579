"""Which mix was chosen and why, kept beside the plans so that every plan says it.

Light: `eagled.plan` reads it on the daemon's side.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from eagled.artifacts import read_json, write_json
from eagled.errors import ArtifactError
from eagled.plan_render import DataFacts


def write_decision(path: Path, facts: DataFacts) -> None:
    """Keep a decision."""
    write_json(path, dataclasses.asdict(facts))


def read_decision(path: Path) -> DataFacts | None:
    """Return the decision, None if none was made.

    Raises:
        ArtifactError: if the file is not understood.
    """
    if not path.exists():
        return None
    try:
        return DataFacts(**read_json(path))
    except TypeError as exc:
        raise ArtifactError(f"{path} is not a decision about data: {exc}") from exc
