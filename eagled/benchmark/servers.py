"""The servers of a benchmark: started one after the other, or already there; looked at before use.

Guarantee: what is measured is what it is called. A plain server that speculates, a draft under
another algorithm than EAGLE3, a draft whose weights, mapping or layers are not right for this
target and engine version, and two servers of different models are refused before anything is
measured. A server that was started here ends with its whole process group, however the run ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from eagled.artifacts import read_json
from eagled.benchmark.acceptance import Speculation
from eagled.children import foreign_env, rotate, tail_of
from eagled.config import Config, ServerConfig
from eagled.daemon_servers import FOLDER, with_key
from eagled.draft import Launch, check_draft, judge_length
from eagled.errors import ArtifactError, ConfigError, UnreachableError
from eagled.paths import StatePaths
from eagled.printable import printable
from eagled.server.client import SglangClient
from eagled.server.command import EAGLE3, ServePlan, plan_serve
from eagled.server.fingerprint import Fingerprint, fingerprint
from eagled.server.launch import LOG_BYTES, Running, boot_id, end_group, name_of, start_ticks
from eagled.server.protocol import ServerFlags, ServerInfo

_LOOK_S = 0.5
_TAIL_BYTES = 4000
_PR_SET_PDEATHSIG = 1
_SPECULATE = (
    "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Speculate:
    """Steps, choices a step and drafted tokens, as SGLang takes them; written 3/1/4."""

    steps: int
    topk: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.steps}/{self.topk}/{self.tokens}"

    @classmethod
    def parse(cls, text: str) -> Speculate:
        """Return the settings that a text such as 3/1/4 names.

        Raises:
            ConfigError: if it is not of that form, or the numbers do not go together.
        """
        parts = text.split("/")
        if len(parts) != len(_SPECULATE) or not all(p.isdecimal() and int(p) for p in parts):
            raise ConfigError(f"{text!r}: must be steps/topk/draft tokens, such as 3/1/4")
        found = cls(*map(int, parts))
        if found.topk == 1 and found.tokens != found.steps + 1:
            raise ConfigError(f"{text}: with topk 1 a chain of {found.steps} has "
                              f"{found.steps + 1} draft tokens")  # fmt: skip
        return found

    @classmethod
    def of_args(cls, args: Sequence[str]) -> Speculate:
        """Return the settings in the flags beside a draft.

        Raises:
            ConfigError: if one of the three is not there.
        """
        pairs = dict(pairwise(args))
        pairs |= {flag: value for flag, mark, value in (a.partition("=") for a in args) if mark}
        missing = [flag for flag in _SPECULATE if flag not in pairs]
        if missing:
            raise ConfigError(f"serve.draft_args lacks {', '.join(missing)}; or use --speculate")
        return cls.parse("/".join(pairs[flag] for flag in _SPECULATE))

    def into(self, args: Sequence[str]) -> tuple[str, ...]:
        """Return the flags beside a draft with these settings in place of theirs."""
        kept: list[str] = []
        flags = iter(args)
        for flag in flags:
            if flag in _SPECULATE:
                next(flags, None)
            elif flag.split("=", 1)[0] not in _SPECULATE:
                kept.append(flag)
        values = map(str, (self.steps, self.topk, self.tokens))
        pairs = zip(_SPECULATE, values, strict=True)
        return (*(part for pair in pairs for part in pair), *kept)


@dataclass(frozen=True, slots=True)
class Seen:
    """A server that runs: what it said, and who it is."""

    info: ServerInfo
    flags: ServerFlags
    identity: Fingerprint

    def to_dict(self) -> dict[str, Any]:
        """Return what a report says about it, JSON-ready."""
        return {
            "version": self.info.version, "model": self.identity.model_path,
            "context": self.info.context, "max_running": self.info.max_running,
            "speculative": self.flags.speculative, "draft": self.flags.draft,
        }  # fmt: skip


async def look_at(config: Config, server: ServerConfig, vocab_size: int) -> Seen:
    """Return what a server says about itself.

    Raises:
        EagledError: if it does not answer.
    """
    async with SglangClient(server, config.generation, vocab_size=vocab_size) as client:
        info, model, flags = (
            await client.server_info(), await client.model_info(), await client.flags()
        )  # fmt: skip
    return Seen(info, flags, fingerprint(info, model, vocab_size))


def refuse_drafting(seen: Seen, url: str) -> None:
    """Check that a server is plain.

    Raises:
        ConfigError: if it speculates.
    """
    if seen.flags.speculative is not None:
        raise ConfigError(
            f"{url} drafts with {printable(seen.flags.speculative)}: it is no plain server to "
            "compare with; start it without --speculative-algorithm"
        )


def check_served(seen: Seen, url: str, draft: Path | None, target: Mapping[str, Any]) -> list[str]:
    """Check that a server drafts as it should; return what a reader has to know.

    Raises:
        ConfigError: with everything that is wrong.
    """
    algorithm, served = seen.flags.speculative, seen.flags.draft
    if algorithm is None:
        raise ConfigError(f"{url} does not speculate: start it with --speculative-algorithm EAGLE3")
    if draft is not None and served is not None and Path(served).resolve() != draft.resolve():
        raise ConfigError(f"{url} serves the draft {printable(served)}, not {draft}")
    folder = draft or (Path(served) if served else None)
    if folder is None or not (folder / "config.json").is_file():
        if algorithm.upper() != EAGLE3:
            raise ConfigError(
                f"{url} drafts with {printable(algorithm)}, and its draft "
                f"({printable(served)}) cannot be read from here: name its folder"
            )
        return [f"the draft {printable(served)} cannot be read from here: it was not checked"]
    context = seen.info.context or 0
    return check_folder(folder, target, Launch(algorithm, context, seen.info.version))


def check_folder(folder: Path, target: Mapping[str, Any], launch: Launch) -> list[str]:
    """Check a draft for how it is served; return the warnings.

    Raises:
        ConfigError: with every error.
    """
    found = check_draft(folder, target, launch)
    errors = tuple(f.text for f in found if f.level == "error")
    if errors:
        raise ConfigError(f"{folder}: a benchmark of this draft would mean nothing", errors)
    return [f.text for f in found]


def check_accepted(speculation: Speculation, url: str) -> None:
    """Check that guesses are right at all.

    Raises:
        ArtifactError: if the accepted length is that of no draft.
    """
    length = speculation.length
    if length is None:
        raise ArtifactError(
            f"{url} made no verify step in any answer: it does not speculate, or does not say so "
            "(spec_verify_ct in meta_info)"
        )
    fault = judge_length(length)
    if fault is not None:
        raise ArtifactError(f"{url}: {fault.text}")


def offline_estimate(draft: Path | None) -> Mapping[str, Any] | None:
    """Return the held-out estimate of the training run that made a draft, if it is beside it."""
    if draft is None:
        return None
    try:
        after = read_json(draft.parent / "result.json").get("after")
    except ArtifactError:
        return None
    return after if isinstance(after, dict) else None


def plan_side(
    config: Config, server: ServerConfig, draft: Path | None, settings: Speculate | None
) -> ServePlan:
    """Return how the server of one side is started.

    Raises:
        ConfigError: with every setting that cannot go together.
    """
    if settings is not None:
        args = settings.into(config.serve.draft_args)
        serve = config.serve.model_copy(update={"draft_args": args})
        config = config.model_copy(update={"serve": serve})
    return plan_serve(config, server, draft=draft)


@asynccontextmanager
async def started(
    config: Config, server: ServerConfig, plan: ServePlan, name: str
) -> AsyncIterator[None]:
    """Run a server while the block runs; it answers when the block begins.

    Raises:
        ConfigError: something answers at its address already.
        UnreachableError: it ended, or did not answer in time; with the end of its log.
    """
    paths = StatePaths(config.run.state_dir)
    log = paths.logs / f"bench-{name}.log"
    argv = with_key(plan.argv, server, paths.root / FOLDER, f"bench-{name_of(server.url)}")
    if await _taken(config, server):
        raise ConfigError(
            f"something answers at {server.url} already: end it, or measure servers that run "
            "with --plain-url and --draft-url"
        )
    rotate(log, LOG_BYTES)
    child = await _spawn(argv, plan.env, log)
    running = Running(child.pid, start_ticks(child.pid) or 0, boot_id(), "")
    try:
        await _until_ready(config, server, child, log)
        yield
    finally:
        await asyncio.shield(end_group(running))
        await child.wait()


async def _spawn(
    argv: Sequence[str], env: Mapping[str, str], log: Path
) -> asyncio.subprocess.Process:
    libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork: the child only calls
    with log.open("ab") as out:
        try:
            return await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out,
                env={**foreign_env(), **env}, start_new_session=True,
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
            )  # fmt: skip
        except OSError as exc:
            raise UnreachableError(
                f"serve.python = {argv[0]!r} cannot be run ({exc}): set it to the Python of "
                "SGLang's environment"
            ) from exc


async def _until_ready(
    config: Config, server: ServerConfig, child: asyncio.subprocess.Process, log: Path
) -> None:
    try:
        async with asyncio.timeout(server.launch_timeout_s):
            while not await _answers(config, server):
                if child.returncode is not None:
                    tail = printable(tail_of(log, _TAIL_BYTES), None, lines=True)
                    raise UnreachableError(
                        f"the server ended with code {child.returncode} (log: {log}):\n{tail}"
                    )
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise UnreachableError(
            f"no answer within {server.launch_timeout_s:g} s (log: {log})"
        ) from None


async def _answers(config: Config, server: ServerConfig) -> bool:
    async with SglangClient(server, config.generation, vocab_size=1) as client:
        return await client.ready() or await client.health()  # 0.5.17 has no /ready


async def _taken(config: Config, server: ServerConfig) -> bool:
    async with SglangClient(server, config.generation, vocab_size=1) as client:
        return await client.reachable()
