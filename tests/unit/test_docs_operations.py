"""What an operator reads is complete: each alarm, each exit code, and only commands that exist."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from eagled import errors
from eagled.cli import EXIT_INTERRUPTED, app
from eagled.errors import EagledError

ROOT = Path(__file__).parents[2]
GENERATED = ("commands.md", "configuration.md", "metrics.md")
PAGES = [
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").glob("*.md") if p.name not in GENERATED),
]
SPAN = re.compile(r"```[a-z]*\n(.*?)^```$|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|(?<=[|;&]\s)|(?<=\$\())eagled(?= |$)[^|;&>#\n]*", re.MULTILINE)
TREE: Any = get_command(app)


def _alarms() -> dict[str, str]:
    """Return the levels of every alarm in the daemon's code by its kind, before the colon."""
    levels: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "eagled").glob("daemon*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        names = _assigned(module.body)
        for function in ast.walk(module):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = names | _assigned(ast.walk(function))
                for kind, level in _raised(function, inner):
                    levels[kind].add(level)
    return {kind: ", ".join(sorted(found)) for kind, found in levels.items()}


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    return {ast.unparse(n.targets[0]): n.value for n in nodes if isinstance(n, ast.Assign)}


def _raised(function: ast.AST, names: Mapping[str, ast.expr]) -> Iterator[tuple[str, str]]:
    """Yield kind and level of each call of the alarm board."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        on_board = ast.unparse(node.func.value).endswith("board")
        if on_board and node.func.attr in ("raise_", "keep"):
            kind = names.get(ast.unparse(node.args[0]), node.args[0])
            yield ast.unparse(kind).lstrip("f").strip("\"'").partition(":")[0], _level(node)


def _level(call: ast.Call) -> str:
    given = {k.arg: k.value for k in call.keywords}.get("level")
    if given is None and len(call.args) > 2:
        given = call.args[2]
    return str(ast.literal_eval(given)) if given is not None else "warn"


def _table(page: Path, title: str) -> list[list[str]]:
    """Return the rows of the tables whose first column has this title."""
    rows: list[list[str]] = []
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        inside = line.startswith("| ") and (inside or cells[0] == title)
        if inside and cells[0] != title and not cells[0].startswith("---"):
            rows.append(cells)
    return rows


def test_every_alarm_is_in_the_runbook_with_its_level() -> None:
    """Each key that the daemon can raise has one row, and each row a key."""
    told = {row[0].strip("`"): row[1] for row in _table(ROOT / "docs/runbook.md", "alarm")}

    assert _alarms() == told


def test_every_row_of_the_runbook_says_what_to_do() -> None:
    """No cell is empty: a person who is woken finds the next step."""
    rows = _table(ROOT / "docs/runbook.md", "alarm")

    assert [] == [row[0] for row in rows if len(row) != 5 or not all(row)]


def _exit_codes() -> set[int]:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, EagledError)]
    return {kind.exit_code for kind in kinds}


def test_every_exit_code_is_explained() -> None:
    """The table of commands has the code of each error class, success and ctrl-C, and no other."""
    told = [int(row[0]) for row in _table(ROOT / "docs/commands.md", "exit code")]

    assert sorted({0, EXIT_INTERRUPTED} | _exit_codes()) == sorted(told)


def test_the_runbook_says_which_ends_are_started_again() -> None:
    """Its column agrees with the unit: Restart=on-failure but for the codes listed there."""
    unit = (ROOT / "systemd/eagled@.service").read_text(encoding="utf-8")
    listed = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)[0].split()
    rows = _table(ROOT / "docs/runbook.md", "exit code")
    told = {row[0]: row[1] for row in rows if row[0].isdigit()}

    assert {str(code) for code in _exit_codes()} | {"0"} == set(told)
    assert {code: "no" if code in (*listed, "0") else "yes" for code in told} == told


def _commands(page: Path) -> Iterator[str]:
    """Yield each call of `eagled` in the code of a page."""
    for block, inline in SPAN.findall(page.read_text(encoding="utf-8")):
        for found in COMMAND.finditer(block.replace("\\\n", " ") or inline):
            yield found[0].strip()


def _wrong(call: str) -> str:
    """Return what of a call does not exist; empty if all of it does."""
    at = TREE
    options: set[str] = set()
    for word in call.split()[1:]:
        word = word.strip("[]()").partition("=")[0]  # noqa: PLW2901 - cleaned, not another thing
        if word.startswith("-") and word.strip("-"):
            options |= {name for p in at.params for name in (*p.opts, *p.secondary_opts)}
            if word not in {*options, "-h", "--help"}:
                return f"{call!r}: {at.name} has no {word}"
        elif hasattr(at, "commands") and re.fullmatch(r"[a-z-]+", word):
            if word not in at.commands:
                return f"{call!r}: {at.name} has no command {word}"
            at = at.commands[word]
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_every_command_of_a_page_exists(page: Path) -> None:
    """Command, subcommand and options of each `eagled …` in code are there."""
    assert [] == [wrong for call in _commands(page) if (wrong := _wrong(call))]


def test_the_check_of_commands_can_fail() -> None:
    """A command, a subcommand and an option that are not there are found; real ones are not."""
    calls = [
        "eagled frobnicate",
        "eagled db mend",
        "eagled status --loud",
        "eagled db check --json",
    ]

    assert [True, True, True, False] == [bool(_wrong(call)) for call in calls]
    assert len(list(_commands(ROOT / "README.md"))) > 10
