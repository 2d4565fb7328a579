"""A dataset hub on this machine: a real HTTP server that speaks what the hub's client asks for.

It knows repositories as folders of bytes at one commit, serves parts of files, and can be gated,
gone, or stop in the middle of a body.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

_ROUTE = re.compile(r"/api/datasets/(?P<repo>[^/]+/[^/]+)(?:/(?P<what>[^?]*))?")
_FILE = re.compile(r"/datasets/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class FakeRepo:
    """One dataset. `gated`, `gone`, `private` change what the hub says of it."""

    files: dict[str, bytes]
    sha: str = "a" * 40
    gated: bool = False
    gone: bool = False


@dataclass
class FakeHub:
    """The hub's state; tests change it while it runs.

    `budget` counts body bytes of files that are still served before the connection breaks, None
    is no limit; while `down`, every request gets 503.
    """

    repos: dict[str, FakeRepo]
    url: str = ""
    budget: int | None = None
    down: bool = False
    ignore_ranges: bool = False
    short_parts: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)
    served: int = 0

    def took(self, wanted: int) -> int:
        """Return how many of `wanted` body bytes are still served."""
        if self.budget is None:
            self.served += wanted
            return wanted
        got = min(wanted, self.budget)
        self.budget -= got
        self.served += got
        return got


@contextmanager
def fake_hub(repos: Mapping[str, FakeRepo]) -> Iterator[FakeHub]:
    """Run a hub with these repositories."""
    hub = FakeHub(dict(repos))
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ClassVar[FakeHub]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        form = self.rfile.read(length)
        self._answer(body=True, form=form)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Say nothing."""

    def _answer(self, *, body: bool, form: bytes = b"") -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path))
        if self.hub.down:
            self._error(503, "", "the hub is down")
        elif found := _FILE.fullmatch(path):
            self._file(found, body=body)
        elif found := _ROUTE.fullmatch(path):
            self._api(found, form)
        else:
            self._error(404, "", "no such page")

    def _repo(self, name: str) -> FakeRepo | None:
        repo = self.hub.repos.get(name)
        if repo is None or repo.gone:
            self._error(404, "RepoNotFound", "Repository not found")
            return None
        if repo.gated:
            self._error(403, "GatedRepo", "Access to this dataset is restricted")
            return None
        return repo

    def _api(self, found: re.Match[str], form: bytes) -> None:
        repo = self._repo(found["repo"])
        if repo is None:
            return
        what, _, rest = (found["what"] or "").partition("/")
        revision, _, folder = rest.partition("/")
        if revision and revision not in {"main", repo.sha}:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif what in {"", "revision"}:
            names = [{"rfilename": name} for name in sorted(repo.files)]
            info = {"id": found["repo"], "sha": repo.sha, "siblings": names, "private": False}
            self._json({**info, "tags": [], "downloads": 0, "likes": 0})
        elif what == "tree":
            self._tree(repo, folder)
        elif what == "paths-info":
            self._json([_entry(repo, path) for path in _paths(form) if path in repo.files])
        else:
            self._error(404, "", what)

    def _tree(self, repo: FakeRepo, folder: str) -> None:
        inside = [p for p in sorted(repo.files) if p.startswith(f"{folder}/" if folder else "")]
        start = len(folder) + 1 if folder else 0
        if "recursive=true" not in self.path.lower():
            names = {p[start:].split("/")[0] for p in inside}
            full = sorted((f"{folder}/" if folder else "") + name for name in names)
            self._json([_entry(repo, path) for path in full])
            return
        folders = {p.rpartition("/")[0] for p in inside if "/" in p[start:]}
        self._json([_entry(repo, path) for path in sorted(folders | set(inside))])

    def _file(self, found: re.Match[str], *, body: bool) -> None:
        repo = self._repo(found["repo"])
        if repo is None:
            return
        data = repo.files.get(found["path"])
        if found["revision"] not in {"main", repo.sha} or data is None:
            self._error(404, "EntryNotFound", "Entry not found")
            return
        wanted = None if self.hub.ignore_ranges else _RANGE.match(self.headers.get("range", ""))
        start = int(wanted[1]) if wanted else 0
        end = min(int(wanted[2] or len(data) - 1), len(data) - 1) if wanted else len(data) - 1
        part = data[start : end + 1]
        if self.hub.short_parts:
            part = part[: len(part) // 2]
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", repo.sha)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if body:
            got = self.hub.took(len(part))
            self.wfile.write(part[:got])
            if got < len(part):
                self.close_connection = True
                self.connection.close()

    def _json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _error(self, status: int, code: str, message: str) -> None:
        data = json.dumps({"error": message}).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _entry(repo: FakeRepo, path: str) -> dict[str, Any]:
    if path not in repo.files:
        return {"type": "directory", "path": path, "oid": "0" * 40, "size": 0}
    data = repo.files[path]
    oid = hashlib.sha256(data).hexdigest()[:40]
    return {"type": "file", "path": path, "oid": oid, "size": len(data)}


def _paths(form: bytes) -> list[str]:
    text = form.decode()
    if text.startswith("{"):
        return list(json.loads(text)["paths"])
    return [unquote(part.partition("=")[2]) for part in text.split("&") if part[:5] == "paths"]
