"""Fingerprints, model folders and resolved sampling."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from eagled.config import Config, SamplingConfig
from eagled.errors import ConfigError, FingerprintError
from eagled.sampling import ResolvedSampling, model_defaults, resolve_sampling
from eagled.server.fingerprint import Fingerprint, from_json, refuse_other
from eagled.server.model_folder import ModelFacts, read_model_facts

RUN = Fingerprint("/m/a", "a", "/m/a", 1000, 8192, 8186, "0.5.23", None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_path", "/m/b"),
        ("served_name", "b"),
        ("tokenizer_path", "/m/t"),
        ("vocab_size", 999),
        ("context", 4096),
    ],
)
def test_another_identity_is_refused_with_both_values(field: str, value: object) -> None:
    """Each of these makes it another server; the message names what is and what was."""
    other = replace(RUN, **{field: value})  # type: ignore[arg-type]  # one field of each type

    with pytest.raises(FingerprintError) as caught:
        refuse_other(RUN, other, "http://x")
    assert repr(str(value)) in str(caught.value)
    assert repr(str(getattr(RUN, field))) in str(caught.value)


@pytest.mark.parametrize(
    "other",
    [
        RUN,
        replace(RUN, version="0.5.24"),
        replace(RUN, speculative="EAGLE3"),
        replace(RUN, max_input=4000),
        replace(RUN, context=None),
    ],
)
def test_an_update_of_the_same_server_is_not_refused(other: Fingerprint) -> None:
    """Version, speculation and request limit may change; unknown equals everything."""
    refuse_other(RUN, other, "http://x")


def test_the_short_hash_tells_every_field_apart() -> None:
    """Answers of an updated server carry another hash."""
    hashes = {RUN.short, replace(RUN, version="1").short, replace(RUN, speculative="EAGLE3").short}

    assert len(hashes) == 3
    assert {len(h) for h in hashes} == {12}


def test_a_stored_fingerprint_comes_back() -> None:
    """What is stored is what is compared; garbage is an error, not None."""
    assert from_json(RUN.to_json()) == RUN
    with pytest.raises(FingerprintError):
        from_json("{}")


@pytest.mark.parametrize(
    "config",
    [
        {"vocab_size": 100, "max_position_embeddings": 64},
        {"text_config": {"vocab_size": 100, "max_position_embeddings": 64}, "vocab_size": 3},
    ],
)
def test_model_facts_are_read_from_the_folder(tmp_path: Path, config: dict[str, object]) -> None:
    """Nested text configurations win over the outer one."""
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert read_model_facts(tmp_path) == ModelFacts(100, 64)


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"vocab_size": "100"}'])
def test_a_model_folder_without_vocabulary_is_refused(tmp_path: Path, text: str) -> None:
    """Without its size ids cannot be checked before they are sent."""
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(ConfigError):
        read_model_facts(tmp_path)


def config_with(sampling: dict[str, object], dataset: dict[str, object] | None) -> Config:
    """Return a configuration with one dataset called d."""
    own = {} if dataset is None else {"sampling": dataset}
    return Config.model_validate(
        {
            "target": {"model": "m"},
            "sampling": sampling,
            "datasets": [{"name": "d", "source": "s"} | own],
        }
    )


def test_dataset_wins_over_general_over_the_models_own() -> None:
    """Each field is taken from the first place that names it."""
    config = config_with({"top_p": 0.9, "seed": 5, "max_new_tokens": 77}, {"temperature": 0.3})
    defaults = SamplingConfig(temperature=0.6, top_p=0.95, top_k=20)

    assert resolve_sampling(config, "d", defaults) == ResolvedSampling(
        temperature=0.3, top_p=0.9, top_k=20, min_p=0.0, max_new_tokens=77, seed=5
    )


def test_what_nobody_names_is_off() -> None:
    """No default of the server's own ever decides."""
    sampling = resolve_sampling(config_with({}, None), "d", SamplingConfig())

    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, -1)
    assert sampling.seed_of(b"0123456789abcdef") is None


@pytest.mark.parametrize(
    ("saved", "temperature", "top_k"),
    [
        ({"temperature": 0.6, "top_k": 20, "do_sample": True}, 0.6, 20),
        ({"do_sample": False}, 0.0, None),
        ({}, None, None),
    ],
)
def test_the_models_own_sampling_is_read(
    tmp_path: Path, saved: dict[str, object], temperature: float | None, top_k: int | None
) -> None:
    """generation_config.json is read as plain JSON."""
    (tmp_path / "generation_config.json").write_text(json.dumps(saved))

    found = model_defaults(tmp_path)

    assert (found.temperature, found.top_k) == (temperature, top_k)


def test_a_missing_generation_config_is_empty_and_a_bad_one_refused(tmp_path: Path) -> None:
    """Absent is fine; out of range is a configuration error."""
    assert model_defaults(tmp_path) == SamplingConfig()
    (tmp_path / "generation_config.json").write_text('{"temperature": -1}')
    with pytest.raises(ConfigError):
        model_defaults(tmp_path)


def test_seeds_differ_by_sample_and_are_the_same_again() -> None:
    """The seed of a sample depends on its identity only."""
    sampling = ResolvedSampling(1.0, 1.0, -1, 0.0, 10, seed=4)
    one, two = bytes(range(16)), bytes(range(1, 17))

    assert sampling.seed_of(one) == 4 + 0x03020100
    assert sampling.seed_of(one) != sampling.seed_of(two)


def test_json_members_say_everything() -> None:
    """Every sampling field is sent, and markers are kept."""
    members = orjson.loads(
        b"{" + ResolvedSampling(0.5, 0.9, 7, 0.1, 10, None).json_members() + b"}"
    )

    assert members == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
