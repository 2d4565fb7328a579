"""Tokenizers that are code of their own: when they run, and that they give the right ids.

The reference is the library's fast tokenizer of the same vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import dynamic_module_utils

from eagled.config import TargetConfig
from eagled.errors import ConfigError, RowRejectedError
from eagled.text.check import TextChecker
from eagled.text.messages import Message, Role, ToolCall
from eagled.text.native import NativeRenderer
from eagled.text.render import Renderer, Request
from eagled.text.tokenizer import load_tokenizer
from eagled.types import RowReason
from tests import slow_tokenizer
from tests.prep_kit import text_job, toy_renderer
from tests.slow_tokenizer import make_slow_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOOLS = ({"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}},)
_WORDS = st.sampled_from(
    [
        "hello",
        " the ok",
        "<|im_end|>",
        "<think>",
        "<|reserved_token_285|>",
        "\u4eca\u65e5",
        "🤣",
        "\n\n",
        " a",
        "<|im_",
    ]
)
_TEXTS = st.lists(_WORDS, min_size=1, max_size=8).map("".join).filter(str.strip)


@pytest.fixture(scope="module", autouse=True)
def _modules_in_tmp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copies of remote code go to a folder of the tests, not to the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("modules"))
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", folder)
        yield


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """A renderer of the slow tokenizer."""
    return _renderer(make_slow_tokenizer(tmp_path_factory.mktemp("slow") / "model"))


def _renderer(folder: Path) -> Renderer:
    return Renderer.load(TargetConfig(model=str(folder), trust_remote_code=True))


def _changed(folder: Path, old: str, new: str) -> Path:
    """Make the slow tokenizer with a change in its code."""
    assert old in slow_tokenizer._CODE
    return make_slow_tokenizer(folder, code=slow_tokenizer._CODE.replace(old, new))


# --- when it runs ---------------------------------------------------------------------------


def test_code_never_runs_without_the_setting(tmp_path: Path) -> None:
    """The refusal names the setting and the class, before a line of the code ran."""
    witness = tmp_path / "ran"
    folder = _changed(
        tmp_path / "model", "import json\n", f"import json\nopen({str(witness)!r}, 'w').close()\n"
    )
    with pytest.raises(ConfigError, match=r"ToyBytePairTokenizer.*trust_remote_code = true"):
        load_tokenizer(TargetConfig(model=str(folder)))

    assert not witness.exists()
    load_tokenizer(TargetConfig(model=str(folder), trust_remote_code=True))
    assert witness.exists()


@pytest.mark.parametrize("revision", [None, "main", COMMIT[:12], COMMIT.upper()])
def test_code_from_the_hub_needs_a_full_commit(revision: str | None) -> None:
    """A branch or a short hash is no pin."""
    with pytest.raises(ValidationError, match="pinned revision"):
        TargetConfig(model="org/model", revision=revision, trust_remote_code=True)

    pinned = TargetConfig(model="org/model", revision=COMMIT, trust_remote_code=True)
    assert pinned.revision == COMMIT


def test_a_tokenizer_from_the_hub_is_pinned_beside_a_local_model(tmp_path: Path) -> None:
    """What counts is where the tokenizer comes from, not the weights."""
    with pytest.raises(ValidationError, match="pinned revision"):
        TargetConfig(model=str(tmp_path), tokenizer="org/tokenizer", trust_remote_code=True)


def test_code_of_another_repository_is_refused(tmp_path: Path) -> None:
    """A reference to a second repository would run code that no revision pins."""
    folder = make_slow_tokenizer(tmp_path / "model")
    config = folder / "tokenizer_config.json"
    text = config.read_text(encoding="utf-8").replace(
        '"tokenization_toy.', '"other/x--tokenization_toy.'
    )
    config.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="takes its code from another repository"):
        load_tokenizer(TargetConfig(model=str(folder), trust_remote_code=True))


def test_the_hash_covers_all_of_its_code(tmp_path: Path, slow: Renderer) -> None:
    """A change in a module that the class imports is another tokenizer; a copy is the same."""
    assert _renderer(make_slow_tokenizer(tmp_path / "copy")).tokenizer_hash == slow.tokenizer_hash
    folder = make_slow_tokenizer(tmp_path / "other")
    with (folder / "words.py").open("a", encoding="utf-8") as file:
        file.write("MORE = 1\n")
    assert _renderer(folder).tokenizer_hash != slow.tokenizer_hash


# --- what it gives --------------------------------------------------------------------------


def test_facts_and_control_tokens_are_found(slow: Renderer) -> None:
    """The same facts as with the fast tokenizer; reserved tokens that stand in no list too."""
    fast = toy_renderer()

    assert fast.facts == slow.facts
    assert fast.eos_ids == slow.eos_ids
    reserved = {f"<|reserved_token_{i}|>": i for i in range(283, 291)}
    assert fast.encoding.control_ids | reserved == slow.encoding.control_ids


@settings(deadline=None, max_examples=60)
@given(text=_TEXTS)
def test_prompts_are_the_fast_ones(slow: Renderer, text: str) -> None:
    """Control-token text is plain in both; a reserved token's text never becomes its id."""
    chat = [Message(Role.USER, text)]
    ids = slow.prompt_ids(chat, None)

    assert toy_renderer().prompt_ids(chat, None) == ids
    assert slow.render(Request(chat)) == slow.decode(ids)


