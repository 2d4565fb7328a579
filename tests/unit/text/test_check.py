"""Output checks and replay: verdicts on ids, and the exact prompt of the next turn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from eagled.config import ChecksConfig
from eagled.prepared import conversation_of
from eagled.text.answer import parse_answer
from eagled.text.check import OnLength, TextChecker
from eagled.text.messages import Message, Role
from eagled.text.render import Renderer
from eagled.tokens import PackedIds, pack_ids, unpack_ids
from eagled.types import Finish, OutputReason, TextJob, TextVerdict
from eagled.workers.prepare import prepare_dataset
from eagled.workers.text import check_all
from tests.faults import fault_file
from tests.prep_kit import (
    any_lane,
    http_body,
    lines_of,
    text_job,
    toy_config,
    toy_renderer,
    write_jsonl,
)
from tests.toy import load_toy_tokenizer

ASKED = (Message(Role.USER, "hello"),)


def _prompt() -> list[int]:
    return toy_renderer().prompt_ids(ASKED, None)


def _ids(text: str) -> list[int]:
    return list(toy_renderer().tokenizer.encode(text, add_special_tokens=False))


def _check(output: list[int], *, on_length: OnLength = "keep", **job: Any) -> TextVerdict:
    checker = TextChecker(toy_renderer(), on_length=on_length)
    return checker.check(text_job(_prompt(), output, **job))


def _reply(relpath: str) -> tuple[list[int], Finish]:
    body = http_body(fault_file(relpath))
    return body["output_ids"], Finish(body["meta_info"]["finish_reason"]["type"])


def test_a_finished_answer_is_accepted() -> None:
    """Closed thinking, content and a stop token: nothing to say."""
    assert TextVerdict(7, 2, None) == _check(_ids("hm</think>hi<|im_end|>"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("</think><|im_end|>", OutputReason.EMPTY_ANSWER),
        ("hm</think> \n<|im_end|>", OutputReason.EMPTY_ANSWER),
        ("hm<|im_end|>", OutputReason.UNCLOSED_THINK),
        ("</think><|tool_calls_section_begin|><|im_end|>", OutputReason.BAD_TOOL_CALL),
    ],
)
def test_a_bad_answer_has_its_reason(text: str, reason: OutputReason) -> None:
    """Each rule that an answer can break has one word."""
    assert reason == _check(_ids(text)).reason


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    """An id that the tokenizer does not have is no answer."""
    assert OutputReason.ID_OUT_OF_VOCABULARY == _check([282, 100_000]).reason


def _of_family(name: str) -> Renderer:
    return Renderer(load_toy_tokenizer(), family=name)


@pytest.mark.parametrize("text", ["a<tool_call>{}</tool_call>", "a<tool_call>"])
def test_markers_of_another_family_are_text(text: str) -> None:
    """What is a broken call for one family is something to say for another."""
    output = _ids(f"</think>{text}<|im_end|>")
    verdicts = [
        TextChecker(_of_family(name)).check(text_job(_prompt(), output)).reason
        for name in ("qwen3", "kimi", "auto")
    ]

    assert [OutputReason.BAD_TOOL_CALL, None, None] == verdicts


@pytest.mark.fault("F21")
def test_unfinished_reasoning_is_no_answer() -> None:
    """A limit reached inside the think block is never stored as an answer, whatever the plan."""
    output, finish = _reply("server/length_mid_think_native.http")
    chat = http_body(fault_file("server/length_mid_think.http"))
    verdict = _check(output, finish=finish)

    assert (Finish.LENGTH, OutputReason.UNCLOSED_THINK) == (finish, verdict.reason)
    assert "cut by its limit" in verdict.detail
    dropped = _check(output, finish=finish, on_length="drop")
    assert dropped.reason == OutputReason.TRUNCATED
    # a server's own split may call the same text content; the ids decide
    assert chat["choices"][0]["message"]["content"] == toy_renderer().decode(output)


@pytest.mark.fault("F22")
def test_a_natural_stop_inside_reasoning_is_told_apart() -> None:
    """No marker is invented and no empty answer stored: set aside, with its own words."""
    output, finish = _reply("server/stop_all_in_reasoning_native.http")
    chat = http_body(fault_file("server/stop_all_in_reasoning.http"))
    verdict = _check(output, finish=finish)

    assert (Finish.STOP, OutputReason.UNCLOSED_THINK) == (finish, verdict.reason)
    assert "stopped by itself" in verdict.detail
    answer = parse_answer(toy_renderer(), _prompt(), output)
    assert (answer.content, answer.reasoning) == ("", "The capital is Oslo.")
    assert chat["choices"][0]["message"]["reasoning_content"] == answer.reasoning


def _with(**settings: Any) -> TextChecker:
    checks = ChecksConfig(**settings)
    return TextChecker(toy_renderer(), checks_of=lambda _: checks)


_STUCK = "Wait, I should look again. " * 40


@pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH])
@pytest.mark.parametrize("text", ["</think>STUCK", "hm STUCK", "STUCK</think>ok"])
def test_a_loop_is_refused_wherever_it_is(text: str, finish: Finish) -> None:
    """In content or reasoning, with an end or cut: the loop is the reason, not what follows."""
    verdict = _check(_ids(text.replace("STUCK", _STUCK) + "<|im_end|>"), finish=finish)

    assert OutputReason.REPETITION_LOOP == verdict.reason
    assert verdict.detail.endswith(f"repeat every {len(_ids(_STUCK)) // 40}")
    job = text_job(_prompt(), _ids(f"</think>{_STUCK}<|im_end|>"))
    assert _with(loop_tokens=0).check(job).reason is None
    assert _with(loop_tokens=5000).check(job).reason is None


def test_data_in_a_call_may_repeat() -> None:
    """An argument of zeros is no loop, a stuck sentence beside it is."""
    zeros = '{"t": "' + "0" * 2000 + '"}'
    call = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
        f"<|tool_call_argument_begin|>{zeros}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
    )
    body = _body([], tools="f")

    assert _check(_ids(f"</think>Here.{call}"), conversation=body).reason is None
    stuck = _check(_ids(f"</think>{_STUCK}{call}"), conversation=body)
    assert OutputReason.REPETITION_LOOP == stuck.reason


def test_a_call_must_name_a_declared_function() -> None:
    """Declared names, or where nothing is declared those of the recording; else it is refused."""
    output = _ids(
        "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
    )
    refused = _check(output, conversation=_body([], tools="g h"))

    assert (OutputReason.UNDECLARED_TOOL, "'f' is called; declared: g, h") == (
        refused.reason,
        refused.detail,
    )
    assert _check(output, conversation=_body([], tools="g f")).reason is None
    assert _check(output).detail == "'f' is called; declared: none"
    assert _with(tools="any").check(text_job(_prompt(), output)).reason is None
    recorded = zstandard.compress(
        json.dumps(
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": "",
                        "tool_calls": [{"id": "i", "function": {"name": "f", "arguments": "{}"}}],
                    }
                ],
                "tools": None,
                "targets": [1],
                "thinking": None,
            }
        ).encode()
    )
    assert _check(output, conversation=recorded).reason is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"min_tokens": 4}, OutputReason.ANSWER_TOO_SHORT),
        ({"min_tokens": 3}, None),
        ({"max_tokens": 2}, OutputReason.ANSWER_TOO_LONG),
        ({"max_tokens": 3}, None),
    ],
)
def test_length_is_counted_in_tokens_without_the_stop(
    settings: dict[str, int], reason: OutputReason | None
) -> None:
    """The answer is </think>, h, i: three tokens."""
    verdict = _with(**settings).check(text_job(_prompt(), _ids("</think>hi<|im_end|>")))

    assert reason == verdict.reason


def test_the_language_of_the_content_counts() -> None:
    """Content in another script or language is refused; code and short texts say nothing."""
    english = "The answer is in the box that you have with you, and it is for this."
    german = "Das ist nicht die Antwort, die ich mit dem Kasten und der Frage für Sie habe."
    chinese = "答案在这里请看。"
    checker = _with(languages=("en",))
    reasons = [
        checker.check(text_job(_prompt(), _ids(f"</think>{text}<|im_end|>"))).reason
        for text in (english, german, chinese, "42", f"Look:\n```\n{chinese}\n```")
    ]

    other = OutputReason.OTHER_LANGUAGE
    assert [None, other, other, None, None] == reasons


def test_each_dataset_has_its_own_checks() -> None:
    """A dataset's section replaces the general one."""
    config = toy_config(
        Path("/nowhere"),
        "rows.jsonl",
        dataset={"checks": {"max_tokens": 5}},
        checks={"min_tokens": 2},
    )

    assert (5, 1) == (config.checks_of("d").max_tokens, config.checks_of("d").min_tokens)
    assert (0, 2) == (config.checks_of("x").max_tokens, config.checks_of("x").min_tokens)


