"""Servers are added, drained and removed while the daemon runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from eagled.config import ServerConfig
from eagled.daemon_endpoints import Endpoints, LiveServers
from eagled.errors import UsageError
from eagled.server.client import SglangClient
from eagled.types import SampleState
from tests.daemon_kit import VOCAB, daemon, eagled, fill, look, write_config
from tests.servers.kit import DEADLINE_S, make_config, running, states, until
from tests.servers.process import ServerProcess


def sim(scale: str) -> ServerProcess:
    """Return a simulated server with the vocabulary of the test model, not started."""
    words = ("--scale", scale, "--vocab", str(VOCAB), "--output", "60", "--sigma", "0.3")
    return ServerProcess("bench.sim_server", *words)


def test_servers_come_and_go_and_nothing_is_lost(tmp_path: Path) -> None:
    """Added, drained and removed by the command line; it holds over a restart."""
    n = 200
    with sim("0.7") as first, sim("0.7") as second:
        config = write_config(
            tmp_path, first.url, lanes__short={"concurrency": "auto", "limit": 40, "seed": 8}
        )
        fill(config, [[1, 2, i % 200, i // 200] for i in range(n)])
        where = ("--config", str(config))
        with daemon(config) as process:
            process.until(lambda s: bool(s["servers"][0]["in_flight"]))
            added = eagled("server", "add", second.url, *where)
            process.until(lambda s: len(s["servers"]) == 2 and bool(s["servers"][1]["in_flight"]))
            drained = eagled("server", "drain", first.url, *where)
            process.until(lambda s: s["servers"][0]["leaving"] and not s["servers"][0]["in_flight"])
            process.stop()
        with daemon(config) as process:
            again = process.until(lambda s: bool(s["servers"][1]["in_flight"]))["servers"]
            removed = eagled("server", "remove", first.url, *where)
            left = process.until(lambda s: len(s["servers"]) == 1)["servers"]
            process.until(lambda s: s["datasets"]["d"]["done"] == n)
            unknown = eagled("server", "drain", "http://nowhere:1", *where)
            process.stop()
        with daemon(config) as process:
            last = process.until(lambda s: s["phase"] == "done")["servers"]
            process.stop()

    assert [0, 0, 0] == [added.returncode, drained.returncode, removed.returncode]
    assert [(first.url, True), (second.url, False)] == [(s["url"], s["leaving"]) for s in again]
    assert [second.url] == [s["url"] for s in left] == [s["url"] for s in last]
    assert unknown.returncode == 2
    assert second.url in unknown.stderr
    assert {SampleState.GENERATED: n} == look(config, states)


async def test_a_removed_server_finishes_what_it_has(tmp_path: Path) -> None:
    """`remove_server` returns when the last answer from it is stored; nothing was sent twice."""
    with sim("4") as first, sim("4") as second:
        config = make_config(first.url, second.url)
        async with running(tmp_path, config) as rig:
            await rig.add([[1, 2, i] for i in range(60)])
            await until(lambda: all(s.in_flight for s in rig.generator.metrics().servers))
            await asyncio.wait_for(rig.generator.remove_server(first.url), DEADLINE_S)
            urls = [s.url for s in rig.generator.metrics().servers]
            done = await rig.settled(60)
            rows = await rig.store.samples(limit=100)

    assert [second.url] == urls
    assert {SampleState.GENERATED: 60} == done
    assert {1} == {row.attempt for row in rows}


async def test_a_server_that_is_added_is_checked_before_it_is_used(tmp_path: Path) -> None:
    """One of another context is refused, as it is at the start."""
    with (
        sim("50") as first,
        ServerProcess("bench.sim_server", "--context", "777", "--vocab", str(VOCAB)) as other,
    ):
        config = make_config(first.url)
        async with running(tmp_path, config) as rig:
            await until(lambda: rig.server_state() == "up")
            server = ServerConfig(url=other.url)
            async with SglangClient(server, config.generation, vocab_size=VOCAB) as client:
                rig.generator.add_server(client)
                await until(lambda: rig.server_state(1) == "refused")
                await rig.add([[1, 2, i] for i in range(20)])
                await rig.settled(20)
                sent = rig.generator._router.endpoints[1].sent
                await rig.generator.remove_server(other.url)

    assert sent == 0


async def test_a_router_is_one_endpoint_of_a_fixed_number(tmp_path: Path) -> None:
    """No load is asked of it; it gets as many at once as the configuration says."""
    with sim("4") as front:
        config = make_config(
            front.url, lanes={"short": {"context": 0, "limit": 0, "seed": 50}}
        ).model_copy(
            update={"servers": (ServerConfig(url=front.url, kind="router", max_in_flight=6),)}
        )
        most = 0
        async with running(tmp_path, config) as rig:
            await rig.add([[1, 2, i] for i in range(40)])

            async def done() -> bool:
                nonlocal most
                most = max(most, rig.generator.in_flight("short"))
                return (await rig.states()).get(SampleState.GENERATED, 0) == 40

            await until(done)
            loads = rig.generator.metrics().servers[0].admission

    assert most == 6
    assert loads is None or loads.reason == "blind"


def test_what_an_operator_changed_is_kept_and_read_back() -> None:
    """Added, removed and drained; a configured server comes back as it is configured."""
    config = make_config("http://a:1", "http://b:2")
    live = LiveServers(config)
    live.add(ServerConfig(url="http://c:3/", max_in_flight=5))
    live.remove("http://a:1")
    live.draining.add("http://b:2")
    again = LiveServers(config, live.to_json())
    again_all = [s.url for s in again.all()]
    again.add(ServerConfig(url="http://a:1"))

    assert ["http://b:2", "http://c:3/"] == again_all
    assert {"http://b:2"} == again.draining
    assert ["http://a:1", "http://b:2", "http://c:3/"] == [s.url for s in again.all()]


async def test_a_key_goes_only_where_its_owner_says(tmp_path: Path) -> None:
    """Somebody of the control group cannot have a key file sent to an address of their choice."""
    key = tmp_path / "key"
    key.write_text("sk-0123456789")
    key.chmod(0o600)
    config = make_config("http://127.0.0.1:9")
    async with running(tmp_path, config) as rig:
        endpoints = Endpoints(
            LiveServers(config), config, rig.store, rig.generator, [], vocab_size=VOCAB
        )
        asked = {"url": "http://127.0.0.1:8", "api_key_file": str(key)}
        with pytest.raises(UsageError, match="api_key_file"):
            await endpoints.add(asked, uid=os.geteuid() + 4711)

        assert "is used from now on" in await endpoints.add(asked, uid=os.geteuid())
        await endpoints.stop()


@pytest.mark.parametrize("text", ["{", "[]", '{"added": [{"url": 3}]}', '{"removed": 5}'])
def test_a_damaged_setting_falls_back_to_the_configuration(text: str) -> None:
    """The daemon starts with what the file says."""
    live = LiveServers(make_config("http://a:1"), text)

    assert ["http://a:1"] == [s.url for s in live.all()]


async def test_what_is_no_address_is_refused(tmp_path: Path) -> None:
    """With the field and what is wrong with it."""
    with sim("50") as server:
        config = make_config(server.url)
        async with running(tmp_path, config) as rig:
            endpoints = Endpoints(
                LiveServers(config), config, rig.store, rig.generator, list(rig.clients),
                vocab_size=VOCAB,
            )  # fmt: skip
            with pytest.raises(UsageError, match="url"):
                await endpoints.add({"url": "nonsense"}, 0)
