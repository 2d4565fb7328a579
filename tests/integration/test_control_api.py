"""The control socket: who may call, what it answers, what a caller can do wrong."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from eagled.control import call, events
from eagled.control.client import ControlClient
from eagled.control.context import Control
from eagled.control.desks import ExtractDesk, TextDesk
from eagled.control.doorbell import Doorbell
from eagled.control.peers import Access
from eagled.control.reading import Piece, ReadText
from eagled.control.server import bind_socket, serve_control
from eagled.errors import (
    ArtifactError,
    ConfigError,
    EagledError,
    UnreachableError,
    UsageError,
)
from eagled.store import Store
from eagled.tokens import pack_ids
from eagled.types import (
    Answer,
    EventKind,
    Finish,
    SampleState,
    ShardMember,
    ShardRecord,
    TextVerdict,
)
from tests.servers.kit import add_prompts, make_config, open_store, states, until

CONFIG = make_config()


@dataclass
class FakeActions:
    """A daemon that only notes what it is asked."""

    called: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None

    async def status(self) -> dict[str, Any]:
        """Return an almost empty document."""
        return {"api": 1, "phase": "idle"}

    async def metrics(self) -> bytes:
        """Return one metric."""
        return b"eagled_uptime_seconds 1.0\n"

    async def disk_plan(self, asked: dict[str, str]) -> dict[str, Any]:
        """Return what was asked."""
        return dict(asked)

    async def choose_storage(self, name: str, uid: int) -> str:
        """Note the caller."""
        self.called.append(f"storage {name} {uid}")
        return "chosen"

    async def training(self, *, brief: bool = False) -> dict[str, Any]:  # noqa: ARG002 - as the daemon has it
        """No training."""
        return {"name": None}

    async def report(self) -> dict[str, Any]:
        """Nothing to draw."""
        return {"status": {}}

    async def acknowledge(self, kind: str, uid: int) -> str:
        """Note the caller."""
        self.called.append(f"ack {kind} {uid}")
        return "acknowledged"

    async def pause_all(self, uid: int) -> str:
        """Note the caller."""
        self.called.append(f"pause {uid}")
        return "paused"

    async def resume_all(self, uid: int) -> str:
        """Note the caller."""
        self.called.append(f"resume {uid}")
        return "running"

    async def drain(self, uid: int) -> str:
        """Note the caller."""
        self.called.append(f"drain {uid}")
        return "draining"

    async def enqueue(self, folder: Path | None, uid: int) -> str:
        """Fail as told."""
        if self.error is not None:
            raise self.error
        return f"{folder} {uid}"

    async def merge(self, uid: int) -> dict[str, Any]:
        """Take as long as the test wants."""
        self.called.append("merge begins")
        await self.gate.wait()
        self.called.append("merge ends")
        return {"path": "v001", "uid": uid}

    async def pause_extraction(self, *, paused: bool, uid: int) -> str:
        """Note the wish."""
        self.called.append(f"extraction {paused} {uid}")
        return "noted"

    async def changed(self) -> None:
        """Note that something was changed."""
        self.called.append("changed")

    def work_added(self) -> None:
        """Note that there is work."""
        self.called.append("work")


@dataclass
class Rig:
    """A socket, its store and its actions."""

    store: Store
    actions: FakeActions
    socket: Path
    text: TextDesk
    extract: ExtractDesk
    control: Control


@asynccontextmanager
async def serving(
    folder: Path,
    prompts: int = 4,
    access: Access = Access(),  # noqa: B008 - frozen
) -> AsyncIterator[Rig]:
    """Serve the control API of a store with `prompts` queued samples."""
    async with await open_store(folder / "state", CONFIG) as store:
        await add_prompts(store, CONFIG, [[1, 2, i + 3] for i in range(prompts)])
        bell, actions = Doorbell(), FakeActions()
        text = TextDesk(store, bell, lambda _: "short", lambda: True)
        extract = ExtractDesk(store, bell, lambda: True)
        control = Control(store, actions, text, extract, bell)
        async with serve_control(control, folder / "c.sock", access=access):
            yield Rig(store, actions, folder / "c.sock", text, extract, control)


async def _generate(store: Store, n: int) -> None:
    for claim in await store.claim("short", n):
        answer = Answer(pack_ids([7, 8]), Finish.STOP, "fp", 0.1)
        assert await store.complete(claim.fence, answer)


async def test_the_socket_is_born_for_its_owner_only(tmp_path: Path) -> None:
    """No other user could connect at any moment: the mode is there with the name."""
    old = os.umask(0)
    try:
        sock = bind_socket(tmp_path / "c.sock")
    finally:
        os.umask(old)
    mode = (tmp_path / "c.sock").stat().st_mode & 0o777
    sock.close()

    assert 0o600 == mode


def test_a_file_in_the_sockets_place_is_never_removed(tmp_path: Path) -> None:
    """A path that is no socket is refused and stays."""
    path = tmp_path / "c.sock"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="is no socket"):
        bind_socket(path)

    assert "mine" == path.read_text()


async def test_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root and the daemon's own user may call; the kernel says who calls."""
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    monkeypatch.setattr("eagled.control.peers._UCRED", _StrangeCred())
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as client:
        with pytest.raises(EagledError, match="user 4711 may not control this daemon"):
            await client.post("/v1/pause")

    assert [] == rig.actions.called


