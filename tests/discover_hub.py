"""A dataset hub on this machine for tests of `eagled discover`.

It speaks what the hub's client and the dataset viewer are asked for: search with pages, a
repository's card and files, parts of files, row counts. It can be slow, ask for pauses, refuse,
forget a repository, stop in the middle of a body. Every request is counted.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class HubRepo:
    """One dataset of the hub.

    Attributes:
        files: content by path; a card is README.md.
        card: the card's header as data.
        downloads: order of search results.
        gated: "auto" refuses files without the token; False is open.
        gone: found by searches, but not there.
        viewer: row counts of the viewer; None is a viewer that does not work.
        faults: HTTP statuses of the next requests for it, first to last.
        drip: bytes of a file at once, with a wait behind each; 0 is all at once.
        cut: bytes after which the connection for a file breaks; 0 is never.
    """

    files: dict[str, bytes]
    card: dict[str, Any] = field(default_factory=dict)
    downloads: int = 100
    gated: str | bool = False
    gone: bool = False
    viewer: list[dict[str, Any]] | None = None
    faults: list[int] = field(default_factory=list)
    drip: int = 0
    cut: int = 0
    sha: str = "c" * 40
    tags: list[str] = field(default_factory=list)


@dataclass
class Hub:
    """State of the hub; tests change it while it runs.

    Attributes:
        repos: datasets by id.
        latency_s: wait before each answer.
        token: what opens gated datasets.
        page: results of one page of a search.
        retry_after_s: what a 429 asks for.
        down: every request gets 503.
        asked: (what, dataset) and how often; what is search, info, file or viewer.
        meet: searches that have to be there at the same time before one is answered.
        most: requests that were answered at the same time.
    """

    repos: dict[str, HubRepo]
    url: str = ""
    latency_s: float = 0.0
    token: str = "hf_secret_token_of_the_test"  # noqa: S105 - made up
    page: int = 100
    retry_after_s: str = "0"
    down: bool = False
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    tokens_seen: set[str] = field(default_factory=set)
    now: int = 0
    most: int = 0
    meet: int = 0
    together: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, what: str) -> int:
        """Return how many requests of a kind there were."""
        return sum(n for (kind, _), n in self.asked.items() if kind == what)


@contextmanager
def running(repos: Mapping[str, HubRepo]) -> Iterator[Hub]:
    """Run a hub in a thread."""
    hub = Hub(dict(repos))
    loop = asyncio.new_event_loop()
    runner = loop.run_until_complete(_start(hub))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


async def _start(hub: Hub) -> web.AppRunner:
    app = application(hub)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    hub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    return runner


def application(hub: Hub) -> web.Application:
    """Return the server of a hub."""
    handlers = _Handlers(hub)
    app = web.Application(middlewares=[handlers.each])
    app.router.add_get("/api/datasets", handlers.search)
    app.router.add_get("/api/datasets/{owner}/{name}", handlers.info)
    path = "/datasets/{owner}/{name}/resolve/{revision}/{path:.+}"
    app.router.add_get(path, handlers.file)
    app.router.add_get("/viewer/size", handlers.viewer)
    return app


class _Handlers:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @web.middleware
    async def each(self, request: web.Request, handler: Any) -> web.StreamResponse:
        hub = self._hub
        hub.now += 1
        hub.most = max(hub.most, hub.now)
        try:
            if hub.latency_s:
                await asyncio.sleep(hub.latency_s)
            if given := request.headers.get("authorization"):
                hub.tokens_seen.add(given)
            if hub.down:
                raise web.HTTPServiceUnavailable
            reply: web.StreamResponse = await handler(request)
            return reply
        finally:
            hub.now -= 1

    async def search(self, request: web.Request) -> web.Response:
        words = request.query.get("search", "").lower().replace("-", " ").split()
        filters = request.query.getall("filter", [])
        self._hub.asked["search", " ".join(words)] += 1
        if self._hub.count("search") >= self._hub.meet:
            self._hub.together.set()
        await asyncio.wait_for(self._hub.together.wait(), 60)
        found = [
            (name, repo)
            for name, repo in self._hub.repos.items()
            if all(word in name.lower().replace("-", " ") for word in words)
            and all(tag in repo.tags for tag in filters)
        ]
        found.sort(key=lambda item: (-item[1].downloads, item[0]))
        at = int(request.query.get("at", 0))
        size = min(self._hub.page, int(request.query.get("limit", 1000)))
        rows = [{"id": name, "downloads": repo.downloads} for name, repo in found[at : at + size]]
        headers = {}
        if at + size < len(found):
            following = request.url.update_query(at=at + size)
            headers["Link"] = f'<{self._hub.url}{following.path_qs}>; rel="next"'
        return web.json_response(rows, headers=headers)

    def _repo(self, what: str, name: str) -> HubRepo:
        self._hub.asked[what, name] += 1
        repo = self._hub.repos.get(name)
        if repo is None or repo.gone:
            raise _error(web.HTTPNotFound, "RepoNotFound")
        if repo.faults:
            status = repo.faults.pop(0)
            raise _fault(status, self._hub.retry_after_s)
        return repo

    async def info(self, request: web.Request) -> web.Response:
        name = "{owner}/{name}".format(**request.match_info)
        repo = self._repo("info", name)
        licence = repo.card.get("license")
        tags = [*repo.tags, *([f"license:{licence}"] if licence else [])]
        return web.json_response({
            "id": name, "sha": repo.sha, "downloads": repo.downloads, "gated": repo.gated,
            "lastModified": "2026-05-04T03:02:01.000Z", "tags": tags, "cardData": repo.card,
            "private": False,
            "siblings": [{"rfilename": path, "size": len(data)}
                         for path, data in repo.files.items()],
        })  # fmt: skip

    async def file(self, request: web.Request) -> web.StreamResponse:
        name = "{owner}/{name}".format(**request.match_info)
        repo = self._repo("file", name)
        if repo.gated and request.headers.get("authorization") != f"Bearer {self._hub.token}":
            raise _error(web.HTTPForbidden, "GatedRepo")
        data = repo.files.get(request.match_info["path"])
        if data is None or request.match_info["revision"] not in ("main", repo.sha):
            raise _error(web.HTTPNotFound, "EntryNotFound")
        wanted = _RANGE.match(request.headers.get("range", ""))
        start = int(wanted[1]) if wanted else 0
        end = min(int(wanted[2] or len(data) - 1) + 1, len(data)) if wanted else len(data)
        part = data[start:end]
        reply = web.StreamResponse(status=206 if wanted else 200)
        reply.content_length = len(part)
        reply.headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        await reply.prepare(request)
        await self._body(request, reply, repo, part)
        return reply

    async def _body(
        self, request: web.Request, reply: web.StreamResponse, repo: HubRepo, part: bytes
    ) -> None:
        if repo.cut and len(part) > repo.cut:
            await reply.write(part[: repo.cut])
            if request.transport is not None:
                request.transport.close()
            return
        step = repo.drip or max(1, len(part))
        for at in range(0, len(part), step):
            await reply.write(part[at : at + step])
            if repo.drip:
                await asyncio.sleep(0.02)
        await reply.write_eof()

    async def viewer(self, request: web.Request) -> web.Response:
        name = request.query["dataset"]
        repo = self._repo("viewer", name)
        if repo.viewer is None:
            raise _error(web.HTTPInternalServerError, "UnexpectedError")
        return web.json_response({"size": {"splits": repo.viewer}})


def _error(kind: Any, code: str) -> web.HTTPException:
    made: web.HTTPException = kind(headers={"X-Error-Code": code}, text=f'{{"error": "{code}"}}')
    return made


def _fault(status: int, retry_after_s: str) -> web.HTTPException:
    class Fault(web.HTTPException):
        status_code = status

    return Fault(headers={"Retry-After": retry_after_s}, text="{}")
