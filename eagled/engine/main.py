"""Life of the embedded server: bind, load, serve, stop.

Guarantee: the port is taken before the model is loaded, so a wrong port fails at once; on SIGTERM
or SIGINT nothing new is taken, what runs gets `_GRACE_S` to finish and is then aborted with what it
has, and the process ends with 0. If the slot loop dies the server ends with an error instead of
answering 500 for ever.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagled.engine.params import RESERVED_TOKENS, Limits
from eagled.engine.support import DTYPES, require_model_folder
from eagled.errors import ConfigError, EagledError

if TYPE_CHECKING:
    from eagled.engine.api import Api

DEFAULT_SLOTS = 16
_GRACE_S = 3.0  # running answers may finish within this after SIGTERM
_ABORT_S = 5.0  # the longest step seen on two cores is well under a second


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that one server is started with; `max_total_tokens` 0 means slots x context."""

    model_dir: Path
    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | None = None
    slots: int = DEFAULT_SLOTS
    max_total_tokens: int = 0
    context_length: int | None = None
    threads: int = 1
    dtype: str = "auto"
    device: str = "auto"
    max_queued: int | None = None


def run_engine(  # noqa: PLR0913 - the command line's flags, one for one
    model_dir: Path,
    host: str,
    port: int,
    *,
    api_key: str | None,
    slots: int,
    max_total_tokens: int,
    context_length: int | None,
    threads: int,
    dtype: str,
    max_queued: int | None = None,
    device: str = "auto",
) -> None:
    """Serve a model folder until SIGTERM or SIGINT; print the URL on stderr when ready.

    Args:
        model_dir: a transformers folder: configuration, safetensors, optional tokenizer.
        host: address to listen on.
        port: port to listen on; 0 picks a free one.
        api_key: wanted as `Authorization: Bearer`, or None.
        slots: requests that run at once.
        max_total_tokens: bound of the key/value pool in tokens; 0 means slots x context length.
        context_length: tokens a request may reach, or None for the model's own.
        threads: torch threads; of all torch processes together no more than cores.
        dtype: auto, bfloat16, float16 or float32.
        max_queued: waiting requests beyond which 503 is answered, or None for no bound.
        device: cpu, cuda or auto.

    Raises:
        ConfigError: if the folder, a value or the address cannot be used.
    """
    config = EngineConfig(
        model_dir, host, port, api_key, slots, max_total_tokens, context_length, threads, dtype,
        device, max_queued,
    )  # fmt: skip
    _check(config)
    prepare_environment()
    with _bound_socket(host, port) as sock:
        api = _build(config)
        asyncio.run(_serve(api, sock))


def prepare_environment() -> None:
    """Make OpenMP threads sleep when idle; must run before torch is imported."""
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _check(config: EngineConfig) -> None:
    least = {"slots": 1, "threads": 1, "max_total_tokens": 0, "port": 0, "max_queued": 0}
    problems = [
        f"{name} must be at least {minimum}, got {value}"
        for name, minimum in least.items()
        if (value := getattr(config, name)) is not None and value < minimum
    ]
    if config.context_length is not None and config.context_length <= RESERVED_TOKENS:
        problems.append(f"context_length must be over {RESERVED_TOKENS}")
    if 0 < config.max_total_tokens <= RESERVED_TOKENS:
        problems.append(f"max_total_tokens must be over {RESERVED_TOKENS}, or 0")
    if config.dtype not in DTYPES:
        problems.append(f"dtype must be one of {', '.join(DTYPES)}, got {config.dtype!r}")
    if problems:
        raise ConfigError("the engine cannot start with these values", tuple(problems))


@contextmanager
def _bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as exc:
        raise ConfigError(f"cannot listen on {host}:{port}: {exc}") from exc
    with sock:
        yield sock


def _build(config: EngineConfig) -> Api:
    require_model_folder(config.model_dir)
    import torch

    from eagled.engine.api import Api
    from eagled.engine.forward import load_model
    from eagled.engine.loop import SlotLoop
    from eagled.engine.text import TextDecoder

    torch.set_num_threads(config.threads)
    model, tokenizer = load_model(
        config.model_dir,
        dtype=config.dtype,
        context_length=config.context_length,
        device=config.device,
    )
    info = model.info
    limits = Limits(
        context_length=info.context_length,
        max_total_tokens=config.max_total_tokens or config.slots * info.context_length,
        slots=config.slots,
        vocab_size=info.vocab_size,
        max_queued=config.max_queued,
    )
    decoder = TextDecoder(tokenizer)
    loop = SlotLoop(model, limits, info.eos_ids, decoder)
    return Api(loop, limits, info, decoder, config.api_key)


async def _serve(api: Api, sock: socket.socket) -> None:
    from aiohttp import web

    stopping = asyncio.Event()
    here = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        here.add_signal_handler(number, stopping.set)

    def wake() -> None:
        if not here.is_closed():
            here.call_soon_threadsafe(stopping.set)

    api.loop.on_death = wake
    api.loop.start()
    runner = web.AppRunner(
        api.app(), handler_cancellation=True, access_log=None, shutdown_timeout=_GRACE_S
    )
    await runner.setup()
    await web.SockSite(runner, sock).start()
    _announce(api, sock.getsockname())
    await stopping.wait()
    died = not api.loop.alive
    ended = await asyncio.to_thread(api.loop.stop, _GRACE_S, _ABORT_S)
    await runner.cleanup()
    if died or not ended:
        raise EagledError("the slot loop died or hangs; see the log above")


def _announce(api: Api, address: Any) -> None:  # noqa: ANN401 - what the socket module returns
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    print(  # noqa: T201 - the one line that whoever started the server waits for
        f"eagled engine ready at http://{host}:{address[1]} model={api.info.path} "
        f"dtype={api.info.dtype} device={api.info.device} slots={api.limits.slots} "
        f"context={api.limits.context_length} pool={api.limits.max_total_tokens}",
        file=sys.stderr,
        flush=True,
    )
