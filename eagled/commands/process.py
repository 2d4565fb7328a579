"""Commands that become a long-running process: daemon, workers, engine, terminal UI, demo."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from eagled.commands.common import ConfigOption, SetOption, load
from eagled.errors import UsageError

_QUIET_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (run, worker, engine, top, demo):
        app.command()(command)


def run(config: ConfigOption = None, settings: SetOption = None) -> None:
    """Run the daemon in the foreground; SIGTERM or ctrl-C ends it and loses nothing."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # while modules load nothing is open
    from eagled.daemon import run_daemon

    raise typer.Exit(run_daemon(load(config, settings)))


def worker(
    kind: Annotated[str, typer.Argument(help="text or extract.")],
    config: ConfigOption = None,
) -> None:
    """Run a worker process that serves the daemon (the daemon starts its own)."""
    from eagled.daemon_log import set_up_logging
    from eagled.socket_path import client_socket
    from eagled.supervise import die_with_parent

    die_with_parent()
    set_up_logging()
    os.environ.update({k: v for k, v in _QUIET_THREADS.items() if k not in os.environ})
    loaded = load(config)
    socket = client_socket(loaded.path)
    if kind == "text":
        from eagled.workers.text import run_text_worker

        raise typer.Exit(run_text_worker(socket, loaded.path))
    if kind == "extract":
        from eagled.workers.extract import run_extract_worker

        raise typer.Exit(run_extract_worker(socket, loaded.path))
    raise UsageError(f"{kind!r} is not a worker; accepted: text, extract")


def engine(  # noqa: PLR0913 - the engine's own flags, one for one
    *,
    model: Annotated[Path, typer.Option(help="Model folder with safetensors.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.")] = 30_000,
    slots: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 16,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch.")] = 1,
    context_length: Annotated[int | None, typer.Option(help="Default: the model's own.")] = None,
    max_total_tokens: Annotated[int, typer.Option(help="KV pool; 0 is slots x context.")] = 0,
    max_queued: Annotated[
        int | None, typer.Option(help="Waiting requests beyond which 503 is answered.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Serve a small model with SGLang's protocol, for machines without SGLang."""
    os.environ.update({k: v for k, v in _QUIET_THREADS.items() if k not in os.environ})
    from eagled.engine.__main__ import KEY_VARIABLE
    from eagled.engine.main import run_engine

    run_engine(
        model,
        host,
        port,
        api_key=os.environ.get(KEY_VARIABLE) or None,
        slots=slots,
        threads=threads,
        context_length=context_length,
        max_total_tokens=max_total_tokens,
        max_queued=max_queued,
        dtype=dtype,
        device=device,
    )


def top(
    *,
    refresh: Annotated[float | None, typer.Option(help="Status requests a second.")] = None,
    readonly: Annotated[bool, typer.Option("--readonly", help="Keys change nothing.")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII only.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame as text and leave.")
    ] = False,
    light: Annotated[
        bool | None,
        typer.Option("--light/--dark", help="Colours for a light or a dark background."),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Play a recorded run; needs no daemon.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Watch and steer the daemon in the terminal."""
    from eagled.socket_path import client_socket, client_state_dir
    from eagled.tui.launch import run_top

    code = run_top(
        None if demo else client_socket(config),
        refresh_hz=refresh,
        readonly=readonly,
        ascii_only=ascii_only or None,
        state_dir=None if demo else client_state_dir(config),
        once=once,
        light=light,
    )
    raise typer.Exit(code)


def demo(
    *,
    folder: Annotated[Path, typer.Option(help="Work folder; emptied first.")] = Path("state/demo"),
    cache: Annotated[
        Path | None,
        typer.Option(help="Where downloads are kept; $EAGLED_CACHE or ~/.cache/eagled."),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Your own model folder instead.")] = None,
) -> None:
    """Run the whole line on a small real model, with a crash in the middle, and check it."""
    from eagled.demo.fetch import cache_dir
    from eagled.demo.run import run_demo

    kept = cache.expanduser().absolute() if cache else cache_dir()
    raise typer.Exit(run_demo(folder.absolute(), kept, model))