AS_ANOTHER = """
import os, sys
import http.client, socket
path, group = sys.argv[1], int(sys.argv[2])
os.setgroups([group]); os.setgid(65534); os.setuid(65534)
for verb, what in (("GET", "/v1/status"), ("POST", "/v1/pause")):
    try:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        head = [f"{verb} {what} HTTP/1.1", "Host: x", "Eagled-Api: 1", "Connection: close"]
        sock.sendall("\\r\\n".join([*head, "Content-Length: 2", "", "{}"]).encode())
        reply = b"".join(iter(lambda: sock.recv(65536), b"")).decode()
        print("done" if " 200 " in reply.splitlines()[0] else reply.splitlines()[-1])
    except OSError as exc:
        print(exc)
"""
GROUP = 54_321


async def _as_another_user(path: Path, group: int) -> list[str]:
    """Look and change as another user of a group; return what came of each."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AS_ANOTHER, str(path), str(group), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return out.decode().splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("access", "group", "looked", "changed"),
    [
        (Access(), GROUP, "Permission", "Permission"),
        (Access(GROUP), GROUP + 1, "Permission", "Permission"),
        (Access(GROUP), GROUP, "done", "may look but not change"),
        (Access(GROUP, control=True), GROUP, "done", "done"),
    ],
)
async def test_a_group_may_do_what_it_was_given(
    access: Access, group: int, looked: str, changed: str
) -> None:
    """A real process of another user: outside the group nothing, inside it what is configured."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)  # noqa: PTH101, S103 - the socket's own mode is what is tested
        async with serving(Path(name), access=access) as rig:
            told = await _as_another_user(rig.socket, group)

    assert [True, True] == [looked in told[0], changed in told[1]], told
    assert (["pause 65534"] if changed == "done" else []) == rig.actions.called


def test_a_group_that_is_not_there_is_a_mistake_in_the_configuration() -> None:
    """The message names the setting."""
    with pytest.raises(ConfigError, match=r"daemon.group = 'no-such-group'"):
        Access.of_group("no-such-group", "read")


class _StrangeCred:
    size = 12

    def unpack(self, _raw: bytes) -> tuple[int, int, int]:
        """Return a caller that is somebody else."""
        return 1, 4711, 4711


