"""Two servers a session, started only where SGLang's environment is given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sglang.kit import Reference, Server, install_plugin, make_model, serving


@pytest.fixture(scope="session")
def venv() -> Path:
    """SGLang's environment; see `make test-sglang`."""
    given = os.environ.get("EAGLED_SGLANG_VENV")
    if not given:
        pytest.skip("EAGLED_SGLANG_VENV is not set (make test-sglang sets it)")
    return Path(given)


@pytest.fixture(scope="session")
def site(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin, installed by pip."""
    del venv
    return install_plugin(tmp_path_factory.mktemp("site") / "site")


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3."""
    return make_model("qwen3", tmp_path_factory.mktemp("model") / "qwen3")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama."""
    return make_model("llama", tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture(scope="module")
def server(
    venv: Path, site: Path, qwen3: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Overlap scheduling, chunks of 256 tokens, files synced."""
    folder = tmp_path_factory.mktemp("overlap")
    with serving(venv, site, qwen3, folder, "--chunked-prefill-size", "256") as server:
        yield server


@pytest.fixture(scope="module")
def tight(
    venv: Path, site: Path, llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """No overlap, mixed batches, and too little memory for what runs: requests are retracted."""
    folder = tmp_path_factory.mktemp("tight")
    flags = (
        *("--disable-overlap-schedule", "--enable-mixed-chunk", "--chunked-prefill-size", "128"),
        *("--max-total-tokens", "1200", "--schedule-conservativeness", "0.1"),
    )
    with serving(venv, site, llama, folder, *flags) as server:
        yield server


@pytest.fixture(scope="session")
def qwen3_reference(qwen3: Path) -> Reference:
    """Transformers with the Qwen3."""
    return Reference(qwen3)


@pytest.fixture(scope="session")
def llama_reference(llama: Path) -> Reference:
    """Transformers with the Llama."""
    return Reference(llama)
