"""What can be typed after `:`; pure.

Every command is a view, a sample, or one call of the control API. `ask` is a question that has to
be answered first: what stops everything is never done at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from eagled.errors import UsageError
from eagled.tui.views import VIEWS

COMMAND_HELP: tuple[tuple[str, str], ...] = (
    ("sample UID", "one sample"),
    ("pause [LANE|DATASET]", "without a name everything, after a question"),
    ("resume [LANE|DATASET]", "go on"),
    ("drain", "finish what runs, start nothing, after a question"),
    ("limit LANE|DATASET N", "requests at once"),
    ("priority DATASET N", "higher is earlier"),
    ("share LANE|DATASET N", "weight beside the others"),
    ("extract start|pause", "begin or stop taking hidden states"),
    ("undo", "take the last change back"),
    ("quit", "leave; the daemon runs on"),
)


def command_of(words: str) -> str:
    """Return what is typed for a line of the help; it ends in a space when more has to follow."""
    first, *rest = words.split()
    return f"{first} " if any(not word.startswith("[") for word in rest) else first


@dataclass(frozen=True, slots=True)
class Command:
    """One thing to do; the other fields are empty."""

    view: str = ""
    sample: str = ""
    path: str = ""
    body: Mapping[str, object] = field(default_factory=dict)
    ask: str = ""
    quit: bool = False


def parse_command(  # noqa: PLR0911 - one return a command
    text: str, lanes: Sequence[str], datasets: Sequence[str]
) -> Command:
    """Return what a typed line means.

    Raises:
        UsageError: naming what is accepted.
    """
    match text.split():
        case ["quit" | "q"]:
            return Command(quit=True)
        case [name] if name in VIEWS:
            return Command(view=name)
        case ["sample", uid]:
            return Command(sample=uid)
        case ["pause" | "drain" as verb]:
            ask = "nothing new is sent anywhere until `:resume`; what runs is finished"
            return Command(path=f"/v1/{verb}", ask=ask)
        case ["resume" | "undo" as verb]:
            return Command(path=f"/v1/{verb}")
        case ["extract", "start" | "pause" as word]:
            return Command(path="/v1/extract", body={"paused": word == "pause"})
        case ["pause" | "resume" as verb, name]:
            return Command(path=_path(name, lanes, datasets), body={"paused": verb == "pause"})
        case ["limit" | "share" | "priority" as word, name, number]:
            path = _path(name, lanes, datasets)
            if word == "priority" and path.startswith("/v1/lanes"):
                raise UsageError("a priority belongs to a dataset")
            return Command(path=path, body={word: _number(number)})
    known = ", ".join(words for words, _ in COMMAND_HELP)
    raise UsageError(f"{text!r} is no command; there are: {known}")


def _path(name: str, lanes: Sequence[str], datasets: Sequence[str]) -> str:
    where = "lanes" if name in lanes else "datasets" if name in datasets else ""
    if not where:
        raise UsageError(f"there is no lane or dataset {name!r}")
    return f"/v1/{where}/{quote(name, safe='')}"


def _number(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 6:  # noqa: PLR2004 - no huge ones
        raise UsageError(f"{text!r}: needs a whole number")
    return int(text)
