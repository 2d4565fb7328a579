"""A capturing server for tests: the plugin's files and replies without SGLang and its model.

Its states depend on the ids only, so that a pass over a sample and states captured while it was
generated are the same rows, as with a real server.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagled.sglang_plugin.reply import look
from eagled.sglang_plugin.spoolfile import (
    FileFacts,
    Receipt,
    failed_path,
    final_path,
    header,
    read_receipt,
)
from eagled.shards.target import TargetFacts
from tests.unit.shards.helpers import HIDDEN, LAYERS, random_bits


def target(folder: Path) -> TargetFacts:
    """Return facts of the toy target."""
    return TargetFacts(folder, 8, HIDDEN, 300, "t" * 64, hashlib.sha256().hexdigest())


def states_of(ids: npt.NDArray[Any], rows: int) -> npt.NDArray[np.uint16]:
    """Return the first rows of a sample's states, [rows, (L+1)*D] bf16 bits."""
    rng = np.random.default_rng(int(np.asarray(ids).sum()))
    return random_bits(rng, (len(ids), (len(LAYERS) + 1) * HIDDEN))[:rows]


def file_bytes(rid: str, ids: npt.NDArray[Any], n_output: int) -> bytes:
    """Return the bytes of a complete captured file."""
    ids = np.ascontiguousarray(ids, np.int32)
    facts = FileFacts(rid, LAYERS, HIDDEN, len(ids) - n_output, n_output, "bfloat16", "0.5.23", "m")
    states = states_of(ids, facts.rows_expected)
    raw = states.tobytes()
    return header(facts, len(states), ids.tobytes(), zlib.crc32(raw)) + raw + ids.tobytes()


def put_file(spool: Path, rid: str, ids: npt.NDArray[Any], n_output: int) -> Path:
    """Write a captured file under its final name, as the writer does."""
    spool.mkdir(parents=True, exist_ok=True)
    temp = spool / f"{rid}.1.tmp"
    temp.write_bytes(file_bytes(rid, ids, n_output))
    return temp.rename(final_path(spool, rid))


ANSWER = [21, 22, 23, 24]  # of every generation


@dataclass
class FakeCapture:
    """What the server does.

    Attributes:
        spool: where it writes.
        mode: `good`; `plain` answers as a server without the plugin; `other` as one with another
            version of it; `failed` leaves a note;
            `lost` says complete and has no file; `short` and `flipped` damage the file;
            `late` answers `pending` and finishes the file `late_s` later; `down` is HTTP 503;
            `refused` is HTTP 400.
        late_s: see `late`.
        full: requests that generate get no file, for want of room; passes do.
        served: rids of all passes.
        info: what /server_info says.
    """

    spool: Path
    mode: str = "good"
    late_s: float = 0.2
    full: bool = False
    served: list[str] = field(default_factory=list)
    info: dict[str, Any] = field(
        default_factory=lambda: {
            "version": "0.5.23",
            "disable_radix_cache": True,
            "enable_return_hidden_states": True,
            "context_length": 10_240,
            "max_req_input_len": 10_234,
        }
    )

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and reply to a pass."""
        rid, ids = body["rid"], np.array(body["input_ids"])
        self.served.append(rid)
        if body["sampling_params"]["max_new_tokens"]:
            return 200, self._generate(rid, ids, asked=body.get("return_hidden_states", False))
        if self.mode in ("down", "refused"):
            return (503 if self.mode == "down" else 400), {"error": {"message": "no"}}
        meta: dict[str, Any] = {"id": rid, "prompt_tokens": len(ids)}
        if self.mode == "plain":
            meta["hidden_states"] = [[0.1, 0.2]]
        elif self.mode == "other":
            meta["hidden_states"] = {"eagled_capture": "eagled-capture-9", "state": "complete"}
        else:
            meta["hidden_states"] = self._capture(rid, ids).to_json()
        return 200, {"output_ids": [], "meta_info": meta}

    def _generate(self, rid: str, ids: npt.NDArray[Any], *, asked: bool) -> dict[str, Any]:
        """Answer with the ids of `ANSWER`, captured if asked and able."""
        meta: dict[str, Any] = {
            "id": rid,
            "prompt_tokens": len(ids),
            "completion_tokens": len(ANSWER),
            "finish_reason": {"type": "stop", "matched": ANSWER[-1]},
        }
        if asked and self.full:
            failed_path(self.spool, rid).write_text('{"error": "spool full"}')
            meta["hidden_states"] = look(self.spool, rid).to_json()
        elif asked and self.mode == "good":
            put_file(self.spool, rid, np.concatenate([ids, ANSWER]), len(ANSWER))
            meta["hidden_states"] = look(self.spool, rid).to_json()
        elif asked:
            meta["hidden_states"] = [[0.1]]
        return {"output_ids": ANSWER, "meta_info": meta}

    def _capture(self, rid: str, ids: npt.NDArray[Any]) -> Receipt:
        whole = file_bytes(rid, ids, 0)
        path = final_path(self.spool, rid)
        match self.mode:
            case "failed":
                failed_path(self.spool, rid).write_text('{"error": "spool full"}')
            case "late":
                threading.Thread(target=self._finish_late, args=(rid, ids, whole)).start()
            case "short":
                path.write_bytes(whole[:-40])
            case "flipped":
                path.write_bytes(whole[:4200] + bytes([whole[4200] ^ 1]) + whole[4201:])
            case "lost":
                put_file(self.spool, rid, ids, 0)
                receipt = read_receipt(path)
                path.unlink()
                return receipt
            case _:
                put_file(self.spool, rid, ids, 0)
        return look(self.spool, rid)

    def _finish_late(self, rid: str, ids: npt.NDArray[Any], whole: bytes) -> None:
        (self.spool / f"{rid}.1.tmp").write_bytes(whole[: len(whole) // 2])
        time.sleep(self.late_s)  # what is tested is that nobody reads before this is over
        put_file(self.spool, rid, ids, 0)


@contextmanager
def serving(capture: FakeCapture) -> Iterator[str]:
    """Serve on a free port; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            model = {"model_path": "/models/toy", "served_model_name": "toy", "tokenizer_path": ""}
            self._say(200, model if self.path == "/model_info" else capture.info)

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._say(*capture.answer(json.loads(self.rfile.read(length))))

        def _say(self, status: int, value: dict[str, Any]) -> None:
            raw = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    capture.spool.mkdir(parents=True, exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
