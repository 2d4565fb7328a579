"""Fixtures for every kind of test; keep it small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_model import make_tiny_model

pytest_plugins = ["tests.faults_plugin"]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random-weight target model folder, shared by the session: read it, never write into it."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
