"""Everything that differs between SGLang versions, and the names that the plugin hooks.

A version is in `SUPPORTED` only when the whole capture suite has passed against it
(`make test-sglang` on the CPU, `bench/capture` on a GPU). All others are refused at start.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from eagled.sglang_plugin.settings import CaptureError

SUPPORTED = ("0.5.17", "0.5.23")

_PROCESSOR = (
    "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
)
SCHEDULER_INIT = "sglang.srt.managers.scheduler.Scheduler.__init__"
CONFIGURE = "sglang.srt.model_executor.model_runner.configure_aux_hidden_state_capture"
STORE = "sglang.srt.layers.logits_processor.LogitsProcessor._get_hidden_states_to_store"
FORWARD = "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation"
COPY = "sglang.srt.managers.utils.GenerationBatchResult.copy_to_cpu"
PREFILL_ROWS = f"{_PROCESSOR}._append_prefill_hidden_states"
DECODE_ROWS = f"{_PROCESSOR}._append_decode_hidden_states"
PREFILL_RESULT = f"{_PROCESSOR}.process_batch_result_prefill"
DECODE_RESULT = f"{_PROCESSOR}.process_batch_result_decode"
RETRACT = "sglang.srt.managers.schedule_batch.Req.reset_for_retract"
REPLY = "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request"


def sglang_version() -> str:
    """Return SGLang's version.

    Raises:
        CaptureError: if this plugin was not tested with it.
    """
    try:
        found = version("sglang")
    except PackageNotFoundError:
        found = "unknown"
    if found not in SUPPORTED:
        raise CaptureError(
            f"SGLang {found} is not supported, only {' and '.join(SUPPORTED)}: hidden states of a "
            "version that nobody has checked may be silently wrong. Install one of these, or unset "
            "EAGLED_CAPTURE to serve without capturing"
        )
    return found


def is_writing_rank() -> bool:
    """Return whether this process is rank 0 of its tensor-parallel group."""
    from sglang.srt.runtime_context import get_parallel

    return bool(get_parallel().attn_tp_rank == 0)


def refusal(args: Any) -> str | None:
    """Return why a server with these arguments cannot capture, or None."""
    if not args.disable_radix_cache:
        return "the prefix cache leaves rows out: start with --disable-radix-cache"
    if args.pp_size != 1:
        return f"--pp-size {args.pp_size}: capture needs all layers in one stage (1)"
    if not args.enable_return_hidden_states:
        return "start with --enable-return-hidden-states"
    if args.speculative_algorithm:
        return f"--speculative-algorithm {args.speculative_algorithm}: capture without a draft"
    if args.disaggregation_mode != "null":
        return f"--disaggregation-mode {args.disaggregation_mode}: capture needs null"
    return None


def batch_rows(batch: Any) -> list[int]:
    """Return how many rows each request of a batch has in its forward pass, in order."""
    if batch.forward_mode.is_extend():
        return [int(n) for n in batch.extend_lens]
    return [1] * len(batch.reqs)


def ring_tokens(args: Any) -> int:
    """Return the most tokens of one batch."""
    chunk = args.chunked_prefill_size or 0
    if chunk <= 0:  # prompts go in one piece
        chunk = max(args.max_prefill_tokens or 0, args.context_length or 0)
    return int(max(chunk, 1024) + 1024)  # decode rows of a mixed batch
