"""The spool as its reader sees it: files of captured states, found by the ids that they belong to.

Guarantee: a file is taken for a sample only if its ids are the sample's, all of them, and its
states' checksum is right; a damaged file is removed and said so, which costs another pass and
never a sample; one that another version of the plugin wrote is left alone. Nothing is removed
before it is released. Price: the header of each new file (4 KiB) once, the whole file with its
checksum when it is used.
Coupled: `eagled.sglang_plugin.spoolfile` has the format.
"""

from __future__ import annotations

import logging
import os
import zlib
from pathlib import Path

import numpy as np

from eagled.errors import ReplyBrokenError, ServerUnavailableError
from eagled.sglang_plugin.spoolfile import (
    DATA_START,
    FINAL_SUFFIX,
    OtherFormatError,
    Receipt,
    read_receipt,
)
from eagled.shards.backend import Captured, Ids

_log = logging.getLogger(__name__)
_Key = tuple[int, int]  # number of ids, their checksum


class Spool:
    """One reader's view of a spool folder; not shareable between threads."""

    def __init__(self, folder: Path, layers: tuple[int, ...], hidden_size: int) -> None:
        self.folder = folder
        self._layers = layers
        self._width = (len(layers) + 1) * hidden_size
        self._hidden_size = hidden_size
        self._names: dict[str, _Key] = {}
        self._found: dict[_Key, list[Receipt]] = {}
        self._foreign: set[str] = set()  # files of another version of the plugin, told of once

    def refresh(self) -> None:
        """Take note of new files, and forget those that are gone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with os.scandir(self.folder) as entries:
            names = {e.name for e in entries if e.name.endswith(FINAL_SUFFIX)}
        for name in self._names.keys() - names:
            self._forget(name)
        for name in names - self._names.keys():
            self._note(self.folder / name)

    def _note(self, path: Path) -> None:
        try:
            receipt = read_receipt(path)
        except FileNotFoundError:
            return
        except OtherFormatError as exc:
            if path.name not in self._foreign:
                self._foreign.add(path.name)
                _log.warning("left alone: %s", exc)
            return
        except (OSError, ValueError, KeyError, TypeError) as exc:
            self._remove(path, f"not a whole captured file: {exc}")
            return
        key = (receipt.tokens, receipt.ids_crc32)
        self._names[path.name] = key
        self._found.setdefault(key, []).append(receipt)

    def _forget(self, name: str) -> None:
        key = self._names.pop(name)
        kept = [r for r in self._found[key] if Path(r.path).name != name]
        if kept:
            self._found[key] = kept
        else:
            del self._found[key]

    def take(self, ids: Ids) -> Captured | None:
        """Return the states of a sample if they are here and whole; the file stays.

        Raises:
            ServerUnavailableError: if the file's layers or width are not the planned ones.
        """
        for receipt in list(self._found.get(key_of(ids), [])):
            path = Path(receipt.path)
            try:
                return self.load(receipt, ids)
            except FileNotFoundError:
                self._forget(path.name)
            except (ReplyBrokenError, OSError) as exc:
                self._forget(path.name)
                self._remove(path, str(exc))
        return None

    def load(self, receipt: Receipt, ids: Ids) -> Captured:
        """Return the states in a file.

        Raises:
            ServerUnavailableError: if layers or width are not the planned ones.
            ReplyBrokenError: if the file is short, damaged or another sample's.
            FileNotFoundError: if it is gone.
        """
        path = Path(receipt.path)
        if (receipt.layers, receipt.width) != (self._layers, self._width):
            raise ServerUnavailableError(
                f"{path}: boundaries {list(receipt.layers)} of width {receipt.width} were "
                f"captured, {list(self._layers)} of width {self._width} are planned: start the "
                "server with EAGLED_CAPTURE_LAYERS as extract.layers has it"
            )
        with path.open("rb") as file:
            file.seek(DATA_START)
            states = np.fromfile(file, np.uint16, receipt.rows * receipt.width)
            stored = np.fromfile(file, np.int32, receipt.tokens)
        if states.size != receipt.rows * receipt.width or stored.size != receipt.tokens:
            raise ReplyBrokenError(f"{path}: the file is short")
        if zlib.crc32(states.data) != receipt.crc32:
            raise ReplyBrokenError(f"{path}: the states' checksum is not the receipt's")
        if not np.array_equal(stored, ids):
            raise ReplyBrokenError(f"{path}: the ids are another sample's")
        layers = states.reshape(receipt.rows, len(self._layers) + 1, self._hidden_size)
        return Captured(
            np.asarray(ids),
            layers[:, :-1],  # [rows, L, D]
            layers[:, -1],  # [rows, D]
            "one_pass" if receipt.one_pass else "prefill",
        )

    def release(self, ids: Ids) -> None:
        """Remove every file of a sample."""
        for receipt in list(self._found.get(key_of(ids), [])):
            path = Path(receipt.path)
            path.unlink(missing_ok=True)
            self._forget(path.name)

    def _remove(self, path: Path, reason: str) -> None:
        _log.warning("captured file removed file=%s: %s", path.name, reason)
        path.unlink(missing_ok=True)


def key_of(ids: Ids) -> _Key:
    """Return what a file's header says of its ids."""
    return len(ids), zlib.crc32(np.ascontiguousarray(ids, np.int32).data)