@pytest.mark.fault("F17")
def test_a_call_cut_by_the_limit_is_no_finished_turn() -> None:
    """Kept as a cut sample at most, with nothing repaired and nothing after it."""
    output, finish = _reply("server/tool_cut.http")
    answer = parse_answer(toy_renderer(), _prompt(), output)

    assert Finish.LENGTH == finish
    assert answer.calls == ()
    assert answer.call_error == "kimi: the call section has no end"
    kept = _check(output, finish=finish, has_next=True)
    assert (kept.reason, kept.next_reason) == (None, OutputReason.TRUNCATED)
    assert kept.next_prompt is None
    assert _check(output, finish=finish, on_length="drop").reason == OutputReason.TRUNCATED
    assert _check(output, finish=Finish.STOP).reason == OutputReason.BAD_TOOL_CALL


@pytest.mark.fault("F18")
def test_odd_call_markers_do_not_lose_the_call() -> None:
    """Words before the section, long arguments and an odd id all stay."""
    output, finish = _reply("server/tool_markers_odd.http")
    answer = parse_answer(toy_renderer(), _prompt(), output)

    assert answer.content == "I will call:"
    [call] = answer.calls
    assert call.name == "write"
    assert len(call.arguments) > 8192
    assert len(json.loads(call.arguments)["t"]) == len(call.arguments) - len('{"t": ""}')
    assert _check(output, finish=finish, conversation=_body([], tools="write")).reason is None


