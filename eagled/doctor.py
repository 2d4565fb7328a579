"""`eagled doctor`: look at everything a run needs, change nothing, and say what to do.

Guarantee: each check ends within its own time and none stops the others. A failed check is one
that would stop the run; a warning is one that would cost speed or safety.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from eagled.config import Config
from eagled.config_load import LoadedConfig
from eagled.control.protocol import MAX_SOCKET_PATH_BYTES
from eagled.disk import file_system
from eagled.doctor_server import examine_server
from eagled.errors import ConfigError
from eagled.limits import needed_files
from eagled.paths import StatePaths
from eagled.server.model_folder import ModelFacts, read_model_facts
from eagled.socket_path import daemon_socket
from eagled.verdicts import Check, Verdict

__all__ = ["Check", "Verdict", "examine"]

WAL_RESET_FIXED = (3, 51, 3)
WAL_RESET_BACKPORTS = {(3, 44, 6), (3, 50, 7)}  # older lines that got the same fix
OLDEST_SQLITE = (3, 37, 0)  # STRICT tables


def examine(loaded: LoadedConfig) -> list[Check]:
    """Return every check of a configuration, in the order of the work."""
    config = loaded.config
    checks = [Check("configuration", Verdict.OK, str(loaded.path))]
    checks.append(_sqlite(sqlite3.sqlite_version_info))
    checks.extend(_state_dir(config))
    checks.append(_files_limit(config))
    checks.append(_socket(config))
    facts = _model(config)
    checks.extend(_tokenizer(config))
    checks.append(facts[0])
    checks.extend(asyncio.run(_servers(config, facts[1])))
    return checks


def _sqlite(version: tuple[int, ...]) -> Check:
    text = ".".join(map(str, version))
    if version < OLDEST_SQLITE:
        return Check("sqlite", Verdict.FAIL, text, "use a Python with SQLite 3.37 or newer")
    if version >= WAL_RESET_FIXED or version in WAL_RESET_BACKPORTS:
        return Check("sqlite", Verdict.OK, text)
    advice = (
        "this version can damage a database that two processes write; eagled writes from one "
        "only: do not open q.db with other tools while the daemon runs"
    )
    return Check("sqlite", Verdict.WARN, text, advice)


def _state_dir(config: Config) -> Iterator[Check]:
    root = config.run.state_dir
    existing = next(p for p in (root, *root.parents) if p.exists())
    if not os.access(existing, os.W_OK | os.X_OK) or not existing.is_dir():
        advice = "give this user write access, or set run.state_dir"
        yield Check("state directory", Verdict.FAIL, f"{root} cannot be written", advice)
        return
    yield Check("state directory", Verdict.OK, str(root))
    space = file_system(root)
    free = space.free_bytes - config.disk.reserve_bytes
    found = f"{space.free_bytes / 2**30:.1f} GiB free"
    if free <= 0:
        advice = "make room, or lower disk.reserve_bytes; extraction would not start"
        yield Check("disk", Verdict.WARN, found, advice)
    else:
        yield Check("disk", Verdict.OK, found)


def _files_limit(config: Config) -> Check:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    need = needed_files(config)
    if hard != resource.RLIM_INFINITY and hard < need:
        advice = f"raise it to {need}: LimitNOFILE= in the unit, or `ulimit -Hn`"
        return Check("open files", Verdict.FAIL, f"at most {hard}, {need} needed", advice)
    return Check("open files", Verdict.OK, f"{need} needed")


def _socket(config: Config) -> Check:
    path = daemon_socket(config.daemon.socket, StatePaths(config.run.state_dir).root, os.environ)
    if len(bytes(path)) > MAX_SOCKET_PATH_BYTES:
        advice = f"set daemon.socket to a path of at most {MAX_SOCKET_PATH_BYTES} bytes"
        return Check("control socket", Verdict.FAIL, f"{path} is too long", advice)
    return Check("control socket", Verdict.OK, str(path))


def _model(config: Config) -> tuple[Check, ModelFacts | None]:
    folder = Path(config.target.model)
    if not folder.is_dir():
        advice = "download it first, and set target.model to its folder"
        return Check("target model", Verdict.FAIL, f"{folder} is no folder", advice), None
    try:
        facts = read_model_facts(folder)
    except ConfigError as exc:
        return Check("target model", Verdict.FAIL, str(exc), "complete the model's folder"), None
    found = f"vocabulary {facts.vocab_size}, context {facts.context or 'unknown'}"
    return Check("target model", Verdict.OK, found), facts


def _tokenizer(config: Config) -> Iterator[Check]:
    folder = Path(config.target.tokenizer or config.target.model)
    names = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "tokenizer_config.json")
    if not folder.is_dir() or not any((folder / name).is_file() for name in names):
        advice = "set target.tokenizer to a folder with the tokenizer's files"
        yield Check("tokenizer", Verdict.FAIL, f"{folder} holds no tokenizer", advice)
    else:
        yield Check("tokenizer", Verdict.OK, str(folder))
    template = config.target.chat_template
    if template is not None and not template.is_file():
        yield Check(
            "chat template", Verdict.FAIL, f"{template} is absent", "set target.chat_template"
        )


async def _servers(config: Config, facts: ModelFacts | None) -> list[Check]:
    if not config.servers:
        advice = "add [[servers]] with the address of an SGLang server, or run `eagled engine`"
        return [Check("server", Verdict.WARN, "none configured", advice)]
    checks: list[Check] = []
    for server in config.servers:
        checks += await examine_server(config, server, facts)
    return checks
