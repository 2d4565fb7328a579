"""Text from outside cannot act on a terminal or a log."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagled import printable as module
from eagled.printable import hide, printable


@given(st.text())
def test_no_control_or_format_character_survives(text: str) -> None:
    """Whatever comes in, no C0, C1, bidi override or lone surrogate comes out."""
    shown = printable(text, None)

    assert not {"Cc", "Cs"} & {unicodedata.category(c) for c in shown}
    assert not set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\ufeff") & set(
        shown
    )


def test_escape_sequences_become_visible() -> None:
    """The classic attack, hand-worked."""
    assert "␛]0;title␇␛[2J" == printable("\x1b]0;title\x07\x1b[2J")
    assert "a⸢RLO⸥b" == printable("a\u202eb")


def test_long_text_is_cut_with_a_mark() -> None:
    """The limit counts characters of the original."""
    assert "abc…" == printable("abcdefgh", 4)


def test_lines_stay_only_when_asked() -> None:
    """One line in a log, several in a viewer."""
    assert "a␊b" == printable("a\nb")
    assert "a\nb" == printable("a\nb", lines=True)


def test_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stands in a text, and however often; a short one would garble ordinary words."""
    monkeypatch.setattr(module, "_hidden", set())
    hide("sk-planted-0123")
    hide("a")

    assert "Bearer ⸢SECRET⸥, ⸢SECRET⸥!" == printable("Bearer sk-planted-0123, sk-planted-0123!")
    assert "banana" == printable("banana")
