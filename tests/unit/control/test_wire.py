"""Records survive the wire, and what is not a record is refused by name."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from eagled.control.wire import from_wire, to_wire
from eagled.errors import UsageError
from eagled.tokens import pack_ids
from eagled.types import (
    ExtractJob,
    Fence,
    Finish,
    ShardMember,
    ShardRecord,
    TextJob,
    TextVerdict,
)

IDS = pack_ids([1, 2, 163_839])
RECORDS = [
    TextJob(
        sample_id=7,
        attempt=2,
        dataset="oci",
        turn=1,
        finish=Finish.LENGTH,
        prompt=IDS,
        output=pack_ids([5]),
        conversation=b"\x00\xff zstd",
        answers=(IDS, pack_ids([])),
        has_next=True,
    ),
    TextJob(1, 1, "d", 0, Finish.STOP, IDS, IDS, None, (), has_next=False),
    TextVerdict(7, 2, None, next_prompt=IDS),
    TextVerdict(7, 2, "unclosed_think", "no </think>", next_reason="predecessor"),
    ExtractJob(Fence(1, 2, 3), b"u" * 16, "oci", IDS, IDS),
    ShardRecord("s-1.safetensors", "ab" * 32, 10, 1, 4, "h"),
    ShardMember(Fence(1, 2, 3), 0),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_every_record_comes_back_from_json_as_it_was(record: object) -> None:
    """A record that went through JSON text equals the one that was sent."""
    text = orjson.dumps(to_wire(record))

    assert record == from_wire(type(record), orjson.loads(text))


VERDICT: dict[str, Any] = {"sample_id": 1, "attempt": 1, "reason": None}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({**VERDICT, "lane": "x"}, "TextVerdict: unknown field 'lane'"),
        ({"sample_id": 1, "reason": None}, "TextVerdict: field 'attempt' is missing"),
        ({**VERDICT, "attempt": "1"}, "TextVerdict.attempt: must be int, got str"),
        ({**VERDICT, "attempt": True}, "TextVerdict.attempt: must be int, got bool"),
        (
            {**VERDICT, "next_prompt": {"z": "%", "crc": 1, "n": 1}},
            "TextVerdict.next_prompt.z: is not base64: Only base64 data is allowed",
        ),
        ([], "TextVerdict: must be an object, got list"),
    ],
)
def test_what_is_not_the_record_is_refused_with_its_path(value: object, message: str) -> None:
    """A wrong field is named with its place and what is expected."""
    with pytest.raises(UsageError) as caught:
        from_wire(TextVerdict, value)

    assert message == str(caught.value)


def test_an_unknown_word_of_an_enum_names_the_known_ones() -> None:
    """An enum field lists what it accepts."""
    wire = to_wire(RECORDS[0])
    wire["finish"] = "eaten"
    with pytest.raises(UsageError) as caught:
        from_wire(TextJob, wire)

    assert "TextJob.finish = 'eaten': accepted: stop, length, native" == str(caught.value)
