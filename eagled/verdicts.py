"""What a check found: the words of `eagled doctor` and of `eagled serve`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `advice` is empty when there is nothing to do."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""

    def lines(self) -> list[str]:
        """Return it as lines for a terminal."""
        shown = [f"{self.verdict.value:4}  {self.name}: {self.found}"]
        return [*shown, f"      {self.advice}"] if self.advice else shown