async def test_a_lane_is_changed_logged_with_the_caller_and_undone(tmp_path: Path) -> None:
    """A change is in the store, has an event with the uid, and can be taken back."""
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as client:
        changed = await client.post("/v1/lanes/short", {"paused": True, "limit": 3})
        row = (await rig.store.lanes())[0]
        logged = [e for e in await rig.store.events(0, 100) if e.kind == EventKind.LANE_CHANGED]
        undone = await client.post("/v1/undo")
        again = (await rig.store.lanes())[0]

    assert ((True, 3), (False, 8)) == ((row.paused, row.limit), (again.paused, again.limit))
    assert [os.geteuid()] == [event.uid for event in logged]
    assert "lane short: paused, limit 3" == changed["message"]
    assert undone["undone"]
    assert ["changed", "changed"] == rig.actions.called


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/v1/lanes/short", {"limt": 3}, "limt: Extra inputs are not permitted"),
        ("/v1/lanes/short", {"limit": "3"}, "limit: Input should be a valid integer"),
        ("/v1/lanes/short", {"limit": -1}, "limit: Input should be greater than or equal to 0"),
        ("/v1/lanes/nope", {"limit": 1}, "nope"),
        ("/v1/datasets/nope", {"priority": 1}, "nope"),
        ("/v1/pause", {"lane": "short"}, "lane: Extra inputs are not permitted"),
        ("/v1/reject", {"samples": ["00"]}, "there is no sample '00'"),
        ("/v1/nothing", {}, "Not Found"),
        ("/v1/work/extract/commit", {"shard": {}, "members": []}, "field 'file_bytes' is missing"),
    ],
)
async def test_a_wrong_call_is_told_what_is_wrong(
    tmp_path: Path, path: str, body: dict[str, Any], told: str
) -> None:
    """Unknown fields, wrong types, unknown names: refused by name, nothing changed."""
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as client:
        with pytest.raises(UsageError) as caught:
            await client.post(path, body)
        lanes = await rig.store.lanes()

    assert told in str(caught.value)
    assert [(8, False)] == [(lane.limit, lane.paused) for lane in lanes]


async def test_another_version_of_the_protocol_is_refused(tmp_path: Path) -> None:
    """A client of another version is told both versions."""
    async with serving(tmp_path) as rig:
        connector = aiohttp.UnixConnector(path=str(rig.socket))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://eagled/v1/status", headers={"Eagled-Api": "2"}) as reply,
        ):
            status, body = reply.status, await reply.text()

    assert 400 == status
    assert "the daemon speaks control API 1, the caller speaks '2'" in body


@pytest.mark.parametrize("error", [ArtifactError("torn"), ConfigError("wrong"), UsageError("what")])
async def test_an_error_of_the_daemon_keeps_its_class_and_exit_code(
    tmp_path: Path, error: EagledError
) -> None:
    """What the daemon raises is what the caller gets, in both clients."""
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as client:
        rig.actions.error = error
        with pytest.raises(type(error), match=str(error)) as caught:
            await client.post("/v1/enqueue", {"folder": "x"})
        with pytest.raises(type(error), match=str(error)):
            await asyncio.to_thread(call.post, rig.socket, "/v1/enqueue", {"folder": "x"})

    assert error.exit_code == caught.value.exit_code


