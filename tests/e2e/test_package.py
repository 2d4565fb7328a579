"""The built packages: what is in them, and that an installation works where no checkout is.

The environment is fresh and holds the wheel only; what eagled depends on comes from the
environment that runs the tests, behind it on the path.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from eagled import __version__
from eagled.build_info import commit as known_commit
from tests.daemon_kit import ROOT, clean_env

LONGEST_S = 300
NO_DATA = ("__pycache__", ".pyc", "_commit.txt")


def _run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command without a way back to the checkout."""
    clean = {**clean_env(**env), "PYTHONPATH": ""}
    return subprocess.run(
        command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and sdist, built from this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    done = _run(sys.executable, "-m", "hatchling", "build", "-d", str(folder), cwd=ROOT)
    assert 0 == done.returncode, done.stderr
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `eagled` of a fresh environment into which the wheel was installed."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, symlinks=True)
    (wheel,) = built.glob("*.whl")
    python = str(folder / "bin/python")
    done = _run(
        sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index",
        "--no-compile", "--disable-pip-version-check", str(wheel), cwd=folder,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin/eagled"


@pytest.fixture(scope="module")
def configured(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own in which the installed program has written a configuration."""
    folder = tmp_path_factory.mktemp("run")
    done = _run(str(installed), "init", "--model", "/models/m", cwd=folder)
    assert 0 == done.returncode, done.stderr
    return folder


def _data_files() -> set[str]:
    """Return the files of the package that are no code, as the checkout has them."""
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / "eagled").rglob("*")
        if path.is_file() and path.suffix != ".py" and not str(path).endswith(NO_DATA)
    }


def _built_from(built: Path) -> str:
    """Return the commit that the wheel names; empty when it was built where git knows none."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        named = "eagled/_commit.txt" in file.namelist()
        return file.read("eagled/_commit.txt").decode().strip() if named else ""


def test_the_wheel_holds_all_that_runs_and_nothing_else(built: Path) -> None:
    """SQL, templates, styles and units are in it; tests, benches and work folders are not."""
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    units = {f"eagled/systemd/{path.name}" for path in (ROOT / "systemd").iterdir()}
    tops = {name.split("/")[0] for name in names}

    assert set() == _data_files() - names
    assert set() == units - names
    assert {"eagled", f"eagled-{__version__}.dist-info"} == tops
    assert "eagled/sql/migrations/0001_initial.sql" in names


def test_the_sdist_holds_what_building_and_testing_take(built: Path) -> None:
    """Sources, units, tests and pages; no environment, no cache, no state."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    wanted = {
        "pyproject.toml", "hatch_build.py", "constraints.txt", "Makefile", "README.md", "LICENSE",
        "eagled/cli.py", "systemd/eagled@.service", "tests/e2e/test_package.py", "docs/runbook.md",
    }  # fmt: skip

    assert set() == wanted - names
    assert set() == _data_files() - names
    assert [] == [n for n in names if n.startswith((".", "state/q")) and n != ".gitignore"]


def test_an_installation_says_what_it_was_built_from(
    built: Path, installed: Path, tmp_path: Path
) -> None:
    """The version has the commit of the checkout, although there is none where it runs."""
    commit = _built_from(built)
    done = _run(str(installed), "--version", cwd=tmp_path)
    made = f"commit {commit[:12]}, " if commit else ""

    assert commit or not known_commit(), "a checkout's commit goes into its packages"
    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.startswith(f"eagled {__version__} ({made}control API ")


def test_an_installation_makes_and_reads_a_configuration(installed: Path, configured: Path) -> None:
    """`init` has written the commented file; `config` reads it and shows what is set."""
    read = _run(str(installed), "config", "--show", "--json", cwd=configured)

    assert 0 == read.returncode, read.stderr
    assert "/models/m" in read.stdout


def test_an_installation_brings_its_units_and_knows_its_own_place(
    installed: Path, configured: Path
) -> None:
    """The units come from the wheel, and run the program of this environment."""
    done = _run(str(installed), "service", "install", "r1", "--root", "root", cwd=configured)
    drop_in = configured / "root/etc/systemd/system/eagled@r1.service.d/10-eagled.conf"

    assert 0 == done.returncode, done.stderr
    assert f"Environment=PATH={installed.parent}:" in drop_in.read_text()
    assert (drop_in.parents[1] / "eagled@.service").is_file()


def test_an_installation_completes_in_a_shell(installed: Path, tmp_path: Path) -> None:
    """What `eagled --install-completion` puts into bash finds commands and options."""
    found = [
        _run(
            str(installed), cwd=tmp_path, _EAGLED_COMPLETE="complete_bash", COMP_WORDS=words,
            COMP_CWORD=str(words.count(" ")),
        ).stdout.split()
        for words in ("eagled sta", "eagled events --sin")
    ]  # fmt: skip

    assert [["status"], ["--since"]] == found
    assert os.access(installed, os.X_OK)
