"""The extraction worker's process: environment, model, socket, signals; the loop is elsewhere.

Guarantee: thread and wait settings are in the environment before torch is imported (two torch
processes that spin for work starve each other), and the back end has passed its own check before
the first sample is claimed. Price: start-up loads the model.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

from eagled.capture import capture_servers, spool_folder
from eagled.clock import SystemClock
from eagled.config import Config
from eagled.config_load import load_config
from eagled.control.client import ControlClient
from eagled.daemon_log import set_up_logging
from eagled.errors import ConfigError
from eagled.paths import StatePaths
from eagled.shards.backend import StatesBackend
from eagled.shards.layers import plan_layers
from eagled.shards.policy import PolicyBackend
from eagled.shards.target import TargetFacts, read_target, resolve_model
from eagled.workers.beat import beating
from eagled.workers.extraction import Extraction, ExtractSettings

_log = logging.getLogger(__name__)
SERVER_BATCHES = 8  # of `extract.batch_tokens`, sent to servers at once
WORKER_ENV = "EAGLED_WORKER"  # names this worker where several run against one daemon


def run_extract_worker(socket: Path, config_path: Path, *, once: bool = False) -> int:
    """Extract until SIGTERM or SIGINT, or with `once` until nothing is left; return 0.

    Args:
        socket: the daemon's control socket.
        config_path: the configuration that the daemon uses.
        once: end when every sample has its states.

    Raises:
        ConfigError: if the model cannot be used.
        ArtifactError: if the back end's states are not those of the planned layers.
        UnreachableError: with `once`, if no daemon answers.
    """
    set_up_logging()
    config = load_config(config_path).config
    set_threads(config)
    paths = StatePaths(config.run.state_dir)
    backend = PolicyBackend(make_backend(config), config, paths.disk_choice)
    settings = ExtractSettings(
        shards=paths.shards,
        batch_tokens=_batch_tokens(config),
        target_bytes=config.shards.target_bytes,
        max_wait_s=config.shards.max_wait_s,
        stop_timeout_s=config.daemon.stop_timeout_s,
        worker=os.environ.get(WORKER_ENV, "extract"),
        once=once,
        trickle=config.extract.start == "as_completed",
        encode_threads=config.shards.threads or max(1, len(os.sched_getaffinity(0)) // 2),
    )
    asyncio.run(_serve(socket, backend, settings))
    return 0


def _batch_tokens(config: Config) -> int:
    """Return the tokens of one batch; a server cuts its own batches and should not run dry."""
    own = config.extract.batch_tokens
    return own * SERVER_BATCHES if config.extract.backend == "sglang" else own


def set_threads(config: Config) -> int:
    """Set the CPU threads of this process, before torch is imported, and return their number.

    The configuration wins over the environment; without either it is all cores but those of the
    text workers.
    """
    cores = len(os.sched_getaffinity(0))
    given = int(os.environ.get("OMP_NUM_THREADS", "0"))
    threads = config.extract.threads or given or max(1, cores - config.daemon.text_workers)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return threads


def make_backend(config: Config) -> StatesBackend:
    """Load the configured back end and run its check.

    Raises:
        ConfigError: if extraction is off, or the model or the layers cannot be used.
        ArtifactError: if the check fails.
    """
    if config.extract.backend == "off":
        raise ConfigError('extract.backend = "off": this run stops after generation')
    folder = resolve_model(config.target.model, config.target.revision)
    target = read_target(folder)
    layers = plan_layers(target.n_layers, config.extract.layers)
    if config.extract.backend == "sglang":
        return _sglang_backend(config, target, layers)
    import torch

    from eagled.shards.backend_transformers import TransformersBackend

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    backend = TransformersBackend(
        target,
        layers=layers,
        last=config.extract.last,
        device=config.extract.device,
        dtype=config.extract.dtype,
        name=target_name(config, target),
        revision=config.target.revision,
    )
    backend.self_check()
    _log.info("back end ready model=%s layers=%s", config.target.model, list(layers))
    return backend


def _sglang_backend(config: Config, target: TargetFacts, layers: tuple[int, ...]) -> StatesBackend:
    """Return the back end that has the servers compute; they may still be starting.

    Raises:
        ConfigError: if a server cannot capture.
        RetryableError: if one does not come up.
    """
    from eagled.shards.backend_sglang import SglangBackend

    backend = SglangBackend(
        target,
        layers=layers,
        servers=capture_servers(config),
        spool=spool_folder(config),
        wait_s=config.extract.capture_wait_s,
        last=config.extract.last,
        name=target_name(config, target),
        revision=config.target.revision,
    )
    backend.self_check()
    _log.info("back end ready servers=%d layers=%s", len(config.servers), list(layers))
    return backend


def target_name(config: Config, target: TargetFacts) -> str:
    """Return what manifests call the target."""
    local = Path(config.target.model).is_dir()
    return target.folder.name if local else config.target.model


async def _serve(socket: Path, backend: PolicyBackend, settings: ExtractSettings) -> None:
    async with ControlClient(socket) as client:
        extraction = Extraction(client, backend, settings, SystemClock(), refresh=backend.refresh)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, extraction.stop)
        async with beating(client, settings.worker):
            await extraction.run()
