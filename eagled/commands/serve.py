"""`eagled serve`: start SGLang with what the run needs, and check what came up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagled.commands.common import ConfigOption, JsonOption, SetOption, load, say, say_json, warn
from eagled.errors import ConfigError, UnreachableError, UsageError

if TYPE_CHECKING:
    from eagled.config import Config, ServerConfig
    from eagled.server.command import ServePlan


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(serve)


def serve(
    *,
    url: Annotated[
        str | None, typer.Option(help="Which of [[servers]]; by default the first.")
    ] = None,
    draft: Annotated[
        Path | None, typer.Option(help="Folder of an EAGLE-3 draft to speculate with.")
    ] = None,
    capture: Annotated[
        bool, typer.Option("--capture", help="Write hidden states: no prefix cache.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command and start nothing.")
    ] = False,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Keep it although it is not what was asked for.")
    ] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start SGLang with the flags that the run needs; ctrl-C or SIGTERM ends it."""
    from eagled.capture import capture_environment
    from eagled.server.command import plan_serve
    from eagled.server.foreground import can_run, shell_line

    found = load(config, settings).config
    server = _server(found, url)
    plan = plan_serve(
        found,
        server,
        draft=draft.absolute() if draft is not None else None,
        capture=capture,
        capture_env=capture_environment(found) if capture else None,
    )
    if as_json:
        say_json({"url": plan.url, "argv": plan.argv, "env": dict(plan.env)})
    elif dry_run:
        say(shell_line(plan.argv, plan.env))
        if plan.key_file is not None:
            warn(f"the key of {plan.key_file} is handed over in a file: --config FILE")
    if dry_run:
        return
    if not can_run(plan.argv[0]):
        raise UnreachableError(
            f"serve.python = {plan.argv[0]!r} cannot be run: set it to the Python of SGLang's "
            "environment"
        )
    import asyncio

    raise typer.Exit(asyncio.run(_run(found, server, plan, unchecked=unchecked)))


def _server(config: Config, url: str | None) -> ServerConfig:
    if not config.servers:
        raise ConfigError("[[servers]] is empty: give the address that SGLang is to serve at")
    for server in config.servers:
        if url is None or server.url.rstrip("/") == url.rstrip("/"):
            return server
    known = ", ".join(server.url for server in config.servers)
    raise UsageError(f"--url {url}: not in [[servers]]; configured: {known}")


async def _run(config: Config, server: ServerConfig, plan: ServePlan, *, unchecked: bool) -> int:
    from eagled.benchmark.live import examine_draft
    from eagled.daemon_servers import FOLDER, with_key
    from eagled.doctor_server import examine_server
    from eagled.paths import StatePaths
    from eagled.server.client import SglangClient
    from eagled.server.foreground import Watched, run_server, shell_line
    from eagled.server.launch import name_of
    from eagled.server.model_folder import read_model_facts
    from eagled.train.geometry import target_config
    from eagled.verdicts import Verdict

    facts = read_model_facts(Path(config.target.model))
    folder = StatePaths(config.run.state_dir).root / FOLDER
    argv = with_key(plan.argv, server, folder, f"serve-{name_of(server.url)}")
    warn(f"starting: {shell_line(argv, plan.env)}")

    async def answers() -> bool:
        async with SglangClient(server, config.generation, vocab_size=facts.vocab_size) as client:
            return await client.ready() or await client.health()  # 0.5.17 has no /ready

    async def came_up() -> bool:
        checks = await examine_server(config, server, facts, plan)
        if plan.draft is not None:
            target = target_config(Path(config.target.model))
            checks += await examine_draft(config, server, plan.draft, target)
        for check in checks:
            for line in check.lines():
                warn(line)
        good = all(check.verdict is not Verdict.FAIL for check in checks)
        if good:
            warn(f"serving at {plan.url}")
        elif not unchecked:
            warn("it is not what was asked for: ending it (--unchecked keeps it)")
        return good or unchecked

    return await run_server(argv, plan.env, Watched(answers, came_up))
