"""No name that comes from outside leaves the state directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagled.config_load import load_config
from eagled.control.client import ControlClient
from eagled.errors import ConfigError, EagledError
from eagled.types import ShardRecord
from tests.integration.test_control_api import serving

OUTSIDE = ["../x", "a/b", "/etc/passwd", "..", ".hidden", "", "a\0b", "x\n", "-rf"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("table", ['[[datasets]]\nsource = "s"\nname = "{}"', '[lanes."{}"]'])
def test_names_of_the_configuration_are_names_of_folders(
    tmp_path: Path, name: str, table: str
) -> None:
    """A dataset and a lane are named by letters, digits, dots and dashes, or not at all."""
    escaped = name.encode("unicode_escape").decode().replace("\\x", "\\u00")
    text = '[target]\nmodel = "m"\n' + table.format(escaped) + "\n"
    (tmp_path / "eagled.toml").write_text(text)

    with pytest.raises(ConfigError):
        load_config(tmp_path / "eagled.toml", environ={})


@pytest.mark.parametrize("name", [*(f"{n}.safetensors" for n in OUTSIDE if n != ".."), "q.db"])
async def test_a_worker_cannot_name_a_file_elsewhere(tmp_path: Path, name: str) -> None:
    """A shard that would be another file of the state directory, or of the system, is refused."""
    record = ShardRecord(name, "ab" * 32, 10, 2, 10, "m")
    async with serving(tmp_path) as rig, ControlClient(rig.socket) as client:
        with pytest.raises(EagledError, match=r"shard\.name"):
            await client.commit_shard(record, [])

        assert [] == await rig.store.shards()
