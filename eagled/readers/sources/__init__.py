"""Where rows come from: files of several kinds, folders of them, and the hub."""

from __future__ import annotations

from eagled.readers.sources.base import SourceRow
from eagled.readers.sources.files import Source, open_source

__all__ = ["Source", "SourceRow", "open_source"]
