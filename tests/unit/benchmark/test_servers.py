"""Settings of speculation, and servers that a benchmark refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagled.benchmark.acceptance import Speculation
from eagled.benchmark.servers import (
    Seen,
    Speculate,
    check_accepted,
    check_served,
    offline_estimate,
    refuse_drafting,
)
from eagled.errors import ArtifactError, ConfigError
from eagled.server.fingerprint import fingerprint
from eagled.server.protocol import ModelInfo, ServerFlags, ServerInfo
from tests.faults import fault_file

URL = "http://127.0.0.1:1"
TARGET = {
    "model_type": "kimi_k2", "num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 163_840,
    "rope_theta": 50_000.0,
}  # fmt: skip


def seen(algorithm: str | None, draft: Path | str | None = None, version: str = "0.5.23") -> Seen:
    """Return what a server with such flags says."""
    info = ServerInfo(version, 10_240, 10_234, 48, 1 << 20, algorithm)
    model = ModelInfo("/models/toy", "toy", "/models/toy")
    flags = ServerFlags(speculative=algorithm, draft=str(draft) if draft else None)
    return Seen(info, flags, fingerprint(info, model, 283))


def folder_of(name: str, into: Path) -> Path:
    """Write the draft of a deployment fault: its config alone."""
    given = json.loads(fault_file(f"deploy/{name}.json").read_text(encoding="utf-8"))
    (into / "config.json").write_text(json.dumps(given["draft_config"]))
    if "trained_on" in given:
        manifest = {"layers": given["trained_on"], "made_from": {}}
        (into / "eagled.json").write_text(json.dumps(manifest))
    return into


def test_settings_take_the_place_of_the_configured_ones() -> None:
    """Other flags beside the draft stay."""
    args = ["--speculative-num-steps", "3", "--speculative-eagle-topk=1", "--x", "y",
            "--speculative-num-draft-tokens", "4"]  # fmt: skip
    found = Speculate.parse("5/4/16")

    assert "3/1/4" == str(Speculate.of_args(args))
    assert "5/4/16" == str(Speculate.of_args(found.into(args)))
    assert ("--x", "y") == found.into(args)[-2:]


@pytest.mark.parametrize("text", ["", "3", "3/1", "3/1/x", "3/0/4", "3/1/4/5", "3/1/9"])
def test_settings_that_are_none_are_refused(text: str) -> None:
    """Also a chain with another number of draft tokens than it has."""
    with pytest.raises(ConfigError):
        Speculate.parse(text)


def test_a_plain_server_must_be_plain() -> None:
    """One that drafts is no baseline."""
    refuse_drafting(seen(None), URL)

    with pytest.raises(ConfigError, match="no plain server"):
        refuse_drafting(seen("EAGLE3", "/d"), URL)


@pytest.mark.fault("F87")
def test_eagle_with_an_eagle3_draft_is_refused_and_explained(tmp_path: Path) -> None:
    """The server of the fault's input: it says what it would feed the draft."""
    folder = folder_of("flag_eagle", tmp_path)
    given = json.loads(fault_file("deploy/flag_eagle.json").read_text(encoding="utf-8"))
    running = seen(given["args"]["speculative_algorithm"], folder)

    with pytest.raises(ConfigError, match=r"7168 wide instead of 21504"):
        check_served(running, URL, folder, TARGET)


@pytest.mark.fault("F90")
def test_a_draft_of_other_layers_is_refused(tmp_path: Path) -> None:
    """The layers that this version of the engine would capture are named."""
    folder = folder_of("layers_plus_one", tmp_path)

    with pytest.raises(ConfigError, match=r"boundaries \[2, 30, 58\]"):
        check_served(seen("EAGLE3", folder), URL, folder, TARGET)


@pytest.mark.parametrize(
    ("running", "draft", "text"),
    [
        (seen(None), None, "does not speculate"),
        (seen("EAGLE3", "/other"), Path("/mine"), "serves the draft /other, not /mine"),
        (seen("EAGLE", "/nowhere"), None, "cannot be read from here"),
    ],
)
def test_a_server_that_is_not_what_it_has_to_be_is_refused(
    running: Seen, draft: Path | None, text: str
) -> None:
    """No draft, another draft, or EAGLE with a draft that cannot be looked at."""
    with pytest.raises(ConfigError, match=text):
        check_served(running, URL, draft, TARGET)


def test_a_draft_on_another_machine_is_a_note() -> None:
    """EAGLE3 with a folder that is not here is measured, and the report says what is not known."""
    (note,) = check_served(seen("EAGLE3", "/nowhere"), URL, None, TARGET)

    assert "was not checked" in note


def test_an_accepted_length_of_one_is_a_fault() -> None:
    """So is a server that tells of no verify step; a length beyond that passes."""
    check_accepted(Speculation(100, 30), URL)

    with pytest.raises(ArtifactError, match=r"1\.00: no guess is right"):
        check_accepted(Speculation(100, 0), URL)
    with pytest.raises(ArtifactError, match="no verify step"):
        check_accepted(Speculation(), URL)


def test_the_training_runs_own_estimate_is_found_beside_the_draft(tmp_path: Path) -> None:
    """`result.json` of the run's folder; a draft from elsewhere has none."""
    (tmp_path / "result.json").write_text('{"after": {"length": 2.5}}')

    assert {"length": 2.5} == offline_estimate(tmp_path / "draft")
    assert offline_estimate(tmp_path / "else" / "draft") is None
