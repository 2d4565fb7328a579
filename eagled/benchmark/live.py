"""Does a server that has just come up draft as it should? Asked of the server itself.

Three questions: is the draft right for this engine version (`eagled draft check` with what the
server says), are the states that it is fed as wide as it reads (where the server gives hidden
states at all), and are its guesses ever right. The last one finds what the others cannot, such as
a wrong order of layers.
Price: a handful of short answers, and the tokenizer.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eagled.artifacts import read_json
from eagled.benchmark.acceptance import Speculation, total
from eagled.benchmark.stream import StreamClient
from eagled.config import Config, ServerConfig
from eagled.draft import Launch, check_draft, judge_length, n_aux
from eagled.errors import EagledError
from eagled.printable import printable
from eagled.sampling import ResolvedSampling
from eagled.server.client import SglangClient
from eagled.server.protocol import GenerateRequest
from eagled.verdicts import Check, Verdict

TEXTS = (
    "Explain in a few sentences how rain comes about.",
    "Write a Python function that reverses a list.",
    "List five animals that live in the sea, with one sentence about each.",
    "Translate into French: The train leaves at seven and arrives before noon.",
)
ANSWER_TOKENS = 64
_GREEDY = ResolvedSampling(0.0, 1.0, -1, 0.0, ANSWER_TOKENS, None)
_LEVELS = {"error": Verdict.FAIL, "warning": Verdict.WARN}


async def examine_draft(
    config: Config,
    server: ServerConfig,
    draft: Path,
    target: Mapping[str, Any],
    prompts: Sequence[Sequence[int]] | None = None,
) -> list[Check]:
    """Return what was found about a server's draft; `prompts` None asks `TEXTS`."""
    name = f"server {server.url}: draft"
    vocab_size = int(target["vocab_size"])
    connect_s = config.generation.connect_timeout_s
    try:
        asked = await asyncio.to_thread(_rendered, config) if prompts is None else prompts
        async with SglangClient(server, config.generation, vocab_size=vocab_size) as client:
            info, flags = await client.server_info(), await client.flags()
        launch = Launch(flags.speculative or "", info.context or 0, info.version)
        checks = list(_folder(name, draft, target, launch))
        async with StreamClient(server, vocab_size=vocab_size, connect_s=connect_s) as client:
            width = await client.states_width(asked[0]) if flags.hidden_states else None
            spoken = await _speculation(client, asked)
    except EagledError as exc:
        return [Check(name, Verdict.FAIL, printable(exc), "so the draft was not tried")]
    return [*checks, *_width(name, draft, width), _accepted(name, spoken)]


def _rendered(config: Config) -> list[list[int]]:
    from eagled.text.messages import Message, Role
    from eagled.text.render import Renderer
    from eagled.text.tokenizer import keep_torch_out

    keep_torch_out()
    renderer, thinking = Renderer.load(config.target), config.sampling.thinking
    return [
        renderer.prompt_ids([Message(Role.USER, text)], None, thinking=thinking) for text in TEXTS
    ]


def _folder(name: str, draft: Path, target: Mapping[str, Any], launch: Launch) -> Iterator[Check]:
    found = check_draft(draft, target, launch)
    for finding in found:
        yield Check(name, _LEVELS[finding.level], finding.text, f"eagled draft check {draft}")
    if not found:
        yield Check(name, Verdict.OK, f"right for SGLang {launch.version}")


async def _speculation(client: StreamClient, prompts: Sequence[Sequence[int]]) -> Speculation:
    members = _GREEDY.json_members()
    requests = [
        GenerateRequest(
            f"draft-{uuid.uuid4().hex}", np.asarray(ids, np.uint32), ANSWER_TOKENS, members
        )
        for ids in prompts
    ]
    answers = await asyncio.gather(*map(client.ask, requests))
    return total(answer.speculation for answer in answers)


def _width(name: str, draft: Path, width: int | None) -> Iterator[Check]:
    if width is None:
        return
    config = read_json(draft / "config.json")
    wanted = n_aux(config) * int(config.get("target_hidden_size") or config["hidden_size"])
    name = f"{name}: states"
    if width == wanted:
        yield Check(name, Verdict.OK, f"{width} wide, as the draft reads them")
    else:
        advice = "--speculative-algorithm must be EAGLE3, and the layers those of the draft"
        yield Check(name, Verdict.FAIL, f"{width} wide, the draft reads {wanted}", advice)


def _accepted(name: str, spoken: Speculation) -> Check:
    name = f"{name}: accepted length"
    if spoken.length is None:
        advice = "it does not speculate, or its version does not tell (spec_verify_ct)"
        return Check(name, Verdict.FAIL, "no verify step in any answer", advice)
    fault = judge_length(spoken.length)
    if fault is not None:
        advice = "`eagled draft check`; --unchecked serves it all the same"
        return Check(name, Verdict.FAIL, fault.text, advice)
    found = f"{spoken.length:.2f} tokens a verify step on {spoken.verifies} of them"
    return Check(name, Verdict.OK, f"{found}; `eagled bench` measures it")
