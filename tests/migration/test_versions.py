"""Two versions of eagled meet, at the socket or over a file: both are named, nothing changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from eagled.control import call
from eagled.control.client import ControlClient
from eagled.errors import ArtifactError, UsageError
from eagled.shards.format import read_shard_header
from tests.integration.test_control_api import serving
from tests.unit.shards.helpers import sample, write_shard

SIDES = {
    "old daemon, new client": ("eagled.control.call", "eagled.control.client"),
    "new daemon, old client": ("eagled.control.protocol", "eagled.control.calls"),
}


@pytest.mark.parametrize("newer", SIDES)
async def test_a_client_of_another_version_is_refused_with_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer: str
) -> None:
    """Whichever side is newer, each of our clients says so as a usage error (exit 2)."""
    for module in SIDES[newer]:
        monkeypatch.setattr(f"{module}.API_VERSION", 2)
    told = []
    async with serving(tmp_path) as rig:
        for path in ("/v1/status", "/v1/pause"):
            verb = call.get if path == "/v1/status" else call.post
            with pytest.raises(UsageError) as caught:
                await asyncio.to_thread(verb, rig.socket, path)
            told.append(str(caught.value))
        async with ControlClient(rig.socket) as client:
            with pytest.raises(UsageError) as caught:
                await client.post("/v1/pause")
            told.append(str(caught.value))

    versions = ("1", "2") if "old daemon" in newer else ("2", "1")
    expected = "the daemon speaks control API {}, the caller speaks '{}'".format(*versions)
    assert [True] * 3 == [text.startswith(expected) for text in told], told
    assert [] == rig.actions.called


def _of_the_future(folder: Path, tag: str, *, strange: bool) -> Path:
    """Write a shard, give it another format's tag, and perhaps other tensors."""
    path = write_shard(folder, [sample(1), sample(2)]).path
    with safe_open(path, framework="np") as file:
        metadata = {**file.metadata(), "format": tag}
    save_file({"ids" if strange else "input_ids": np.zeros(4, np.int32)}, path, metadata)
    return path


@pytest.mark.parametrize("strange", [False, True])
def test_a_shard_of_a_newer_version_is_refused_by_its_format(
    tmp_path: Path, *, strange: bool
) -> None:
    """The message names both formats, whatever the tensors are: a header is read first by all."""
    path = _of_the_future(tmp_path, "eagled-shard/9", strange=strange)
    told = "format is 'eagled-shard/9', this version .*reads .*eagled-shard/1.*eagled-shard/2"

    with pytest.raises(ArtifactError, match=told):
        read_shard_header(path)
