"""The hooks themselves: thin, and each says what of SGLang it stands on.

Guarantee: all hooks are in place or the server does not start (SGLang only logs a hook that fails,
so `_check_applied` looks again when the scheduler starts). Price: with capture on and nobody
asking, one attribute test per batch and per reply.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import torch

from eagled.sglang_plugin import versions
from eagled.sglang_plugin.reply import replies
from eagled.sglang_plugin.settings import CaptureError, CaptureSettings, check_layers
from eagled.sglang_plugin.spoolfile import FileFacts
from eagled.sglang_plugin.tap import Plan, Tap

_log = logging.getLogger(__name__)
_DTYPES = (torch.bfloat16, torch.float32)


class _Process:
    """What the hooks of one SGLang process share."""

    def __init__(self, settings: CaptureSettings, version: str) -> None:
        self.settings = settings
        self.version = version
        self.tap: Tap | None = None  # of the scheduler that writes
        self.writes = True  # whether this is the rank that writes; known once a model is there
        self.asked = True  # whether the batch in the model asks; CUDA graphs are made with it on

    # Start of a scheduler

    def check_arguments(self, _scheduler: object, server_args: Any, *_: Any, **__: Any) -> None:
        """Refuse arguments under which states would be wrong or missing."""
        _check_applied()
        if reason := versions.refusal(server_args):
            raise CaptureError(reason)

    def start(self, result: None, scheduler: Any, server_args: Any, *_: Any, **__: Any) -> None:
        """Start the writer beside a scheduler of rank 0."""
        del result
        if not self.writes:
            return
        model = scheduler.model_config
        facts = FileFacts(
            rid="",
            layers=self.settings.layers,
            hidden_size=int(model.hidden_size),
            prompt_tokens=0,
            output_tokens=0,
            source_dtype=str(model.dtype).removeprefix("torch."),
            sglang=self.version,
            model=str(server_args.model_path),
        )
        self.tap = Tap(self.settings, facts, versions.ring_tokens(server_args))

    def set_layers(self, result: None, *_: Any, model: Any, **__: Any) -> None:
        """Set the captured boundaries, whatever the model class does to explicit ids."""
        del result
        self.writes = versions.is_writing_rank()
        set_boundaries(model, self.settings.layers)
        _log.info("capture boundaries=%s model=%s", self.settings.layers, type(model).__name__)

    # A batch, from launch to result

    def forward(
        self,
        original: Callable[..., Any],
        worker: object,
        batch: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Put a plan where the batch's packed states are; runs on the stream of the model."""
        self.asked = batch is None or bool(batch.return_hidden_states)
        result = original(worker, batch, *args, **kwargs)
        output = result.logits_output
        if self.tap is None or batch is None or not batch.return_hidden_states or output is None:
            return result
        if isinstance(output.hidden_states, torch.Tensor):
            output.hidden_states = self.tap.plan(
                batch.reqs,
                versions.batch_rows(batch),
                output.hidden_states,
                copied=not result.can_run_cuda_graph,
            )
        return result

    def pack(
        self,
        original: Callable[..., Any],
        processor: object,
        hidden: torch.Tensor,
        before_norm: Any,
        aux: torch.Tensor | Sequence[torch.Tensor] | None,
        *rest: Any,
    ) -> Any:
        """Return aux and last side by side, [rows, (L+1)*D] bf16; None where nobody reads it."""
        if not rest[-1].capture_hidden_mode.is_full():
            return original(processor, hidden, before_norm, aux, *rest)
        if not self.asked or aux is None or not self.writes:
            return None
        chunks = [aux] if isinstance(aux, torch.Tensor) else list(aux)
        return torch.cat([*chunks, hidden], dim=-1).to(torch.bfloat16)

    def copy(
        self,
        original: Callable[..., Any],
        result: Any,
        return_logprob: bool,  # noqa: FBT001 - SGLang's signature
        return_hidden_states: bool = True,  # noqa: FBT001, FBT002 - SGLang's signature
    ) -> Any:
        """Copy the states to the ring beside SGLang's own results; its event covers both."""
        output = result.logits_output
        plan = output.hidden_states if output is not None else None
        if isinstance(plan, Plan) and self.tap is not None:
            self.tap.stage(plan)
            return_hidden_states = False
        return original(result, return_logprob, return_hidden_states)

    def result(
        self,
        original: Callable[..., Any],
        processor: object,
        batch: Any,
        result: Any,
    ) -> None:
        """Let SGLang take in a batch's result, then hand the batch's rows on."""
        output = getattr(result, "logits_output", None)
        plan = getattr(output, "hidden_states", None)
        if not isinstance(plan, Plan) or self.tap is None:
            plan = None
        elif plan.packed is not None:  # without overlap SGLang makes no copies itself
            self.tap.stage(plan)
            if torch.cuda.is_available():
                torch.cuda.current_stream().synchronize()
        original(processor, batch, result)
        if self.tap is not None and batch.return_hidden_states:
            self.tap.settle(plan, batch.reqs)

    def prefill_rows(
        self,
        original: Callable[..., int],
        processor: object,
        *,
        req: Any,
        logits_output: Any,
        hidden_state_offset: int,
        extend_input_len: int,
        **rest: Any,
    ) -> int:
        """Accept a request's rows, also of a chunk that is not its last (SGLang drops those)."""
        if not isinstance(logits_output.hidden_states, Plan):
            return original(
                processor,
                req=req,
                logits_output=logits_output,
                hidden_state_offset=hidden_state_offset,
                extend_input_len=extend_input_len,
                **rest,
            )
        if self.tap is not None and not req.is_retracted and not req.finished():
            self.tap.accept(logits_output.hidden_states, req)
        return hidden_state_offset + extend_input_len

    def decode_rows(self, original: Callable[..., None], **given: Any) -> None:
        """Accept the row of one generated token."""
        if not isinstance(given["hidden_states"], Plan):
            original(**given)
        elif self.tap is not None:
            self.tap.accept(given["hidden_states"], given["req"])

    def retracted(self, result: None, req: Any) -> None:
        """Void what a retracted request has."""
        del result
        if self.tap is not None:
            self.tap.retracted(req)

    # The HTTP server's process

    def reply(
        self,
        original: Callable[..., AsyncIterator[Any]],
        manager: object,
        obj: Any,
        request: Any = None,
    ) -> AsyncIterator[Any]:
        """Put a receipt into each reply that asked for states."""
        source = partial(original, manager, obj, request)
        if not getattr(obj, "return_hidden_states", False):
            return source()
        return replies(source, obj.rid, self.settings)


