"""Which device a process takes."""

from __future__ import annotations

import pytest
import torch

from eagled.errors import ConfigError
from eagled.train.team import Team


@pytest.fixture(name="chosen")
def _chosen(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Pretend that there are GPUs; what is chosen of them is written down.

    The real `set_device` of torch 2.11 takes only a device with a number.
    """
    chosen: list[torch.device] = []

    def set_device(device: torch.device) -> None:
        if device.index is None:
            raise ValueError(f"Expected a torch.device with a specified index, but got:{device}")
        chosen.append(device)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    return chosen


@pytest.mark.parametrize(("asked", "number"), [("auto", 0), ("cuda", 0), ("cuda:3", 3)])
def test_a_gpu_is_named_by_its_number(asked: str, number: int, chosen: list[torch.device]) -> None:
    """Alone, `auto` and `cuda` are the first GPU."""
    team = Team.join(asked)
    assert [torch.device("cuda", number)] == chosen == [team.device]
    assert team.leads


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to set."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"train\.device = 'cuda:1'.*cpu or auto"):
        Team.join("cuda:1")
