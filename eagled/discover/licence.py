"""What a licence tag and the card's own words say, and whether they agree.

No legal advice: words are compared. A tag that the card contradicts is flagged, not corrected.
"""

from __future__ import annotations

import re

MISSING, NON_COMMERCIAL, SHARE_ALIKE = "missing", "non-commercial", "share-alike"
CONFLICT, UNKNOWN, GATED = "conflict", "unknown", "gated"
BLOCKING = frozenset({NON_COMMERCIAL, CONFLICT})
_NC_TAG = re.compile(r"(?:^|-)nc(?:-|$)|non-?commercial|research-only", re.IGNORECASE)
_NC_TEXT = re.compile(
    r"\bCC[- ]BY[- ]NC\b|\b(?:licen[cs]e|terms)\b[^.;\n]{0,80}\bnon[- ]?commercial"
    r"|\b(?:only|solely|limited|restricted)\b[^.;\n]{0,60}\bnon[- ]?commercial"
    r"|\bnon[- ]?commercial (?:use|licen[cs]e|purposes|research)[^.;\n]{0,20}\bonly"
    r"|\bno commercial use\b|\bnot for commercial use\b|\bresearch (?:use|purposes) only\b"
    r"|\bcommercial use is (?:not allowed|prohibited|forbidden)\b",
    re.IGNORECASE,
)
_SA = re.compile(r"(?:^|-)sa(?:-|$)|gpl", re.IGNORECASE)
_VAGUE = frozenset({"other", "unknown", "custom"})


def flags_of(licence: str | None, card: str, *, gated: bool) -> tuple[str, ...]:
    """Return what a person should look at.

    Args:
        licence: the tag, None without one.
        card: the text of the card below its header.
        gated: whether terms have to be accepted.
    """
    flags = []
    said = _NC_TEXT.search(card) is not None
    if not licence:
        flags.append(MISSING)
    elif licence.lower() in _VAGUE:
        flags.append(UNKNOWN)
    tagged = licence is not None and _NC_TAG.search(licence) is not None
    if tagged or said:
        flags.append(NON_COMMERCIAL)
    if said and licence and not tagged and licence.lower() not in _VAGUE:
        flags.append(CONFLICT)
    if licence and _SA.search(licence):
        flags.append(SHARE_ALIKE)
    if gated:
        flags.append(GATED)
    return tuple(flags)
