"""The extraction worker as a process, on a real model, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import torch
from aiohttp import web

from eagled.control.wire import from_wire, to_wire
from eagled.shards.compute import open_jobs
from eagled.shards.reader import ShardDataset
from eagled.shards.verify import verify_shards
from eagled.types import Fence, ShardMember, ShardRecord
from tests.unit.shards.doubles import Daemon, make_job

DEADLINE_S = 300.0  # a limit of failure only: the machine may be busy
CONFIG = """
[target]
model = "{model}"
[extract]
dtype = "float32"
threads = 1
batch_tokens = 64
"""


def routes(daemon: Daemon) -> web.Application:
    """Return the daemon double behind the paths of the control socket."""

    async def hello(request: web.Request) -> web.Response:
        await daemon.hello(**await request.json())
        return web.json_response({})

    async def claim(request: web.Request) -> web.Response:
        jobs = await daemon.claim_extract(**await request.json())
        return web.json_response({"jobs": to_wire(jobs)})

    async def commit(request: web.Request) -> web.Response:
        body = await request.json()
        members = [ShardMember(Fence(*row[:3]), row[3]) for row in body["members"]]
        record = from_wire(ShardRecord, body["shard"])
        accepted, stale = await daemon.commit_shard(record, members)
        return web.json_response({"accepted": accepted, "stale": stale})

    async def fail(request: web.Request) -> web.Response:
        body = await request.json()
        fence = from_wire(Fence, body.pop("fence"))
        return web.json_response({"counted": await daemon.fail_extract(fence, **body)})

    async def status(_request: web.Request) -> web.Response:
        return web.json_response(await daemon.status())

    app = web.Application()
    app.router.add_get("/v1/status", status)
    for path, handler in {
        "hello": hello, "extract/claim": claim, "extract/commit": commit, "extract/fail": fail,
    }.items():  # fmt: skip
        app.router.add_post(f"/v1/work/{path}", handler)
    return app


@contextlib.asynccontextmanager
async def serving(daemon: Daemon, socket: Path) -> AsyncIterator[None]:
    """Serve the double on a unix socket during the block."""
    runner = web.AppRunner(routes(daemon))
    await runner.setup()
    try:
        await web.UnixSite(runner, str(socket)).start()
        yield
    finally:
        await runner.cleanup()


async def start_worker(socket: Path, config: Path, *, once: bool) -> asyncio.subprocess.Process:
    """Start the worker; it inherits nothing about threads."""
    script = (
        "import sys; from pathlib import Path\n"
        "from eagled.workers.extract import run_extract_worker\n"
        f"sys.exit(run_extract_worker(Path({str(socket)!r}), Path({str(config)!r}), once={once}))\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    return await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=env)


def write_config(folder: Path, model: Path) -> Path:
    """Write a configuration that extracts the tiny model in float32."""
    path = folder / "eagled.toml"
    path.write_text(CONFIG.format(model=model), encoding="utf-8")
    return path


def check_states(folder: Path, model_folder: Path) -> int:
    """Assert that every stored row equals a forward pass of the model; return the samples."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    dataset = ShardDataset.from_folder(folder)
    for index in range(len(dataset)):
        sample = dataset[index]
        with torch.inference_mode():
            out = model(input_ids=sample["input_ids"][None], output_hidden_states=True)
        aux = torch.cat([out.hidden_states[k][0, :-1] for k in (2, 4, 5)], dim=-1)
        last = out.hidden_states[-1][0][sample["last_positions"]]
        assert torch.allclose(sample["aux"].float(), aux, rtol=1e-2, atol=1e-2)
        assert torch.allclose(sample["last"].float(), last, rtol=1e-2, atol=1e-2)
        assert sample["loss_mask"][1:].nonzero()[:, 0].tolist() == sample["last_positions"].tolist()
    return len(dataset)


async def test_worker_process_extracts_and_ends(tmp_path: Path, tiny_model: Path) -> None:
    """A real process fills verified shards with the model's own states and ends with 0."""
    jobs = [make_job(n, n_output=4 + n) for n in range(12)]
    daemon, config = Daemon(jobs), write_config(tmp_path, tiny_model)
    async with serving(daemon, tmp_path / "s"), asyncio.timeout(DEADLINE_S):
        worker = await start_worker(tmp_path / "s", config, once=True)
        code = await worker.wait()

    shards = tmp_path / "state" / "shards"
    source = {j.uid.hex(): (open_jobs([j], 300)[0][0].ids, j.prompt.n) for j in jobs}
    assert code == 0
    assert daemon.failed == []
    assert verify_shards(shards, daemon.shards, ids_of=source.get).findings == ()
    assert check_states(shards, tiny_model) == 12


async def test_sigterm_commits_what_is_open(tmp_path: Path, tiny_model: Path) -> None:
    """SIGTERM while more work is announced: the open shard is committed, exit code 0."""
    daemon, config = Daemon([make_job(n) for n in range(3)]), write_config(tmp_path, tiny_model)
    daemon.generating = 7
    async with serving(daemon, tmp_path / "s"), asyncio.timeout(DEADLINE_S):
        worker = await start_worker(tmp_path / "s", config, once=False)
        while daemon.claims < 2:  # noqa: ASYNC110 - the double's counter is the condition
            await asyncio.sleep(0.01)
        worker.send_signal(signal.SIGTERM)
        code = await worker.wait()

    assert code == 0
    assert sorted(daemon.extracted) == [0, 1, 2]
    assert [p.suffix for p in listed(tmp_path / "state" / "shards")] == [".safetensors"]


async def test_killed_worker_loses_only_open_work(tmp_path: Path, tiny_model: Path) -> None:
    """SIGKILL with an open shard leaves `*.tmp`; the next worker removes them and redoes it."""
    daemon, config = Daemon([make_job(n) for n in range(3)]), write_config(tmp_path, tiny_model)
    daemon.generating = 7
    shards = tmp_path / "state" / "shards"
    async with serving(daemon, tmp_path / "s"), asyncio.timeout(DEADLINE_S):
        worker = await start_worker(tmp_path / "s", config, once=False)
        while daemon.claims < 2:  # noqa: ASYNC110 - the double's counter is the condition
            await asyncio.sleep(0.01)
        worker.kill()
        await worker.wait()
        left = {p.suffix for p in listed(shards)}
        daemon.restart()
        daemon.generating = 0
        again = await start_worker(tmp_path / "s", config, once=True)
        code = await again.wait()

    assert (left, code) == ({".tmp"}, 0)
    assert sorted(daemon.extracted) == [0, 1, 2]
    assert {p.name for p in listed(shards)} == set(daemon.shards)


def listed(folder: Path) -> list[Path]:
    """Return the files of a folder, sorted."""
    return sorted(folder.iterdir())
