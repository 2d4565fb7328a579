"""One tokenising process's work on one dataset: screen a chunk, later render what was accepted.

Between the two a chunk's canonical conversations stay here; the frame that goes back is packed.
"""

from __future__ import annotations

from dataclasses import replace

import zstandard

from eagled.errors import RowRejectedError
from eagled.prepared import ZSTD_LEVEL
from eagled.text.render import Renderer
from eagled.text.rows import Candidate, LineMaker
from eagled.workers.preparation.messages import (
    Chunk,
    Job,
    Kept,
    Passed,
    Refused,
    Rendered,
    Screened,
    TargetFacts,
    Verdict,
)
from eagled.workers.preparation.screen import Screen, refused


def load_renderer(job: Job) -> Renderer:
    """Return the target's renderer as prep and the text worker use it.

    Raises:
        ConfigError: if tokenizer, template or arguments are wrong.
    """
    config = job.config
    return Renderer.load(config.target, literal_control_text=config.prep.literal_control_text)


class Workbench:
    """The chunks of one dataset that are being worked on here.

    Raises (at construction):
        ConfigError: if the template cannot do what is configured, or a filter cannot be read.
    """

    def __init__(self, job: Job, renderer: Renderer) -> None:
        renderer.require_thinking(thinking=job.config.sampling_of(job.dataset.name).thinking)
        self._screen = Screen(job)
        self._lines = LineMaker(job.config, job.dataset, renderer)
        self._open: dict[int, tuple[tuple[Candidate, Passed] | Refused, ...]] = {}
        self.facts = TargetFacts(
            renderer.tokenizer_hash, renderer.template_hash, renderer.facts.to_json()
        )

    def screen(self, chunk: Chunk) -> Screened:
        """Apply the rules that look at one row alone, and remember what passed."""
        looked = tuple(map(self._screen.look, chunk.rows))
        self._open[chunk.number] = looked
        shown = (item if isinstance(item, Refused) else item[1] for item in looked)
        return Screened(chunk.number, tuple(shown))

    def forget(self, number: int) -> None:
        """Drop a chunk that will not be rendered."""
        del self._open[number]

    def render(self, number: int, verdict: Verdict) -> Rendered:
        """Render and tokenise what the verdict lets through."""
        compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        rows: list[Kept | Refused] = []
        lines: list[bytes] = []
        for place, item in enumerate(self._open.pop(number)):
            if isinstance(item, Refused):
                rows.append(item)
            elif place in verdict.refused:
                rows.append(verdict.refused[place])
            else:
                rows.append(self._line(item[0], verdict.flags.get(place), lines))
        data = b"".join(line + b"\n" for line in lines)
        return Rendered(number, tuple(rows), compressor.compress(data) if data else b"")

    def _line(self, candidate: Candidate, flag: str | None, lines: list[bytes]) -> Kept | Refused:
        if flag is not None:
            flags = tuple(sorted({*candidate.conversation.flags, flag}))
            conversation = replace(candidate.conversation, flags=flags)
            candidate = replace(candidate, conversation=conversation)
        try:
            line = self._lines.line(candidate)
        except RowRejectedError as exc:
            return refused(exc, candidate.conversation.source_id)
        lines.append(line.data)
        return Kept(line.turns, line.prompts, line.answers, line.flags)