@pytest.mark.fault("F20")
def test_markers_inside_reasoning_are_named() -> None:
    """Call markers in reasoning are no calls: the split is made from the whole text, and noted."""
    message = http_body(fault_file("server/marker_in_reasoning.http"))["choices"][0]["message"]
    inside = message["reasoning_content"]

    assert OutputReason.UNCLOSED_THINK == _check(_ids(f"{inside}<|im_end|>")).reason
    closed = _check(_ids(f"{inside}</think>So: no.<|im_end|>"))
    assert (closed.reason, closed.detail) == (None, "the reasoning holds tool-call markers")


@pytest.mark.fault("F35")
def test_ids_are_whole_where_a_text_is_broken() -> None:
    """The answer is read from the ids, whatever text the server made of them."""
    body = http_body(fault_file("roundtrip/replacement_char.http"))

    assert "\ufffd" in body["text"]
    answer = parse_answer(toy_renderer(), _prompt(), body["output_ids"])
    assert answer.content == "ha 🤣"
    assert not answer.broken_text
    assert _check(body["output_ids"]).reason is None
    # half an emoji: the ids may be kept, but such a text cannot be history
    half = _check([*body["output_ids"][:-2], 271], has_next=True, conversation=_body([""]))
    assert (half.reason, half.next_reason) == (None, OutputReason.BAD_CHARACTERS)