async def test_a_bug_in_a_call_ends_that_call_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception is a 500 with its traceback in the log; the next call works."""
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as client:
        rig.actions.error = ZeroDivisionError("x")
        with pytest.raises(EagledError, match="met a bug"):
            await client.post("/v1/enqueue", {"folder": None})
        document = await client.status()

    assert "idle" == document["phase"]
    assert "ZeroDivisionError" in caplog.text


async def test_a_call_with_a_known_key_counts_once(tmp_path: Path) -> None:
    """The second call with an idempotency key gets the first answer and changes nothing."""
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as client:
        first = await client.post("/v1/pause", key="k")
        second = await client.post("/v1/pause", key="k")
        await client.post("/v1/pause", key="other")

    assert first == second
    assert 2 == len(rig.actions.called)


async def test_a_caller_that_goes_away_does_not_stop_a_change_half_way(tmp_path: Path) -> None:
    """A merge whose client disconnected still ends in order."""
    async with serving(tmp_path) as rig:
        async with ControlClient(rig.socket) as client:
            task = asyncio.create_task(client.merge())
            await until(lambda: "merge begins" in rig.actions.called)
            task.cancel()
            await asyncio.wait({task})
        rig.actions.gate.set()
        await until(lambda: "merge ends" in rig.actions.called)


async def test_a_socket_that_closes_does_not_stop_a_change_half_way(tmp_path: Path) -> None:
    """At shutdown a call that is under way is cut from its caller, not in its work."""
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as client:
        task = asyncio.create_task(client.merge())
        await until(lambda: "merge begins" in rig.actions.called)
    rig.actions.gate.set()
    await until(lambda: "merge ends" in rig.actions.called)
    outcome: object = (await asyncio.gather(task, return_exceptions=True))[0]

    assert isinstance(outcome, UnreachableError | RuntimeError)


async def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    """Exit code 69 and the command."""
    async with ControlClient(tmp_path / "none.sock") as client:
        with pytest.raises(UnreachableError, match="eagled run") as caught:
            await client.status()
    with pytest.raises(UnreachableError, match="eagled run"):
        call.get(tmp_path / "none.sock", "/v1/status")

    assert 69 == caught.value.exit_code


async def test_metrics_are_prometheus_text(tmp_path: Path) -> None:
    """/metrics needs no version header, as a scraper sends none."""
    async with serving(tmp_path) as rig:
        connector = aiohttp.UnixConnector(path=str(rig.socket))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://eagled/metrics") as reply,
        ):
            text, kind = await reply.text(), reply.headers["Content-Type"]

    assert ("eagled_uptime_seconds 1.0\n", "text/plain; version=0.0.4") == (text, kind)


async def test_events_come_in_order_and_are_resumed_by_number(tmp_path: Path) -> None:
    """Reading from a number gives exactly what came after it."""
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as client:
        for i in range(7):
            await rig.store.add_event(EventKind.ALARM, f"s{i}", "d")
        seen = [event async for event in client.events()]
        rest = [event async for event in client.events(seen[3]["seq"])]
        blocking = await asyncio.to_thread(lambda: list(call.events(rig.socket, seen[3]["seq"])))

    assert seen[4:] == rest == blocking
    assert [f"s{i}" for i in range(7)] == [e["subject"] for e in seen if e["kind"] == "alarm"]


async def test_acknowledgements_follow_their_commit(tmp_path: Path) -> None:
    """Each stored answer appears once in the live feed with its checksum."""
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as client:
        acks: list[dict[str, Any]] = []

        async def follow() -> None:
            async for event in client.events(1 << 60, follow=True, acks=True):
                acks.append(event["ack"])  # noqa: PERF401 - it is watched while the stream is open

        task = asyncio.create_task(follow())
        await until(lambda: bool(rig.store._feed._readers))
        await _generate(rig.store, 3)
        await until(lambda: len(acks) == 3)
        task.cancel()
        await asyncio.wait({task})
        rows = await rig.store.samples()
        stored = {row.uid for row in rows if row.state is SampleState.GENERATED}

    assert stored == {ack["uid"] for ack in acks}
    assert {pack_ids([7, 8]).crc} == {ack["crc"] for ack in acks}


async def test_a_reader_that_takes_nothing_is_dropped_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stalled client is cut off; answers are stored at the same speed, memory stays bounded."""
    monkeypatch.setattr(events, "WRITE_TIMEOUT_S", 0.2)
    async with serving(tmp_path, prompts=300) as rig:
        stalled = socket.socket(socket.AF_UNIX)
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        stalled.connect(str(rig.socket))
        stalled.sendall(b"GET /v1/events?follow=1&acks=1 HTTP/1.1\r\nHost: eagled\r\n\r\n")
        await until(lambda: bool(rig.store._feed._readers))
        detail = "x" * 500
        for _ in range(40):
            await asyncio.gather(
                *(rig.store.add_event(EventKind.ALARM, "s", detail) for _ in range(50))
            )
        await _generate(rig.store, 300)
        await until(lambda: not rig.store._feed._readers)
        stalled.close()
        found = await states(rig.store)

    assert {SampleState.GENERATED: 300} == found


async def test_text_work_is_handed_to_one_worker_and_settled(tmp_path: Path) -> None:
    """A check is in one worker's hands only; a verdict makes the answer extractable."""
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as client:
        await _generate(rig.store, 2)
        jobs = await client.claim_text("text-0", 10)
        task = asyncio.create_task(client.claim_text("text-1", 10))
        settled = await client.settle_text(
            [TextVerdict(job.sample_id, job.attempt, None) for job in jobs]
        )
        await _generate(rig.store, 1)
        late = await task
        extract = await client.claim_extract("x", 10, 10_000)

    assert (2, 2, 1) == (len(jobs), settled, len(late))
    assert {job.sample_id for job in jobs} == {job.fence.sample_id for job in extract}


