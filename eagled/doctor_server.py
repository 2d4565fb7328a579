"""Is that server the one that the run needs? Each question is a line, with what to do.

Guarantee: nothing is changed and one token is made; a question that a server cannot answer is a
warning, never a pass. Used by `eagled doctor`, and by `eagled serve` on what it has just started.
Price: two seconds for the tokenizer, loaded here only for the round trip.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

from eagled.config import Config, ServerConfig
from eagled.errors import EagledError
from eagled.printable import printable
from eagled.server.client import SglangClient
from eagled.server.command import (
    EAGLE3,
    ServePlan,
    context_needed,
    draft_config_problems,
)
from eagled.server.fingerprint import fingerprint
from eagled.server.model_folder import ModelFacts, read_json, read_model_facts
from eagled.server.protocol import ModelInfo, ServerFlags, ServerInfo
from eagled.shards.layers import plan_layers
from eagled.verdicts import Check, Verdict

SERVER_TIMEOUT_S = 60.0
PROBE_TEXT = "The café in 東京 — 1234567.89 🤣\n\tdef f(x):\n        return x ** 2  # naïve"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tiktoken.model")
_MODEL_FILES = ("config.json",)
_UNKNOWN_VOCAB = 1 << 32  # the probe sends no ids


async def examine_server(
    config: Config,
    server: ServerConfig,
    facts: ModelFacts | None,
    plan: ServePlan | None = None,
) -> list[Check]:
    """Return every check of one server; with `plan` also whether it is what was asked for."""
    name = f"server {server.url}"
    try:
        async with (
            asyncio.timeout(SERVER_TIMEOUT_S),
            SglangClient(server, config.generation, vocab_size=_UNKNOWN_VOCAB) as client,
        ):
            info, model = await client.server_info(), await client.model_info()
            flags = await client.flags()
            checks = [_found(name, info, model, facts)]
            checks += [_model(name, config, model), _tokenizer(name, config, model)]
            checks += [*_vocabulary(name, model, facts), _context(name, config, info)]
            checks += [*_drafting(name, config, flags, plan), *_flags(name, flags, plan)]
            checks.append(await _round_trip(name, config, client))
    except (EagledError, TimeoutError) as exc:
        return [Check(name, Verdict.WARN, str(exc) or "no answer", "start it; the daemon waits")]
    return checks


def _found(name: str, info: ServerInfo, model: ModelInfo, facts: ModelFacts | None) -> Check:
    print_ = fingerprint(info, model, facts.vocab_size if facts is not None else None)
    path = printable(model.model_path)
    found = f"{path}, context {info.context}, version {info.version}, {print_.short}"
    return Check(name, Verdict.OK, found)


def _same_files(ours: Path, theirs: Path, names: tuple[str, ...]) -> bool | None:
    """Return whether two folders hold the same files of these names; None if one has none."""
    mine, other = _digest(ours, names), _digest(theirs, names)
    return None if mine is None or other is None else mine == other


def _digest(folder: Path, names: tuple[str, ...]) -> str | None:
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        return None
    total = hashlib.sha256()
    for path in found:
        total.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:12]


def _model(name: str, config: Config, model: ModelInfo) -> Check:
    name, ours, theirs = f"{name}: model", config.target.model, model.model_path
    if theirs == ours or Path(theirs).resolve() == Path(ours).resolve():
        return Check(name, Verdict.OK, printable(theirs))
    same = _same_files(Path(ours), Path(theirs), _MODEL_FILES)
    found = f"serves {printable(theirs)}, the run has {ours}"
    if same:
        return Check(name, Verdict.OK, f"{found}: the same config.json")
    if same is None and Path(theirs).name == Path(ours).name:
        advice = "the folder cannot be compared from here; make sure that it is the same model"
        return Check(name, Verdict.WARN, found, advice)
    return Check(name, Verdict.FAIL, found, "start the run's model, or set target.model")


def _tokenizer(name: str, config: Config, model: ModelInfo) -> Check:
    name = f"{name}: tokenizer"
    ours = Path(config.target.tokenizer or config.target.model)
    theirs = Path(model.tokenizer_path)
    same = _same_files(ours, theirs, _TOKENIZER_FILES)
    if same is None:
        advice = "its files cannot be read from here; the round trip below compares ids"
        return Check(name, Verdict.WARN, printable(theirs), advice)
    shown = f"{_digest(theirs, _TOKENIZER_FILES)} ({printable(theirs)})"
    if same:
        return Check(name, Verdict.OK, shown)
    mine = _digest(ours, _TOKENIZER_FILES)
    advice = "serve with the run's tokenizer (--tokenizer-path), or set target.tokenizer"
    return Check(name, Verdict.FAIL, f"{shown}, the run has {mine} ({ours})", advice)


def _vocabulary(name: str, model: ModelInfo, facts: ModelFacts | None) -> Iterator[Check]:
    if facts is None:
        return
    try:
        theirs = read_model_facts(Path(model.model_path)).vocab_size
    except EagledError:
        return
    name = f"{name}: vocabulary"
    if theirs == facts.vocab_size:
        yield Check(name, Verdict.OK, f"{theirs} ids")
    else:
        found = f"{theirs} ids, the run has {facts.vocab_size}"
        yield Check(name, Verdict.FAIL, found, "an id beyond its vocabulary kills a server")


def _context(name: str, config: Config, info: ServerInfo) -> Check:
    name = f"{name}: context"
    lanes = [lane.context for lane in config.lanes.values() if lane.context]
    if info.context is None:
        return Check(name, Verdict.WARN, "not said", "prompts may be refused that lanes allow")
    needed = max(lanes, default=0)
    found = f"{info.context} tokens, lanes need {context_needed(config) or needed or 'any'}"
    if info.context < needed:
        return Check(name, Verdict.FAIL, found, f"start it with --context-length {needed}")
    return Check(name, Verdict.OK, found)


def _drafting(
    name: str, config: Config, flags: ServerFlags, plan: ServePlan | None
) -> Iterator[Check]:
    """Check speculative decoding: the algorithm, the draft, and its layers."""
    name = f"{name}: draft"
    wanted = plan is not None and plan.draft is not None
    if flags.speculative is None:
        if wanted:
            yield Check(name, Verdict.FAIL, "none, although one was asked for", "see its log")
        return
    draft = _read_draft(flags.draft)
    if draft is not None:
        label = f"draft {flags.draft}"
        for problem in draft_config_problems(
            draft, flags.speculative, context_needed(config), label
        ):
            advice = "start it with --speculative-algorithm EAGLE3 and a draft made for this run"
            yield Check(name, Verdict.FAIL, problem, advice)
        yield from _draft_layers(name, config, draft)
    elif flags.speculative.upper() != EAGLE3:
        advice = "if its draft is an EAGLE-3 one, it needs EAGLE3: EAGLE drafts in vain, silently"
        yield Check(name, Verdict.WARN, flags.speculative, advice)
    if not wanted:
        advice = "answers are the target's all the same, but rates are not the plain server's"
        yield Check(name, Verdict.WARN, f"it drafts with {flags.speculative}", advice)
    elif draft is not None:
        yield Check(name, Verdict.OK, f"{flags.speculative} with {printable(flags.draft)}")


def _read_draft(path: str | None) -> dict[str, object] | None:
    if path is None:
        return None
    try:
        return read_json(Path(path) / "config.json")
    except EagledError:
        return None


def _draft_layers(name: str, config: Config, draft: dict[str, object]) -> Iterator[Check]:
    """Compare a draft's layers with those of the run; the ids are boundaries in both."""
    inner = draft.get("eagle_config")
    ids = inner.get("eagle_aux_hidden_state_layer_ids") if isinstance(inner, dict) else None
    if not isinstance(ids, list) or not config.extract.layers:
        return
    wanted = list(plan_layers(max(config.extract.layers) + 1, config.extract.layers))
    verdict = Verdict.OK if ids == wanted else Verdict.WARN
    advice = "" if ids == wanted else (
        "some engines and versions count from one: see docs/serve.md before you trust either"
    )  # fmt: skip
    yield Check(f"{name} layers", verdict, f"its config says {ids}, the run has {wanted}", advice)


