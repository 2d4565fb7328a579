"""What a daemon answers beyond its status, for the views behind the first."""

from __future__ import annotations

from typing import Any

from tests.unit.tui.doubles import AT_MS

UID = "0f3c" * 8


def sample_row(i: int, **changes: Any) -> dict[str, Any]:
    """Return one row of a list of samples."""
    row: dict[str, Any] = {
        "id": i, "uid": f"{i:04x}" * 8, "dataset": "ultrachat-200k", "lane": "short", "turn": 0,
        "state": "generating", "attempt": 1, "failures": 0, "n_prompt": 700 + i, "n_output": None,
        "finish": None, "reason": None, "detail": None, "updated_ms": AT_MS - 1000 * i,
    }  # fmt: skip
    return {**row, **changes}


def sample_detail(**changes: Any) -> dict[str, Any]:
    """Return everything but the text of one sample."""
    row = sample_row(7, uid=UID, state="extracted", n_output=9, finish="stop")
    return {
        "row": {**row, **changes}, "conversation": "ab" * 16, "source_id": "row-118233", "rank": 3,
        "crashes": 0, "server": "http://127.0.0.1:30000", "elapsed_s": 175.2, "checked": True,
        "extract_attempt": 1, "shard": "s-000012.safetensors", "shard_index": 4,
        "failures_log": [
            {"attempt": 1, "at_ms": AT_MS - 90_000, "kind": "timeout", "detail": "no bytes, 600 s"}
        ],
    }  # fmt: skip


def sample_text(answer: str = "It is O(n+m).\n\tok 今天", **changes: Any) -> dict[str, Any]:
    """Return the text of one sample."""
    return {
        "uid": UID, "prompt_ids": [1, 5, 6, 2], "output_ids": [9, 8, 3],
        "prompt": [["<|im_user|>", 1, True], ["Write <|im_end|> as text", 2, False],
                   ["<|im_end|>", 1, True]],
        "output": [[answer, 2, False], ["<|im_end|>", 1, True]], "note": "", **changes,
    }  # fmt: skip


def _cause(cause: str, reason: str, n: int, **changes: Any) -> dict[str, Any]:
    row = {
        "cause": cause, "dataset": "ultrachat-200k", "state": "failed", "reason": reason, "n": n,
        "pattern": "no bytes for N s", "example": UID, "detail": "no bytes for 600 s",
        "tokens_in": 9000 * n, "tokens_out": 5000 * n, "busy_s": 1.0, "retry_s": 360.0,
    }  # fmt: skip
    return {**row, **changes}


def _option(name: str, left: int, *, fits: bool) -> dict[str, Any]:
    return {
        "name": name, "policy": {"codec": "lossless", "last": "supervised", "max_tokens": 0},
        "trade": "nothing is lost", "bytes_left": left, "bytes_per_token": 43008.0,
        "supervised_kept": 1.0, "fits": fits, "full_in_s": None if fits else 7200.0,
        "groups": [{"dataset": "ultrachat-200k", "lane": "short", "samples": 9, "bytes": left}],
    }  # fmt: skip


_STEPS = [
    {"step": i, "epoch": 0, "loss": 9.0 - i / 20, "lr": 5e-5, "accept_length": 1 + i / 60,
     "grad_norm": 1.0, "tok_per_s": 206.6}
    for i in range(1, 61)
]  # fmt: skip

ANSWERS: dict[str, Any] = {
    "/v1/samples": {"samples": [sample_row(i) for i in range(1, 31)]},
    f"/v1/samples/{UID}": sample_detail(),
    f"/v1/samples/{UID}/text": sample_text(),
    "/v1/failures": {
        "failures": [
            _cause("a1b2c3d4", "too_many_failures", 118),
            _cause("e5f60718", "bad_tool_call", 41, state="rejected", retry_s=None),
        ]
    },
    "/v1/plan/disk": {
        "options": [_option("now", 5_217_000_000_000, fits=True),
                    _option("fp8", 2_600_000_000_000, fits=True)],
        "recommended": "now", "why": "what holds now fits", "room": {"free_bytes": 5_887 * 10**9},
    },
    "/v1/training": {
        "name": "v001", "updated_ms": AT_MS - 4000, "steps": _STEPS, "done": False,
        "estimates": [{"step": 0, "length": 1.0}, {"step": 60, "length": 1.271}],
        "status": {"step": 60, "total": 152, "eta_s": 140.0, "loss": 6.0, "accept_length": 2.0},
    },
}  # fmt: skip
