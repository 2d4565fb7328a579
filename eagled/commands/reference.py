"""docs/commands.md, made from the commands themselves (`python -m eagled.commands.reference`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEAD = """\
# Commands

This page is made from the commands (`python -m eagled.commands.reference`); a test fails when it is
out of date.

Every command takes `--config FILE` (else `$EAGLED_CONFIG`, else `eagled.toml` here), before or
after its name; `--json` prints data for programs. Errors are one message on stderr;
`EAGLED_DEBUG=1` adds the traceback. Commands marked "Needs the daemon" end with 69 when none
runs.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | failed: a check found something, a file is torn or of another run |
| 2 | the command line is wrong |
| 69 | the daemon or a server is not reachable |
| 73 | the database is absent, foreign, damaged or went back in time |
| 74 | the disk is full, read-only or failing |
| 75 | another daemon holds the state directory |
| 78 | the configuration, the model or the server's identity is wrong |
| 130 | interrupted by ctrl-C |
"""
_NEEDS_DAEMON = {
    "pause", "resume", "drain", "set", "prioritize", "enqueue", "merge", "extract", "retry",
    "reject", "undo", "status", "samples", "failures", "top",
}  # fmt: skip


def render_reference() -> str:
    """Return the page."""
    from typer.main import get_command

    from eagled.cli import app

    root: Any = get_command(app)
    parts = [_HEAD]
    for name, command in root.commands.items():
        parts.extend(_sections(name, command))
    return "\n".join(parts)


def _sections(name: str, command: Any) -> Iterator[str]:  # noqa: ANN401 - typer's own click
    children = getattr(command, "commands", None)
    if children is not None:
        if command.invoke_without_command:
            yield from _own(name, command)
        for child, inner in children.items():
            yield from _sections(f"{name} {child}", inner)
        return
    yield from _own(name, command)


def _own(name: str, command: Any) -> Iterator[str]:  # noqa: ANN401 - typer's own click
    note = " Needs the daemon." if name in _NEEDS_DAEMON else ""
    yield f"## `eagled {name}`\n\n{command.help}{note}\n"
    rows = [_row(param) for param in command.params if param.name != "help"]
    if rows:
        yield "| argument | meaning | default |\n| --- | --- | --- |"
        yield "\n".join(rows) + "\n"


def _row(param: Any) -> str:  # noqa: ANN401 - typer's own click
    is_option = param.param_type_name == "option"
    names = ", ".join(f"`{opt}`" for opt in param.opts) if is_option else f"`{_argument(param)}`"
    text = (param.help or "").replace("|", "\\|")
    shown = param.default is not None and param.default is not False and not param.required
    default = f"`{param.default}`" if shown else ""
    return f"| {names} | {text} | {default} |"


def _argument(param: Any) -> str:  # noqa: ANN401 - typer's own click
    name = str(param.name).upper()
    return name if param.required else f"[{name}]"


if __name__ == "__main__":
    Path("docs/commands.md").write_text(render_reference(), encoding="utf-8")
