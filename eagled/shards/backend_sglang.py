"""Hidden states by SGLang servers with eagled's plugin: from the spool, or by a prefill-only pass.

Guarantee: states that a server captured while it generated are used when they are there and whole;
any other sample is passed over by a server, once. A server that is away, does not capture or has no
room accuses no sample (`RetryableError`). Files stay until their samples are released.
Price: a prefill pass writes and reads each state once more than a pass in our own process would.
No torch here: this back end needs none.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eagled.errors import (
    ConfigError,
    ReplyBrokenError,
    ServerUnavailableError,
    StatesRejectedError,
)
from eagled.printable import printable
from eagled.sglang_plugin.reply import look
from eagled.sglang_plugin.spoolfile import FORMAT, Receipt, failed_path, final_path
from eagled.sglang_plugin.versions import SUPPORTED
from eagled.shards.backend import Captured, Ids, states_manifest
from eagled.shards.format import LastPolicy, ShardManifest
from eagled.shards.selfcheck import check_batching, probe_inputs
from eagled.shards.spool import Spool
from eagled.shards.target import TargetFacts
from eagled.types import OutputReason

_log = logging.getLogger(__name__)
_AT_ONCE = 32  # requests a server; it batches them itself
_REQUEST_S = 600.0
_INFO_S = 20.0
_POLL_S = 0.01
_REFUSED = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True)
class CaptureServer:
    """One server and its key, empty if it wants none."""

    url: str
    key: str = ""

    def call(self, path: str, body: dict[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        """Return the object that a path answers with.

        Raises:
            ServerUnavailableError: if there is no usable answer.
            StatesRejectedError: if the server refuses the request for good.
        """
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)  # noqa: S310 - the configuration allows http and https only
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:  # noqa: S310 - as above
                found = json.loads(reply.read())
        except urllib.error.HTTPError as exc:
            text = printable(exc.read(2000).decode(errors="replace"))
            if exc.code in _REFUSED:
                raise StatesRejectedError(
                    OutputReason.BAD_STATES, f"{self.url} refuses it: {text}"
                ) from exc
            raise ServerUnavailableError(f"{self.url}: HTTP {exc.code}: {text}") from exc
        except (OSError, ValueError) as exc:
            raise ServerUnavailableError(f"{self.url}: {printable(exc)}") from exc
        if not isinstance(found, dict):
            raise ServerUnavailableError(f"{self.url}{path}: not a JSON object")
        return found


class SglangBackend:
    """States from servers that write into `spool`, a folder of this machine.

    Args:
        target: sizes and identity of the target.
        layers: boundary ids that the servers capture.
        last: which final states are kept.
        servers: those that capture.
        spool: the folder that they write to.
        wait_s: longest wait for a file that a server said is coming.
        name: what the manifest calls the target.
        revision: its revision.
    """

    def __init__(
        self,
        target: TargetFacts,
        *,
        layers: tuple[int, ...],
        servers: Sequence[CaptureServer],
        spool: Path,
        wait_s: float = 60.0,
        last: LastPolicy = "supervised",
        name: str = "",
        revision: str | None = None,
    ) -> None:
        if not servers:
            raise ConfigError('extract.backend = "sglang" needs [[servers]]')
        self._servers = tuple(servers)
        self._turns = itertools.cycle(self._servers)
        self._spool = Spool(spool, layers, target.hidden_size)
        self._wait_s = wait_s
        self._pool = ThreadPoolExecutor(_AT_ONCE * len(self._servers), "capture")
        self._manifest = states_manifest(
            target,
            name=name,
            revision=revision,
            layers=layers,
            last=last,
            compute_dtype="bfloat16",
            backend="sglang",
        )

    @property
    def manifest(self) -> ShardManifest:
        """What the states are."""
        return self._manifest

    def capture(self, batch: Sequence[Ids]) -> list[Captured]:
        """Return the states of each sample, in order.

        Raises:
            RetryableError: if they cannot be had now, or are of other layers than planned; what
                is in the spool stays there.
            StatesRejectedError: if a server refuses a sample for good.
        """
        self._spool.refresh()
        found = [self._spool.take(ids) for ids in batch]
        missing = [ids for ids, states in zip(batch, found, strict=True) if states is None]
        receipts = iter(list(self._pool.map(self._prefill, missing, self._turns)))
        return [
            states if states is not None else self._spool.load(next(receipts), ids)
            for ids, states in zip(batch, found, strict=True)
        ]

    def _prefill(self, ids: Ids, server: CaptureServer) -> Receipt:
        """Let a server pass over a sample; return the receipt of its complete file."""
        rid = f"pass-{uuid.uuid4().hex}"
        body = {
            "rid": rid,
            "input_ids": np.asarray(ids).tolist(),
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_hidden_states": True,
        }
        reply = server.call("/generate", body, _REQUEST_S)
        meta = reply.get("meta_info")
        said = meta.get("hidden_states") if isinstance(meta, dict) else None
        theirs = said.get("eagled_capture") if isinstance(said, dict) else None
        if theirs is None:
            raise ServerUnavailableError(
                f"{server.url} answered without a receipt: it runs without eagled's plugin "
                "(docs/capture.md)"
            )
        if theirs != FORMAT:
            raise ServerUnavailableError(
                f"{server.url} writes hidden states in the form {printable(theirs, 40)}, this "
                f"eagled reads {FORMAT}: install the same version of eagled in both places"
            )
        return self._complete(rid, server)

    def _complete(self, rid: str, server: CaptureServer) -> Receipt:
        """Wait until a file is there, whole; it is read only then."""
        deadline = time.monotonic() + self._wait_s
        while (receipt := look(self._spool.folder, rid)).state == "pending":
            if time.monotonic() >= deadline:
                raise ReplyBrokenError(
                    f"{server.url}: {final_path(self._spool.folder, rid)} did not come within "
                    f"{self._wait_s:g} s; is extract.spool the server's EAGLED_CAPTURE_SPOOL?"
                )
            time.sleep(_POLL_S)
        if receipt.state != "complete":
            failed_path(self._spool.folder, rid).unlink(missing_ok=True)
            final_path(self._spool.folder, rid).unlink(missing_ok=True)
            raise ReplyBrokenError(f"{server.url}: states were not captured: {receipt.error}")
        return receipt

    def release(self, batch: Sequence[Ids]) -> None:
        """Remove the files of samples that are in a committed shard."""
        self._spool.refresh()
        for ids in batch:
            self._spool.release(ids)

    def self_check(self) -> None:
        """See that every server captures, and that a sample's states do not depend on its batch.

        Raises:
            RetryableError: if a server is away.
            ConfigError: if one cannot capture, naming it and what to change.
            ArtifactError: if states differ.
        """
        for server in self._servers:
            check_info(server.url, server.call("/server_info", None, _INFO_S))
        inputs = probe_inputs(self._manifest.vocab_size)
        together = self._probe(inputs)
        alone = [self._probe([ids])[0] for ids in inputs]
        check_batching(together, alone)

    def _probe(self, inputs: Sequence[Ids]) -> list[Captured]:
        """Return fresh states: nothing of the spool is used, nothing stays in it."""
        receipts = list(self._pool.map(self._prefill, inputs, self._turns))
        found = [self._spool.load(r, ids) for r, ids in zip(receipts, inputs, strict=True)]
        self.release(inputs)
        return found


def check_info(url: str, info: dict[str, Any]) -> None:
    """Raise unless a server's own words say that it can capture.

    Raises:
        ConfigError: naming the server and what to change.
    """
    version = str(info.get("version"))
    if version not in SUPPORTED:
        raise ConfigError(
            f"{url} runs SGLang {printable(version, 40)}; states are captured with "
            f"{' and '.join(SUPPORTED)} only"
        )
    if not info.get("disable_radix_cache"):
        raise ConfigError(f"{url} has its prefix cache on: start it with --disable-radix-cache")
    if not info.get("enable_return_hidden_states"):
        raise ConfigError(f"{url}: start it with --enable-return-hidden-states")