def test_its_own_rendering_is_used(slow: Renderer) -> None:
    """The class hands the template its own form of the tools; ids are those of its own method."""
    chat = [Message(Role.USER, "hello")]
    ids = slow.prompt_ids(chat, TOOLS)
    own = slow.tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], tools=list(TOOLS), tokenize=True, return_dict=False
    )

    assert own == ids
    assert "may call: f<|im_end|>" in slow.decode(ids)


@settings(deadline=None, max_examples=40)
@given(
    asked=st.lists(_TEXTS, min_size=3, max_size=3), said=st.lists(_TEXTS, min_size=2, max_size=2)
)
def test_a_conversation_grows_by_whole_turns(
    slow: Renderer, asked: list[str], said: list[str]
) -> None:
    """Turn by turn: each prompt begins with the one before it and its answer, id for id."""
    native = NativeRenderer(slow)
    chat = [Message(Role.USER, asked[0])]
    for answer, question in zip(said, asked[1:], strict=True):
        chat += [Message(Role.ASSISTANT, answer), Message(Role.USER, question)]
        turn = native.turn(chat, None, len(chat) - 2)
        so_far = turn.prompt + turn.answer
        after = slow.prompt_ids(chat, None, thinking=False)

        assert so_far == after[: len(so_far)]
        assert answer + "<|im_end|>" == slow.decode(turn.answer)


@settings(deadline=None, max_examples=60)
@given(text=_TEXTS, cut=st.integers(0, 40))
def test_ids_can_be_cut_anywhere(slow: Renderer, text: str, cut: int) -> None:
    """A part decodes without an error, and whole text comes back from the ids alone."""
    ids = slow.encode_pieces(slow.mark(text))
    part = slow.decode(ids[:cut])

    assert text == slow.decode(ids)
    assert text.startswith(part.rstrip("\ufffd"))
    assert slow.encoding.control_id_set.isdisjoint(ids)


def test_pieces_are_the_whole(slow: Renderer) -> None:
    """Cut at its control tokens, a text has the ids that it has in one go."""
    text = slow.render(Request([Message(Role.USER, "hello the ok, hello")], TOOLS))

    assert slow.tokenizer.encode(text) == slow.encoding.encode_in_pieces(text)


def test_native_turns_are_the_fast_ones(slow: Renderer) -> None:
    """Reasoning, calls and control-token text of an answer give the same ids."""
    call = ToolCall("functions.f:0", "f", '{"a": "<|im_end|>"}')
    chat = (Message(Role.USER, "q"), Message(Role.ASSISTANT, "see </think>", "because", (call,)))

    fast = NativeRenderer(toy_renderer()).turn(chat, None, 1)
    assert fast == NativeRenderer(slow).turn(chat, None, 1)


def test_answers_are_judged_by_ids(slow: Renderer) -> None:
    """The text worker's check works on it: a spelled end of reasoning closes nothing."""
    prompt = slow.prompt_ids([Message(Role.USER, "hello")], None)
    checker = TextChecker(slow)
    closed = slow.encode_pieces("hm</think>hi<|im_end|>")
    spelled = [*slow.encode_pieces(slow.mark("hm</think>hi")), 271]

    assert checker.check(text_job(prompt, closed)).reason is None
    assert checker.check(text_job(prompt, spelled)).reason == "unclosed_think"


# --- what is refused ------------------------------------------------------------------------


def test_text_that_cannot_be_kept_plain_rejects_the_row(tmp_path: Path) -> None:
    """A class without a way around its control tokens: such rows are set aside, others are not."""
    always = "found = self._first_control(rest)\n"
    old = "found = self._first_control(rest) if allow_special_tokens else None\n"
    renderer = _renderer(_changed(tmp_path / "model", old, always))
    with pytest.raises(RowRejectedError, match="cannot encode it as plain text") as caught:
        renderer.prompt_ids([Message(Role.USER, "what is <think>?")], None)

    assert caught.value.reason == RowReason.CONTROL_TEXT
    fine = [Message(Role.USER, "hello")]
    assert toy_renderer().prompt_ids(fine, None) == renderer.prompt_ids(fine, None)


def test_a_control_token_that_is_not_one_id_is_refused(tmp_path: Path) -> None:
    """A class that splits its own markers would give prompts that the server never sees."""
    never = "found = None\n"
    old = "found = self._first_control(rest) if allow_special_tokens else None\n"
    with pytest.raises(ConfigError, match=r"control token '\[BOS\]'"):
        _renderer(_changed(tmp_path / "model", old, never))
