"""Text to ids and back with one tokenizer; text that spells a control token stays text.

Guarantee: what `mark` marked in content is plain text for `encode`; every control token encodes to
its one id and decodes to itself, or the tokenizer is refused. A fast tokenizer is asked in the
library's own way. A Python one (remote code) is tried out first: which of its ways gives plain
text, and whether pieces between control tokens encode as they do inside the whole text; if none
does, content that spells a control token cannot be kept. Price: some hundred short encodings when
a tokenizer is loaded.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from eagled.errors import ConfigError

_LOOKS_LIKE_CONTROL = re.compile(r"<[|\uff5c]\S+[|\uff5c]>|\[[A-Z_]+\]|</?[a-z_]+>")
_PROBE = "What's new?\n\n  \u4eca\u5929 caf\u00e9 \U0001f923 x=[1, 22];\tend"
Encode = Callable[[str], list[int]]


class Encoding:
    """The two directions between text and ids."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 - transformers has no types
        self.tokenizer = tokenizer
        self.fast = bool(tokenizer.is_fast)
        self._bare = "allow_special_tokens" in inspect.signature(tokenizer.encode).parameters
        self._bare_decode = not self.fast and self._decodes_better_bare()
        self.control_ids: dict[str, int] = dict(self._find_control())
        self._refuse_broken()

    @cached_property
    def control_tokens(self) -> tuple[str, ...]:
        """Every text that stands for one control id, sorted."""
        return tuple(sorted(self.control_ids))

    @cached_property
    def control_id_set(self) -> frozenset[int]:
        """The ids of all control tokens."""
        return frozenset(self.control_ids.values())

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches any control token; the longest first."""
        longest_first = sorted(self.control_ids, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    @property
    def can_keep_plain(self) -> bool:
        """Whether text that spells a control token can be encoded as plain text."""
        return self.fast or self._plain is not None

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; what `mark` marked in it stays plain text."""
        from transformers.utils.chat_template_utils import encode_marked_chat

        if self.fast:
            return list(encode_marked_chat(self.tokenizer, text))
        if not any(mark in text for mark in self._mark_pair):
            return self._encode(text)
        return self.encode_in_pieces(text)

    def encode_in_pieces(self, text: str) -> list[int]:
        """Return the ids of `text`, cut at its own (unmarked) control tokens."""
        plain = self._plain
        if plain is None:
            raise ConfigError("this tokenizer cannot encode control-token text as plain text")
        ids: list[int] = []
        for piece, control in self._pieces(text):
            ids += plain(piece) if piece else []
            ids += [self.control_ids[control]] if control else []
        return ids

    def mark(self, value: Any) -> Any:  # noqa: ANN401 - text, or a tree of it
        """Return a text (or a tree of it) with its control-token text marked as plain."""
        from transformers.utils.chat_template_utils import mark_control_tokens

        return mark_control_tokens(value, self.pattern)

    def has_control_text(self, value: object) -> bool:
        """Return whether a text, or any text inside a tree, spells a control token."""
        return any(self.pattern.search(text) for text in _strings(value))

    def spelled_key(self, value: object) -> str | None:
        """Return a key inside a tree that spells a control token; keys cannot be marked."""
        if isinstance(value, Mapping):
            items = cast("Mapping[str, object]", value)
            own = next((key for key in items if self.pattern.search(str(key))), None)
            return own if own is not None else self.spelled_key(list(items.values()))
        if isinstance(value, list | tuple):
            return next((key for item in value if (key := self.spelled_key(item))), None)
        return None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, markers included."""
        plain_ids = list(map(int, ids))
        return self._decode_bare(plain_ids) if self._bare_decode else self._decode_full(plain_ids)

    def _pieces(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield (plain text, control token behind it); marks are taken off."""
        piece, end = "", 0
        for found in self._marks_or_control.finditer(text):
            piece += text[end : found.start()] + (found["marked"] or "")
            end = found.end()
            if found["control"]:
                yield piece, found["control"]
                piece = ""
        yield piece + text[end:], ""

    @cached_property
    def _mark_pair(self) -> tuple[str, str]:
        """The two private characters that the library puts around marked text."""
        from transformers.utils.chat_template_utils import mark_control_tokens

        start, _, end = mark_control_tokens("x", re.compile("x")).partition("x")
        return start, end

    @cached_property
    def _marks_or_control(self) -> re.Pattern[str]:
        (start, end), token = self._mark_pair, self.pattern.pattern
        return re.compile(f"{start}(?P<marked>{token}){end}|[{start}{end}]|(?P<control>{token})")

    def _encode(self, text: str) -> list[int]:
        if self._bare:
            return list(self.tokenizer.encode(text))
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _plain_ways(self) -> Iterator[Encode]:
        """Yield the ways in which a tokenizer may encode without its control tokens."""
        own = self.tokenizer
        if self._bare:
            yield lambda text: list(own.encode(text, allow_special_tokens=False))
        options = {"add_special_tokens": False, "split_special_tokens": True}
        yield lambda text: list(own.encode(text, **options))

    @cached_property
    def _plain(self) -> Encode | None:
        """The first way that never gives a control id and loses no text."""
        return next((way for way in self._plain_ways() if self._is_plain(way)), None)

    def _is_plain(self, way: Encode) -> bool:
        for token in self.control_tokens:
            ids = way(f"a {token} b")
            if not self.control_id_set.isdisjoint(ids) or self.decode(ids) != f"a {token} b":
                return False
        return self._agrees(way)

    def _agrees(self, way: Encode) -> bool:
        """Whether pieces encode as they do inside the whole text."""
        tokens = self.control_tokens[:4]
        whole = "".join(f"{_PROBE}{token}" for token in tokens) + _PROBE
        pieces = [id_ for token in tokens for id_ in (*way(_PROBE), self.control_ids[token])]
        return self._encode(whole) == pieces + way(_PROBE)

    def _find_control(self) -> Iterator[tuple[str, int]]:
        for index, token in self.tokenizer.added_tokens_decoder.items():
            if not str(token).isspace():
                yield str(token), int(index)
        if not self.fast:
            yield from self._unlisted()

    def _unlisted(self) -> Iterator[tuple[str, int]]:
        """Yield what only the encoder knows: reserved tokens of tiktoken classes, for example."""
        for token, index in self.tokenizer.get_vocab().items():
            if not _LOOKS_LIKE_CONTROL.fullmatch(token) or self._encode(token) != [index]:
                continue
            if any(index not in way(token) for way in self._plain_ways()):
                yield token, int(index)

    def _refuse_broken(self) -> None:
        """Refuse a tokenizer in which a control token is not one id, there and back.

        Raises:
            ConfigError: with the token.
        """
        for token, index in self.control_ids.items():
            ids = self._encode(token)
            if ids != [index] or self.decode(ids) != token:
                raise ConfigError(
                    f"the tokenizer ({type(self.tokenizer).__name__}) encodes its control token "
                    f"{token!r} to {ids} and back to {self.decode(ids)!r}, not to {index}: "
                    "prompts would not be what the server sees"
                )

    def _decodes_better_bare(self) -> bool:
        """Whether a class of its own decodes right only if called without the library's options."""
        ids = self._encode(_PROBE)
        return self._decode_full(ids) != _PROBE and self._decode_bare(ids) == _PROBE

    def _decode_full(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _decode_bare(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids)
        return text


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[str, object]", value).items():
            yield str(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
