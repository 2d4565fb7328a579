"""Which language a text is in, roughly: by its letters, and by small words among Latin ones.

Guarantee: deterministic, no model, microseconds. It tells scripts apart surely and the ten most
used Latin-script languages well from a dozen words on; of less text it says only the script, and
`speaks` then gives the text the benefit of the doubt.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

LANGUAGE_KEYS = ("language", "lang", "langdetect")
_SAMPLE_CHARS = 4000  # the rest of a long question is in the same language
_LEAST_HITS = 3
_WORD = re.compile(r"[^\W\d_]+")
_CODE = re.compile(r"```.*?(```|$)|`[^`]*`", re.DOTALL)
_SCRIPTS: Mapping[str, tuple[str, ...]] = {
    "zh": ("CJK",), "ja": ("HIRAGANA", "KATAKANA"), "ko": ("HANGUL",), "ru": ("CYRILLIC",),
    "uk": ("CYRILLIC",), "bg": ("CYRILLIC",), "el": ("GREEK",), "ar": ("ARABIC",),
    "fa": ("ARABIC",), "he": ("HEBREW",), "hi": ("DEVANAGARI",), "th": ("THAI",),
    "bn": ("BENGALI",), "ta": ("TAMIL",), "te": ("TELUGU",), "ka": ("GEORGIAN",),
    "hy": ("ARMENIAN",),
}  # fmt: skip
_SMALL_WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the and of to is are you that what how with for this can was my it in be have",
        "de": "der die das und ist nicht ein eine ich wie mit für auf von den zu wird sie es dem",
        "fr": "le la les des est une et pour que dans qui vous avec sur pas je du ce comment au",
        "es": "el los las es una que para por con cómo del y se su más qué en como lo pero",
        "pt": "os uma é que para com não do da em como você no na por mais seu e ao um",
        "it": "il gli è che per una di con non come sono della nel si alla anche del mi le un",
        "nl": "het een van en dat niet met voor zijn op hoe ik je te aan ook als de is wat",
        "pl": "nie się jest na do jak co że w z to dla czy po od przez są tym ma i",
        "tr": "bir ve bu için ile ne çok olan da de mi daha olarak gibi var ben en kadar",
        "id": "yang dan di untuk dengan ini itu dari adalah pada tidak ke apa bagaimana saya",
        "vi": "và của là có cho không một trong được các với những này tôi như thế nào để",
        "sv": "och att det är som en på för med inte jag av till den hur kan ett om vi har",
    }.items()
}
KNOWN = tuple(sorted({*_SCRIPTS, *_SMALL_WORDS}))


def language_of(text: str) -> str | None:
    """Return the language of a text, "latin" when only that is sure, None when nothing is."""
    sample = _CODE.sub(" ", text[:_SAMPLE_CHARS])
    scripts = Counter(script for char in sample if char.isalpha() and (script := _script(char)))
    if not scripts:
        return None
    kana = scripts["HIRAGANA"] + scripts["KATAKANA"]
    if kana and kana * 10 >= scripts["CJK"]:
        return "ja"
    most = scripts.most_common(1)[0][0]
    return _latin(sample) if most == "LATIN" else _by_script(most)


def speaks(row: object, text: str, wanted: Sequence[str]) -> tuple[bool, str]:
    """Say whether a row is in one of the wanted languages, and which one it seems to be in.

    The row's own field decides where it has one.
    """
    own = _own(row)
    found = own or language_of(text)
    if found is None or found in wanted:
        return True, found or "unknown"
    if found == "latin":
        return any(language not in _SCRIPTS for language in wanted), found
    same_script = not own and any(
        _SCRIPTS.get(language) == _SCRIPTS.get(found, ()) for language in wanted
    )
    return same_script, found


def _own(row: object) -> str | None:
    if not isinstance(row, Mapping):
        return None
    value = next((row[key] for key in LANGUAGE_KEYS if isinstance(row.get(key), str)), "")
    code = value.strip().lower().replace("_", "-").split("-")[0]
    return _NAMES.get(code, code) or None


_NAMES = {
    "english": "en", "chinese": "zh", "german": "de", "french": "fr", "spanish": "es",
    "portuguese": "pt", "italian": "it", "dutch": "nl", "polish": "pl", "turkish": "tr",
    "japanese": "ja", "korean": "ko", "russian": "ru", "arabic": "ar", "hindi": "hi",
    "vietnamese": "vi", "indonesian": "id", "swedish": "sv", "unknown": "",
}  # fmt: skip


@cache
def _script(char: str) -> str:
    return unicodedata.name(char, "").split(" ")[0].split("-")[0]


def _by_script(script: str) -> str | None:
    return next((lang for lang, names in _SCRIPTS.items() if script in names), None)


def _latin(sample: str) -> str:
    words = Counter(_WORD.findall(sample.lower()))
    hits = {
        language: sum(n for word, n in words.items() if word in small)
        for language, small in _SMALL_WORDS.items()
    }
    best, second = sorted(hits.items(), key=lambda item: -item[1])[:2]
    return best[0] if best[1] >= _LEAST_HITS and best[1] > second[1] else "latin"
