"""What the views beyond the first know: the daemon's answers, and what the operator looks for.

Guarantee: bounded. A list of samples is one page of `PAGE` rows, whatever the queue's length; going
past its end asks for the next page by the last number, so a million samples are as fast as a
thousand. No Textual here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from eagled.printable import printable
from eagled.tui.inspector import Doc
from eagled.tui.model import Event
from eagled.tui.records import Cause, Detail, Plan, Sample, SampleText, Training

PAGE = 200
LEVELS = ("all", "operators", "warnings")
KNOBS: Mapping[str, tuple[str, ...]] = {
    "codec": ("", "raw", "lossless", "fp8"),
    "codec_last": ("", "raw", "lossless", "fp8"),
    "last": ("", "supervised", "all", "none"),
    "max_tokens": ("", "2048", "4096", "8192", "16384"),
    "keep_prompt": ("", "512", "1024", "2048"),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which samples are listed; None leaves a field open."""

    state: str | None = None
    dataset: str | None = None
    lane: str | None = None
    reason: str | None = None

    def query(self) -> dict[str, str]:
        """Return it as a query of the control API."""
        pairs = {n: getattr(self, n) for n in ("state", "dataset", "lane", "reason")}
        return {name: value for name, value in pairs.items() if value is not None}

    def words(self) -> str:
        """Return it as it is typed: `state:failed lane:short`."""
        return "  ".join(f"{k}:{printable(v, 60)}" for k, v in self.query().items()) or "all"


def parse_wanted(text: str) -> tuple[Wanted, str]:
    """Return the filter that `text` means, and what is wrong with it (empty: nothing)."""
    wanted = Wanted()
    for word in text.split():
        name, colon, value = word.partition(":")
        if not colon or name not in Wanted.__dataclass_fields__ or not value:
            return Wanted(), f"{word!r}: accepted are state: dataset: lane: reason: with a value"
        wanted = replace(wanted, **{name: value})
    return wanted, ""


@dataclass
class Desk:
    """Answers by view; `problems` says why the last question of a view had none."""

    wanted: Wanted = field(default_factory=lambda: Wanted("generating"))
    starts: list[int] = field(default_factory=lambda: [0])
    samples: tuple[Sample, ...] = ()
    running: tuple[Sample, ...] = ()
    running_lane: str | None = None
    causes: tuple[Cause, ...] = ()
    plan: Plan | None = None
    asked: dict[str, str] = field(default_factory=dict)
    training: Training | None = None
    trains: Training | None = None  # as briefly told on the first screen
    uid: str | None = None
    detail: Detail | None = None
    text: SampleText | None = None
    doc: Doc | None = None
    shape: str = "rendered"
    level: str = "all"
    find: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)

    def empty(self, name: str, words: str) -> str:
        """Return what a view without rows says: nothing is claimed before the daemon has told."""
        return words if name in self.known else "the daemon has not told yet"

    def look_for(self, wanted: Wanted) -> None:
        """List other samples, from the first."""
        self.wanted, self.starts, self.samples = wanted, [0], ()

    def next_page(self) -> bool:
        """Go to the page behind this one; return whether there may be one."""
        if len(self.samples) < PAGE:
            return False
        self.starts.append(self.samples[-1].number)
        return True

    def previous_page(self) -> bool:
        """Go back by a page; return whether there is one."""
        if len(self.starts) < 2:  # noqa: PLR2004 - the first stays
            return False
        self.starts.pop()
        return True

    def open(self, uid: str) -> None:
        """Look at another sample."""
        self.uid, self.detail, self.text, self.doc = uid, None, None, None

    def neighbour(self, by: int) -> str | None:
        """Return the uid beside the sample that is looked at, in the list."""
        uids = [sample.uid for sample in (self.samples or self.running)]
        if self.uid not in uids:
            return uids[0] if uids else None
        at = uids.index(self.uid) + by
        return uids[at] if 0 <= at < len(uids) else None

    def turn_knob(self, name: str, by: int) -> None:
        """Change one assumption of the disk plan."""
        values = KNOBS[name]
        at = (values.index(self.asked.get(name, "")) + by) % len(values)
        self.asked = {**self.asked, name: values[at]}
        if not values[at]:
            del self.asked[name]

    def passes(self, event: Event) -> bool:
        """Return whether the event log shows an event."""
        if self.level == "operators" and event.uid < 0:
            return False
        if self.level == "warnings" and event.kind not in BAD_EVENTS:
            return False
        return self.find.lower() in f"{event.kind} {event.text}".lower()


BAD_EVENTS = frozenset({
    "worker_died", "server_down", "server_stuck", "server_refused", "disk_low", "alarm",
})  # fmt: skip
