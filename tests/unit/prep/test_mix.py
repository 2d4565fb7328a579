"""The mixes of `eagled init --mix`: configurations that load, with the counts they promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagled.config_load import load_config
from eagled.config_template import write_template
from eagled.errors import UsageError
from eagled.mix import MIXES, mix_named
from eagled.types import Mode


def test_every_mix_is_a_configuration_that_loads(tmp_path: Path) -> None:
    """The file of each mix has its datasets, all with counts, and comments on every one."""
    for name, mix in MIXES.items():
        path = tmp_path / f"{name}.toml"
        write_template(path, "some/model", mix)
        datasets = load_config(path).config.datasets

        assert [e.name for group in mix.groups for e in group.entries] == [d.name for d in datasets]
        assert mix.count == sum(d.count for d in datasets)
        blocks = path.read_text(encoding="utf-8").split("\n[[datasets]]\n")[1:]
        assert all(block.startswith("# ") for block in blocks)


def test_the_agentic_mix_is_as_documented() -> None:
    """22,800 of agents, 25,000 each of code, reasoning and chat, 2,000 of Kimi."""
    mix = mix_named("agentic")

    assert [22_800, 25_000, 25_000, 25_000, 2_000] == [group.count for group in mix.groups]
    assert 99_800 == mix.count
    native = [e.name for group in mix.groups for e in group.entries if e.mode is Mode.NATIVE]
    assert ["deepswe", "kimi-2000x"] == native


def test_an_unknown_mix_is_refused() -> None:
    """The message lists those there are."""
    with pytest.raises(UsageError, match="agentic, perfectblend, chat"):
        mix_named("other")