@pytest.mark.fault("F36")
def test_markers_are_read_from_ids() -> None:
    """All 22 ids stand, and the call in them is found although the text lost its markers."""
    body = http_body(fault_file("roundtrip/special_stripped.http"))
    ids = body["output_ids"]

    assert (22, 271) == (len(ids), ids[-1])
    assert "<|tool" not in body["text"]
    [call] = parse_answer(toy_renderer(), _prompt(), ids).calls
    assert (call.name, call.arguments, call.id) == ("f", "{}", "functions.f:0")
    assert _check(ids, conversation=_body([], tools="f")).reason is None


# --- replay ---------------------------------------------------------------------------------


def _body(later: list[str], *, tools: str = "") -> bytes:
    """Return a stored conversation: hello, then these user turns; `tools` are declared names."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
    targets = [1]
    for text in later:
        messages += [{"role": "assistant", "content": "old"}, {"role": "user", "content": text}]
        targets.append(len(messages))
    declared = [{"type": "function", "function": {"name": name}} for name in tools.split()] or None
    value = {"messages": messages, "tools": declared, "targets": targets, "thinking": None}
    return zstandard.compress(json.dumps(value).encode())


def _next_text(verdict: TextVerdict) -> str:
    assert verdict.next_prompt is not None, verdict
    ids = unpack_ids(verdict.next_prompt.z, verdict.next_prompt.crc)
    return toy_renderer().decode(ids.tolist())


def _jobs(tmp_path: Path, relpath: str) -> tuple[bytes, list[int]]:
    """Prepare a source; return the first conversation's body and first prompt."""
    config = toy_config(tmp_path, fault_file(relpath))
    folder = prepare_dataset(config, config.datasets[0], renderer=toy_renderer()).folder
    line = lines_of(folder)[0]
    item = conversation_of(json.dumps(line).encode(), lane_of=any_lane)
    assert item.body is not None
    return item.body, line["turns"][0]["prompt_ids"]


def _job(body: bytes, prompt: list[int], *outputs: str, has_next: bool = True) -> TextJob:
    earlier: tuple[PackedIds, ...] = tuple(pack_ids(_ids(text)) for text in outputs[:-1])
    return text_job(
        prompt, _ids(outputs[-1]), conversation=body, answers=earlier, has_next=has_next
    )


def test_the_next_prompt_has_the_new_answers_and_the_old_questions() -> None:
    """History is what the target said now, word for word, and the dataset's next turn."""
    verdict = _check(
        _ids("hm</think>new one<|im_end|>"), conversation=_body(["next"]), has_next=True
    )

    assert _next_text(verdict) == (
        "<|im_system|>system<|im_middle|>You are a toy model.<|im_end|>"
        "<|im_user|>user<|im_middle|>hello<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think></think>new one<|im_end|>"
        "<|im_user|>user<|im_middle|>next<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think>"
    )


@pytest.mark.fault("F16")
def test_an_agent_row_is_three_turns_with_tools_and_parallel_calls(tmp_path: Path) -> None:
    """Three turns are planned; tools go with each; both parallel calls stay; results are prompt."""
    config = toy_config(tmp_path, fault_file("tools/agent_multi.jsonl"))
    result = prepare_dataset(config, config.datasets[0], renderer=toy_renderer())
    body, prompt = _jobs(tmp_path, "tools/agent_multi.jsonl")
    section = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|><|im_end|>"
    call = "<|tool_call_begin|>functions.{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
    first = "look</think>" + section.format(call.format("ls:0", "{}") + call.format("ls:1", "{}"))
    second = "</think>" + section.format(call.format("run:2", '{"c": "make all"}'))
    checker = TextChecker(toy_renderer())
    texts = [
        toy_renderer().decode(prompt),
        _next_text(checker.check(_job(body, prompt, first))),
        _next_text(checker.check(_job(body, prompt, first, second))),
    ]

    assert (result.rows, result.kept, result.turns, dict(result.rejected)) == (1, 1, 3, {})
    assert [text.count("tool_declare") for text in texts] == [1, 1, 1]
    assert "look</think><|tool_calls_section_begin|>" in texts[1]
    for number, content in ((0, "a"), (1, "b")):
        assert f"## Return of functions.ls:{number}\n{content}<|im_end|>" in texts[1]
    assert '{"c": "make all"}' in texts[2]
    assert "## Return of functions.run:2\nok<|im_end|>" in texts[2]
    final = checker.check(
        _job(body, prompt, first, second, "</think>Fixed.<|im_end|>", has_next=False)
    )
    assert (final.reason, final.next_prompt) == (None, None)


