"""The command line that starts SGLang with what a run needs, checked before anything starts.

Guarantee: a plan never holds the key (SGLang reads it from a file that only its owner can read,
`write_key`), never turns on what changes or hides tokens (parsers, silent truncation), and serves
an EAGLE-3 draft with `EAGLE3` only. Flags are those that SGLang 0.5.17 and 0.5.23 both have.
Pure but for reading the draft's config.json.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from eagled.config import Config, ServerConfig
from eagled.errors import ConfigError
from eagled.server.model_folder import read_json

SERVE_WORD = "serve"  # servers.launch = ["serve"]
EAGLE3 = "EAGLE3"
_EAGLE3_MARK = "eagle3"
_SPOILING = {
    "--reasoning-parser": "answers are stored as ids and parsed by eagled; leave the parser off",
    "--tool-call-parser": "answers are stored as ids and parsed by eagled; leave the parser off",
    "--allow-auto-truncate": "it cuts prompts silently",
    "--skip-tokenizer-init": "doctor compares the server's tokenizer with the run's",
    "--api-key": "a key on a command line can be read by everybody; set servers.api_key_file",
    "--admin-api-key": "it would keep eagled from aborting requests",
    "--config": "eagled hands the key over in that file; give flags in serve.args instead",
}
_OWN = ("--model-path", "--model", "--host", "--port")


@dataclass(frozen=True, slots=True)
class ServePlan:
    """How one server is started.

    Attributes:
        url: its address.
        argv: the command line, without the key.
        env: variables on top of ours.
        key_file: where the key is; None without one.
        context: tokens of prompt and answer it must take; None leaves the model's own.
        draft: folder of the draft; None without one.
        capture: whether it writes hidden states.
    """

    url: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    key_file: Path | None
    context: int | None
    draft: Path | None
    capture: bool


def plan_serve(
    config: Config,
    server: ServerConfig,
    *,
    draft: Path | None = None,
    capture: bool = False,
    capture_env: Mapping[str, str] | None = None,
) -> ServePlan:
    """Return how to start SGLang for a run at the address of `server`.

    Raises:
        ConfigError: with every setting that cannot go together.
    """
    problems = _problems(config, server, draft, capture=capture)
    if problems:
        raise ConfigError("eagled serve cannot start a server for this run", tuple(problems))
    parts = urlsplit(server.url)
    context = context_needed(config)
    target = config.target
    argv = [config.serve.python, "-m", "sglang.launch_server", "--model-path", target.model]
    if target.tokenizer:
        argv += ["--tokenizer-path", target.tokenizer]
    if target.revision and not Path(target.model).is_dir():
        argv += ["--revision", target.revision]
    if target.trust_remote_code:
        argv.append("--trust-remote-code")
    argv += ["--host", parts.hostname or "127.0.0.1", "--port", str(parts.port or 80)]
    if context is not None:
        argv += ["--context-length", str(context)]
    argv.append("--enable-metrics")
    if capture:
        argv += ["--disable-radix-cache", "--enable-return-hidden-states"]
    if draft is not None:
        argv += ["--speculative-algorithm", EAGLE3]
        argv += ["--speculative-draft-model-path", str(draft), *config.serve.draft_args]
    argv += config.serve.args
    env = {**config.serve.env, **((capture_env or {}) if capture else {})}
    return ServePlan(server.url, tuple(argv), env, server.api_key_file, context, draft, capture)


def context_needed(config: Config) -> int | None:
    """Return the longest lane's context; None if a lane takes whatever the server has."""
    contexts = [lane.context for lane in config.lanes.values()]
    return None if 0 in contexts else max(contexts)


def _problems(
    config: Config, server: ServerConfig, draft: Path | None, *, capture: bool
) -> list[str]:
    found = [
        f"serve.args: {flag}: {_SPOILING[flag]}"
        for flag in flags_in(config.serve.args)
        if flag in _SPOILING
    ]
    found += [
        f"serve.args: {flag} comes from target.model and servers.url"
        for flag in flags_in(config.serve.args)
        if flag in _OWN
    ]
    if urlsplit(server.url).scheme != "http":
        found.append(f"servers.url: {server.url}: SGLang is started without TLS; use http://")
    if draft is not None and capture:
        found.append("--draft and --capture: hidden states are captured without a draft")
    if draft is not None:
        found += draft_problems(draft, EAGLE3, context_needed(config))
    argued = speculative_of(config.serve.args)
    if argued is not None:
        found.append(f"serve.args: --speculative-algorithm {argued}: use --draft DIR")
    return found


def flags_in(args: Sequence[str]) -> list[str]:
    """Return the names of the flags in a command line, `--a=b` as `--a`."""
    return [arg.split("=", 1)[0] for arg in args if arg.startswith("--")]


def speculative_of(args: Sequence[str]) -> str | None:
    """Return the value of --speculative-algorithm in a command line."""
    for i, arg in enumerate(args):
        name, mark, value = arg.partition("=")
        if name == "--speculative-algorithm":
            return value if mark else next(iter(args[i + 1 : i + 2]), "")
    return None


def draft_problems(draft: Path, algorithm: str, context: int | None) -> list[str]:
    """Return what is wrong with serving a draft folder that way."""
    try:
        found = read_json(draft / "config.json")
    except ConfigError as exc:
        return [f"--draft {draft}: {exc}"]
    return draft_config_problems(found, algorithm, context, f"--draft {draft}")


def draft_config_problems(
    draft: Mapping[str, Any], algorithm: str, context: int | None, name: str
) -> list[str]:
    """Return what is wrong with serving a draft of this config.json that way."""
    problems = []
    names = [str(a) for a in draft.get("architectures") or []]
    is_eagle3 = any(_EAGLE3_MARK in a.lower() for a in names) or "eagle_config" in draft
    if not is_eagle3:
        problems.append(f"{name}: its architectures are {names}: it is no EAGLE-3 draft")
    elif algorithm.upper() != EAGLE3:
        problems.append(
            f"{name}: an EAGLE-3 draft needs --speculative-algorithm EAGLE3, not {algorithm}: it "
            "would get the last layer alone, and every draft would be worthless without an error"
        )
    positions = draft.get("max_position_embeddings")
    if isinstance(positions, int) and context is not None and positions < context:
        problems.append(
            f"{name}: it covers {positions} positions (max_position_embeddings), the server "
            f"{context} (--context-length)"
        )
    return problems


def write_key(folder: Path, name: str, key: str) -> Path:
    """Write the file that hands SGLang its key (`--config FILE`), readable by its owner alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        quoted = key.replace("'", "''")
        file.write(f"api-key: '{quoted}'\n")
    return path
