"""Real SGLang serves our drafts: with EAGLE3 the greedy answer is the one without a draft.

Needs EAGLED_SGLANG_VENV (`make test-sglang`). With EAGLED_DRAFT and EAGLED_DRAFT_TARGET, the
folders of a trained draft and of its target, the acceptance of that draft is measured too:
`make demo` leaves such a pair.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from eagled.draft import check_draft, judge_length
from eagled.train.geometry import target_config
from tests.contract.server import running_sglang
from tests.draft_kit import random_draft

VENV = os.environ.get("EAGLED_SGLANG_VENV", "")
GUESSES = 3
PROMPTS = (
    "Write one sentence about the sea.",
    "List three colours and what they remind you of.",
    "Explain in a few words how bread is made.",
    "def add(a, b):",
)
pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.skipif(not VENV, reason="EAGLED_SGLANG_VENV is not set: make test-sglang"),
]


def spec_flags(draft: Path) -> tuple[str, ...]:
    """Return the flags of chain speculation with three guesses."""
    return (
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft),
        "--speculative-num-steps", str(GUESSES), "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", str(GUESSES + 1),
        "--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx",
        "--speculative-draft-attention-backend", "intel_amx",
    )  # fmt: skip


def ask(url: str, ids: Sequence[int], new_tokens: int) -> dict[str, Any]:
    """Return the reply to a greedy request."""
    params = {"temperature": 0, "max_new_tokens": new_tokens}
    body = orjson.dumps({"input_ids": list(ids), "sampling_params": params})
    headers = {"Content-Type": "application/json", "Authorization": "Bearer contract-key"}
    request = urllib.request.Request(url + "/generate", body, headers)  # noqa: S310 - our own address
    with urllib.request.urlopen(request, timeout=300) as response:  # noqa: S310 - as above
        return dict(orjson.loads(response.read()))


@contextmanager
def answers(
    model: Path, log: Path, prompts: Sequence[Sequence[int]], new_tokens: int, *flags: str
) -> Iterator[list[dict[str, Any]]]:
    """Serve the model, and yield its greedy answers."""
    with running_sglang(Path(VENV), model, log, *flags) as url:
        yield [ask(url, ids, new_tokens) for ids in prompts]


@pytest.mark.parametrize("layers", [(2, 4, 5), (1, 4, 6)], ids=["default layers", "other layers"])
def test_greedy_answers_are_the_same_with_a_draft(
    tiny_model: Path, tmp_path: Path, layers: tuple[int, ...]
) -> None:
    """Token for token in float32, also when the draft names its layers; verify steps were made."""
    draft = random_draft(tiny_model, tmp_path / "draft", layers)
    prompts = [[0, *range(20 + i, 40 + 3 * i)] for i in range(4)]
    with answers(tiny_model, tmp_path / "plain.log", prompts, 48) as plain:
        pass
    with answers(tiny_model, tmp_path / "spec.log", prompts, 48, *spec_flags(draft)) as spec:
        pass

    assert [] == check_draft(draft, target_config(tiny_model))
    assert [a["output_ids"] for a in plain] == [a["output_ids"] for a in spec]
    assert all(a["meta_info"]["spec_verify_ct"] > 0 for a in spec)


def trained() -> tuple[Path, Path]:
    """Return the folders of a trained draft and its target."""
    draft, target = os.environ.get("EAGLED_DRAFT"), os.environ.get("EAGLED_DRAFT_TARGET")
    if not draft or not target:
        pytest.skip("EAGLED_DRAFT and EAGLED_DRAFT_TARGET are not set")
    return Path(draft), Path(target)


def length_of(replies: Sequence[dict[str, Any]]) -> float:
    """Return 1 + right guesses / verify steps; the first token comes from the prefill."""
    infos = [r["meta_info"] for r in replies]
    right, verifies = (
        sum(i[key] for i in infos) for key in ("spec_num_correct_drafts", "spec_verify_ct")
    )
    return float(1 + right / verifies)


def loops(ids: Sequence[int]) -> bool:
    """Return whether an answer ends in the same four tokens again and again."""
    grams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    return len(set(grams)) < len(grams) / 2


def test_a_trained_draft_is_accepted(tmp_path: Path) -> None:
    """Answers are the same and do not loop, and more than one token comes of a verify step."""
    draft, target = trained()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in PROMPTS
    ]
    with answers(target, tmp_path / "plain.log", prompts, 64) as plain:
        pass
    with answers(target, tmp_path / "spec.log", prompts, 64, *spec_flags(draft)) as spec:
        pass
    kept = [(p, s) for p, s in zip(plain, spec, strict=True) if not loops(p["output_ids"])]

    assert len(kept) >= 3
    assert [p["output_ids"] for p, _ in kept] == [s["output_ids"] for _, s in kept]
    length = length_of([s for _, s in kept])
    print(f"accepted length {length:.3f}")  # noqa: T201 - the number that this is about
    assert judge_length(length) is None