def set_boundaries(model: Any, layers: tuple[int, ...]) -> None:
    """Make `model` capture what enters each of `layers`.

    SGLang's setter adds one to explicit ids in most model classes and in some not. Its own default
    rule is no help for other layers; so the setter only switches capture on, and the ids are then
    written where the model's loop reads them: `layers_to_capture`, where k is what enters layer k.

    Raises:
        CaptureError: if the model cannot capture, or not these layers.
    """
    if not hasattr(model, "set_eagle3_layers_to_capture"):
        raise CaptureError(
            f"{type(model).__name__} has no support for capturing hidden states in this SGLang"
        )
    model.set_eagle3_layers_to_capture(list(layers))
    holders = [m for m in model.modules() if hasattr(m, "layers_to_capture")]
    if len(holders) != 1:
        raise CaptureError(
            f"{type(model).__name__}: {len(holders)} modules have layers_to_capture, expected one"
        )
    check_layers(layers, len(holders[0].layers))
    holders[0].layers_to_capture = list(layers)


def install(settings: CaptureSettings) -> None:
    """Register all hooks with SGLang's registry, which applies them after this returns.

    Raises:
        CaptureError: if this SGLang is not a tested one.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    here = _Process(settings, versions.sglang_version())
    hooks = (
        (versions.SCHEDULER_INIT, here.check_arguments, HookType.BEFORE),
        (versions.SCHEDULER_INIT, here.start, HookType.AFTER),
        (versions.CONFIGURE, here.set_layers, HookType.AFTER),
        (versions.STORE, here.pack, HookType.AROUND),
        (versions.FORWARD, here.forward, HookType.AROUND),
        (versions.COPY, here.copy, HookType.AROUND),
        (versions.PREFILL_ROWS, here.prefill_rows, HookType.AROUND),
        (versions.DECODE_ROWS, here.decode_rows, HookType.AROUND),
        (versions.PREFILL_RESULT, here.result, HookType.AROUND),
        (versions.DECODE_RESULT, here.result, HookType.AROUND),
        (versions.RETRACT, here.retracted, HookType.AFTER),
        (versions.REPLY, here.reply, HookType.AROUND),
    )
    for target, hook, kind in hooks:
        HookRegistry.register(target, hook, kind)


def _check_applied() -> None:
    """Raise unless SGLang has applied every hook.

    Raises:
        CaptureError: naming the targets that it could not find.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    ours = {t for t, hooks in HookRegistry._hooks.items() if any(_is_ours(h[1]) for h in hooks)}  # noqa: SLF001 - there is no public way to ask
    if missing := sorted(ours - HookRegistry._patched):  # noqa: SLF001 - as above
        raise CaptureError(f"SGLang did not accept hooks on {', '.join(missing)}")


def _is_ours(hook: Callable[..., Any]) -> bool:
    return isinstance(getattr(hook, "__self__", None), _Process)
