"""The rough language of a question."""

from __future__ import annotations

import pytest

from eagled.text.language import KNOWN, language_of, speaks

TEXTS = {
    "en": "What is the best way to learn how to play the piano, and how long does it take?",
    "de": "Wie kann ich am besten Klavier spielen lernen, und wie lange dauert das in der Regel?",
    "fr": "Quelle est la meilleure façon d'apprendre le piano et combien de temps pour les bases ?",
    "es": "¿Cuál es la mejor forma de aprender el piano y por qué es difícil para los niños?",
    "zh": "学习钢琴的最好方法是什么。",
    "ja": "ピアノを学ぶ最良の方法は何ですか。",
    "ko": "피아노를 배우는 가장 좋은 방법은 무엇입니까?",
    "ru": "Как лучше всего научиться играть на пианино?",
    "ar": "ما هي أفضل طريقة لتعلم العزف على البيانو؟",
}


@pytest.mark.parametrize("language", TEXTS)
def test_a_question_is_told_by_letters_and_small_words(language: str) -> None:
    """One sentence is enough for each of these."""
    assert language == language_of(TEXTS[language])


def test_code_and_digits_do_not_decide() -> None:
    """What stands in a code fence is left out; nothing but signs is no language."""
    code = "```python\nfor the in is: and of to\n```\n" + TEXTS["ru"]

    assert "ru" == language_of(code)
    assert (None, "latin") == (language_of("12 + 4 = ?"), language_of("Berlin?"))


@pytest.mark.parametrize(
    ("row", "text", "wanted", "expected"),
    [
        ({}, TEXTS["en"], ("en",), True),
        ({}, TEXTS["de"], ("en",), False),
        ({}, TEXTS["zh"], ("en", "zh"), True),
        ({}, "Berlin?", ("en",), True),
        ({}, "Berlin?", ("zh",), False),
        ({}, "12 + 4", ("zh",), True),
        ({"language": "English"}, TEXTS["zh"], ("en",), True),
        ({"langdetect": "zh-cn"}, TEXTS["en"], ("en",), False),
        ({"lang": "unknown"}, TEXTS["en"], ("en",), True),
        ({}, TEXTS["ru"], ("uk",), True),
    ],
)
def test_the_row_s_own_field_wins_and_doubt_keeps(
    row: dict[str, str],
    text: str,
    wanted: tuple[str, ...],
    expected: bool,  # noqa: FBT001 - a case
) -> None:
    """A text too short to tell is kept where its script fits."""
    assert expected == speaks(row, text, wanted)[0]
    assert {"en", "zh", "ja"} <= set(KNOWN)