async def test_a_shard_is_committed_over_the_socket(tmp_path: Path) -> None:
    """Claim, commit and failure of extraction work, with fences; a second commit is stale."""
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as client:
        await _generate(rig.store, 3)
        jobs = await client.claim_text("t", 10)
        await client.settle_text([TextVerdict(j.sample_id, j.attempt, None) for j in jobs])
        await client.hello("x", "extract", os.getpid())
        work = await client.claim_extract("x", 10, 10_000)
        pending = rig.extract.pending_tokens
        record = ShardRecord("s.safetensors", "ab" * 32, 10, 2, 10, "m")
        members = [ShardMember(job.fence, i) for i, job in enumerate(work[:2])]
        first = await client.commit_shard(record, members)
        failed = await client.fail_extract(work[2].fence, "not_finite", "row 1", final=True)
        again = await client.fail_extract(work[2].fence, "not_finite", "row 1", final=True)
        found = await states(rig.store)

        left = rig.extract.pending_tokens

    assert ((2, 0), True, False) == (first, failed, again)
    assert (3 * 5, 0) == (pending, left)
    assert {
        SampleState.EXTRACTED: 2, SampleState.FAILED: 1, SampleState.QUEUED: 1
    } == found  # fmt: skip


async def test_work_of_a_process_that_is_gone_is_handed_out_again(tmp_path: Path) -> None:
    """The desks take back what a vanished worker held, by its process id; each is tried alone."""
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as client:
        await _generate(rig.store, 2)
        script = (
            "import sys, pathlib; from eagled.control import call;"
            "print(len(call.post(pathlib.Path(sys.argv[1]), '/v1/work/text/claim',"
            " {'worker': 'gone', 'max': 10})['jobs']))"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, str(rig.socket), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        held = rig.text.held
        rig.text.sweep()
        first = await client.claim_text("text-1", 10)
        await client.settle_text([TextVerdict(j.sample_id, j.attempt, None) for j in first])
        second = await client.claim_text("text-1", 10)

    assert (b"2\n", 2, 1, 1) == (out, held, len(first), len(second))


async def test_the_text_of_a_sample_comes_from_a_worker(tmp_path: Path) -> None:
    """Ids are always there; text is there when a worker decodes it, else a reason."""
    async with serving(tmp_path, prompts=1) as rig, ControlClient(rig.socket) as client:
        (row,) = (await client.get("/v1/samples"))["samples"]
        alone = await client.get(f"/v1/samples/{row['uid']}/text")
        claim = asyncio.create_task(client.claim_reading())
        await until(lambda: rig.control.reading.connected)
        asked = asyncio.create_task(client.get(f"/v1/samples/{row['uid']}/text"))
        (job,) = await claim
        piece = Piece("hello", 3, special=False)
        await client.settle_reading([ReadText(job.number, (piece,), ())])
        read = await asked

    assert ([1, 2, 3], [], None) == (
        alone["prompt_ids"], alone["output_ids"], alone["prompt"],
    )  # fmt: skip
    assert "no text worker" in alone["note"]
    assert [["hello", 3, False]] == read["prompt"]


async def test_a_group_that_changed_is_left_alone(tmp_path: Path) -> None:
    """A change that expects another number of samples than there are changes nothing."""
    async with serving(tmp_path, prompts=3) as rig, ControlClient(rig.socket) as client:
        would = await client.post("/v1/reject", {"lane": "short", "dry_run": True})
        with pytest.raises(UsageError, match="2 → 3 samples; nothing was done"):
            await client.post("/v1/reject", {"lane": "short", "expect": 2})
        untouched = await client.get("/v1/samples", state="rejected")
        done = await client.post("/v1/reject", {"lane": "short", "expect": 3})

    assert (3, [], 3) == (would["n"], untouched["samples"], done["n"])


async def test_only_the_newest_events(tmp_path: Path) -> None:
    """A screen that is opened late asks for the end of the log, not for all of it."""
    async with serving(tmp_path, prompts=1) as rig, ControlClient(rig.socket) as client:
        for i in range(9):
            await rig.store.add_event(EventKind.ALARM, "s", str(i))
        newest = [event["detail"] async for event in client.events(last=2)]

    assert ["7", "8"] == newest
