"""Fetching: pip runs for real, on a folder of wheels that the test makes; no network."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from pathlib import Path

import pytest

from eagled.demo import fetch
from eagled.demo.fetch import DemoPackage, PinnedFile, cache_dir, fetch_package
from eagled.errors import DiskError, UnreachableError

CONTENT = b"pinned content\n"
PINNED = PinnedFile("toy_data/inner/rows.txt", hashlib.sha256(CONTENT).hexdigest())
PACKAGE = DemoPackage("toy-data", "1.0", "MIT", (PINNED,))


def make_wheel(folder: Path, content: bytes = CONTENT, name: str = PINNED.path) -> None:
    """Write a wheel of toy-data 1.0 that holds one file and wants a package that nobody has."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "toy_data-1.0-py3-none-any.whl", "w") as wheel:
        info = "toy_data-1.0.dist-info"
        wheel.writestr(name, content)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: toy-data\nVersion: 1.0\nRequires-Dist: absent-pkg\n",
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is pip's only source: proves that pip's own settings apply."""
    for variable in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


def forbid_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test fail if pip would run."""

    def refuse(package: DemoPackage, target: Path) -> None:
        raise AssertionError(f"pip was run for {package} into {target}")

    monkeypatch.setattr(fetch, "_run_pip", refuse)


def test_pinned_file_arrives_alone(index: Path, tmp_path: Path) -> None:
    """Only the pinned files are kept, and a package's requirements are not installed."""
    make_wheel(index)
    files = fetch_package(PACKAGE, tmp_path / "cache")
    folder = files["rows.txt"].parent

    assert {"rows.txt": CONTENT} == {p.name: p.read_bytes() for p in folder.iterdir()}
    assert {"toy-data-1.0", "toy-data-1.0.lock"} == {p.name for p in folder.parent.iterdir()}


def test_second_fetch_runs_no_pip(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cached and intact is not downloaded again."""
    make_wheel(index)
    first = fetch_package(PACKAGE, tmp_path)
    forbid_pip(monkeypatch)

    assert first == fetch_package(PACKAGE, tmp_path)


def test_damaged_cache_is_replaced(
    index: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An altered file is never used: it is fetched again, and the log says so."""
    make_wheel(index)
    path = fetch_package(PACKAGE, tmp_path / "cache")["rows.txt"]
    path.write_bytes(b"altered")
    again = fetch_package(PACKAGE, tmp_path / "cache")["rows.txt"]

    assert CONTENT == again.read_bytes()
    assert "cache is damaged" in caplog.text


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (b"another release", PINNED.path, "is not the release this demo was made for"),
        (CONTENT, "toy_data/elsewhere.txt", "has no file toy_data/inner/rows.txt"),
    ],
)
def test_other_content_is_refused(
    index: Path, tmp_path: Path, content: bytes, name: str, said: str
) -> None:
    """Another content under the same version is refused; nothing of it stays."""
    make_wheel(index, content, name)
    with pytest.raises(UnreachableError, match=said) as caught:
        fetch_package(PACKAGE, tmp_path / "cache")

    assert "eagled demo --model DIR" in str(caught.value)
    assert [] == [p for p in (tmp_path / "cache" / "packages").iterdir() if p.is_dir()]


def test_failed_download_says_what_and_offers_own_model(index: Path, tmp_path: Path) -> None:
    """Without the package the error names it, shows pip's words, and offers `--model`."""
    assert not list(index.iterdir())
    with pytest.raises(UnreachableError) as caught:
        fetch_package(PACKAGE, tmp_path / "cache")
    said = str(caught.value)

    assert said.startswith("pip could not download toy-data==1.0: ")
    assert "No matching distribution found" in said
    assert "eagled demo --model DIR" in said


def test_failed_refetch_keeps_nothing_usable(index: Path, tmp_path: Path) -> None:
    """A damaged file is not silently used when it cannot be fetched again."""
    make_wheel(index)
    fetch_package(PACKAGE, tmp_path / "cache")["rows.txt"].write_bytes(b"altered")
    next(index.iterdir()).unlink()

    with pytest.raises(UnreachableError):
        fetch_package(PACKAGE, tmp_path / "cache")


def test_two_at_once_download_once(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two callers that need the same package, one downloads and both get it."""
    make_wheel(index)
    runs: list[str] = []
    real = fetch._run_pip

    def counted(package: DemoPackage, target: Path) -> None:
        runs.append(package.name)
        real(package, target)

    monkeypatch.setattr(fetch, "_run_pip", counted)
    threads = [threading.Thread(target=fetch_package, args=(PACKAGE, tmp_path)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert ["toy-data"] == runs


def test_cache_that_cannot_be_written(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses the cache is reported as a disk error, not as a network error."""
    make_wheel(index)

    def full(package: DemoPackage, target: Path) -> None:
        raise OSError(28, "No space left on device", f"{target} {package.name}")

    monkeypatch.setattr(fetch, "_run_pip", full)
    with pytest.raises(DiskError, match="make room"):
        fetch_package(PACKAGE, tmp_path / "cache")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`$EAGLED_CACHE` wins over the home folder; empty counts as unset."""
    monkeypatch.setenv("EAGLED_CACHE", str(tmp_path))
    chosen = cache_dir()
    monkeypatch.setenv("EAGLED_CACHE", "")

    assert tmp_path == chosen
    assert Path.home() / ".cache" / "eagled" == cache_dir()


def test_every_pin_is_a_full_hash_with_a_licence() -> None:
    """No package is taken without a declared licence, no file without a SHA-256."""
    files = [f for package in fetch.PACKAGES for f in package.files]

    assert {"Apache-2.0", "MIT"} == {package.licence for package in fetch.PACKAGES}
    assert {64} == {len(f.sha256) for f in files}
    assert len(files) == len({f.name for f in files})
