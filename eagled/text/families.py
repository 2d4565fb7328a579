"""What answers of the known model families look like: how to read them, and SGLang's parser names.

Only the reading of answers depends on this table; prompts and masks never do (`probe.py`). A family
is chosen by the control tokens that the tokenizer has, or by `target.family`. An unknown model's
answers are read with what the probe found, and calls by whichever marker stands in the text.
A new family is one entry here; docs/templates.md shows the table and a test holds it to the code.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from eagled.errors import ConfigError
from eagled.text.toolcalls import DEEPSEEK, KIMI, LLAMA, TAGGED, ToolSyntax

THINK = ("<think>", "</think>")
HARMONY = "harmony"


@dataclass(frozen=True, slots=True)
class Family:
    """How one family answers.

    Attributes:
        name: its word in `target.family`.
        tokens: control tokens that a tokenizer of the family has, all of them.
        tool_parser: name for SGLang's --tool-call-parser.
        reasoning_parser: name for SGLang's --reasoning-parser, or None.
        syntax: how calls are written; None if the whole answer has a form of its own (harmony).
        think: opening and closing marker of reasoning, used where the template prints none.
    """

    name: str
    tokens: tuple[str, ...]
    tool_parser: str
    reasoning_parser: str | None
    syntax: ToolSyntax | None
    think: tuple[str, str] | None = THINK

    @property
    def harmony(self) -> bool:
        """Whether an answer is a row of messages on channels."""
        return self.syntax is None


_DEEPSEEK_TOKENS = ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581sep\uff5c>")
FAMILIES: tuple[Family, ...] = (  # the first whose tokens are all there
    Family(
        "kimi",
        ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        "kimi_k2",
        "kimi_k2",
        KIMI,
    ),
    Family("deepseek-v3.1", (*_DEEPSEEK_TOKENS, *THINK), "deepseekv31", "deepseek-v3", DEEPSEEK),
    Family("deepseek-v3", _DEEPSEEK_TOKENS, "deepseekv3", "deepseek-r1", DEEPSEEK),
    Family(
        "gpt-oss",
        ("<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>"),
        "gpt-oss",
        "gpt-oss",
        None,
        think=None,
    ),
    Family("qwen3", ("<|im_start|>", "<tool_call>", "</tool_call>"), "qwen25", "qwen3", TAGGED),
    Family(
        "llama3", ("<|start_header_id|>", "<|eot_id|>"), "llama3", None, LLAMA, think=None
    ),
)  # fmt: skip
_BY_MARKER = (KIMI, DEEPSEEK, TAGGED)


def family_of(tokens: Collection[str], configured: str = "auto") -> Family | None:
    """Return the family of a tokenizer by its control tokens; None if it is none of the known.

    Raises:
        ConfigError: if `configured` names one that is not in the table.
    """
    if configured == "auto":
        return next((f for f in FAMILIES if all(token in tokens for token in f.tokens)), None)
    found = next((family for family in FAMILIES if family.name == configured), None)
    if found is None:
        known = ", ".join(family.name for family in FAMILIES)
        raise ConfigError(f"target.family = {configured!r} is not known: auto, {known}")
    return found


def syntax_in(family: Family | None, text: str) -> ToolSyntax | None:
    """Return the syntax of the calls in an answer's text; None if it has no call."""
    known = _BY_MARKER if family is None else tuple(filter(None, (family.syntax,)))
    return next((syntax for syntax in known if syntax.begins(text)), None)