def _flags(name: str, flags: ServerFlags, plan: ServePlan | None) -> Iterator[Check]:
    """Check what changes tokens or hides what a run watches."""
    name = f"{name}: flags"
    if flags.truncates:
        advice = "it cuts prompts silently: start it without --allow-auto-truncate"
        yield Check(name, Verdict.FAIL, "allow_auto_truncate", advice)
    for parser in (flags.reasoning_parser, flags.tool_call_parser):
        if parser:
            advice = "eagled never uses its output; start without it to be sure"
            yield Check(name, Verdict.WARN, f"parser {printable(parser)}", advice)
    if plan is None:
        return
    if not flags.metrics:
        yield Check(name, Verdict.WARN, "no metrics", "--enable-metrics shows tokens being made")
    if plan.capture and not (flags.radix_cache_off and flags.hidden_states):
        advice = "start it with --disable-radix-cache and --enable-return-hidden-states"
        yield Check(name, Verdict.FAIL, "it cannot give whole hidden states", advice)


async def _round_trip(name: str, config: Config, client: SglangClient) -> Check:
    name = f"{name}: round trip"
    try:
        theirs = await client.encode(PROBE_TEXT)
    except EagledError as exc:
        return Check(name, Verdict.WARN, f"it takes no text: {printable(exc, 80)}")
    try:
        ours, back = await asyncio.to_thread(_encode, config)
    except EagledError as exc:
        return Check(name, Verdict.FAIL, str(exc), "the run's tokenizer must load")
    if theirs != ours:
        at = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), -1)
        found = f"its ids differ from the run's, {len(theirs)} and {len(ours)}, first at {at}"
        return Check(name, Verdict.FAIL, found, "it serves another tokenizer; nothing would fit")
    if not back:
        advice = "text is for reading only, ids are what is stored"
        return Check(name, Verdict.WARN, f"{len(ours)} ids; they decode to another text", advice)
    return Check(name, Verdict.OK, f"{len(ours)} ids, the same on both sides, and back")


def _encode(config: Config) -> tuple[tuple[int, ...], bool]:
    """Return our ids of the probe, and whether they decode to its text."""
    from eagled.text.tokenizer import keep_torch_out, load_tokenizer

    keep_torch_out()
    tokenizer = load_tokenizer(config.target)
    ids = tuple(int(i) for i in tokenizer.encode(PROBE_TEXT))
    return ids, PROBE_TEXT in tokenizer.decode(ids)
