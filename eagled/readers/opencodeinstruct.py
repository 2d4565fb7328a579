"""nvidia/OpenCodeInstruct: one programming question, one answer, and test results."""

from __future__ import annotations

from eagled.readers.base import Format
from eagled.readers.instruction import read_pair

_OWN = ("generation_algorithm", "llm_judgement", "average_test_score", "tests_execution_status")

FORMAT = Format(
    name="opencodeinstruct",
    rank=20,
    columns="input, output, generation_algorithm, llm_judgement, average_test_score",
    detects=lambda row: "input" in row and any(key in row for key in _OWN),
    read=read_pair,
    hub_ids=("nvidia/OpenCodeInstruct",),
    fits=lambda row: "input" in row,
)