@pytest.mark.parametrize(
    "answer",
    [
        "</think>I will not call anything.<|im_end|>",
        (
            "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.ls:0"
            "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
        ),
    ],
)
def test_results_of_other_calls_end_the_conversation(tmp_path: Path, answer: str) -> None:
    """A recorded result never follows a call that was not made."""
    body, prompt = _jobs(tmp_path, "tools/agent_multi.jsonl")
    verdict = TextChecker(toy_renderer()).check(_job(body, prompt, answer))

    assert (verdict.reason, verdict.next_reason) == (None, OutputReason.TOOL_CALLS_DIFFER)
    assert verdict.detail.startswith("recorded ls, ls, generated ")


def test_a_new_call_where_none_was_recorded_ends_the_conversation() -> None:
    """The dataset has no result for it."""
    call = (
        "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
    )

    verdict = _check(_ids(call), conversation=_body(["next"], tools="f"), has_next=True)

    assert (verdict.reason, verdict.next_reason) == (None, OutputReason.TOOL_CALLS_DIFFER)


def test_tagged_calls_are_numbered_for_history(tmp_path: Path) -> None:
    """A model that writes no ids gets the canonical ones, and results follow them."""
    source = write_jsonl(
        tmp_path / "rows.jsonl",
        {
            "messages": [
                {"role": "user", "content": "q"},
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "tool", "content": "r"},
            ]
        },
    )
    config = toy_config(tmp_path, source)
    folder = prepare_dataset(config, config.datasets[0], renderer=toy_renderer()).folder
    line = lines_of(folder)[0]
    item = conversation_of(json.dumps(line).encode(), lane_of=any_lane)
    assert item.body is not None
    output = (
        '</think>I look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    )

    renderer = _of_family("qwen3")
    verdict = TextChecker(renderer).check(_job(item.body, line["turns"][0]["prompt_ids"], output))

    assert verdict.next_prompt is not None
    text = renderer.decode(unpack_ids(verdict.next_prompt.z, verdict.next_prompt.crc).tolist())
    assert "</think>I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0" in text
    assert '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>' in text
    assert "## Return of functions.f:0\nr<|im_end|>" in text


def test_a_template_that_loses_the_answer_ends_the_conversation() -> None:
    """The next prompt is never made from a history with holes."""
    renderer = Renderer(load_toy_tokenizer("chat_template_newline.jinja"), family="qwen3")
    output = "ok<tool_call>{}</tool_call>".replace("{}", '{"name": "f"}')
    messages = [
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "functions.f:0", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "user", "content": "next"},
    ]
    value = {"messages": messages, "tools": None, "targets": [1, 3], "thinking": None}
    body = zstandard.compress(json.dumps(value).encode())
    prompt = renderer.prompt_ids(ASKED, None)

    verdict = TextChecker(renderer).check(
        text_job(prompt, _ids(output + "<|im_end|>"), conversation=body, has_next=True)
    )

    assert (verdict.reason, verdict.next_reason) == (None, OutputReason.NEXT_TURN_TEMPLATE)
    assert "the call of 'f'" in verdict.detail


def test_a_job_that_cannot_be_judged_costs_one_sample() -> None:
    """Damaged bytes set that sample aside; the others of the batch are judged."""
    good = text_job(_prompt(), _ids("</think>hi<|im_end|>"))
    bad = replace(good, conversation=b"no zstd", has_next=True)

    verdicts = check_all(TextChecker(toy_renderer()), [bad, good])

    assert [OutputReason.QUARANTINED, None] == [verdict.reason for verdict in verdicts]
