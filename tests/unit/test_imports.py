"""What loads what: the daemon and the command line stay light, and imports point one way."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "eagled"
HEAVY = {"torch", "transformers", "datasets"}
DAEMON_SIDE = (
    "eagled.daemon",
    "eagled.cli",
    "eagled.control.client",
    "eagled.control.server",
    "eagled.store",
    "eagled.server",
    "eagled.workers.generate",
    "eagled.workers.merge",
    "eagled.plan",
    "eagled.doctor",
    "eagled.tui.launch",
)
# who may not import whom, by the first matching prefix; imports inside functions count too
FORBIDDEN = {
    "eagled.tui": ("eagled.daemon", "eagled.store", "eagled.server", "eagled.workers"),
    "eagled.store": (
        "eagled.daemon", "eagled.workers", "eagled.control", "eagled.cli", "eagled.tui",
        "eagled.server", "eagled.shards", "eagled.text",
    ),
    "eagled.server": ("eagled.daemon", "eagled.workers", "eagled.control", "eagled.cli",
                      "eagled.tui", "eagled.store", "eagled.text", "eagled.shards"),
    "eagled.shards": ("eagled.daemon", "eagled.workers", "eagled.control", "eagled.cli",
                      "eagled.tui", "eagled.store", "eagled.server"),
    "eagled.text": ("eagled.daemon", "eagled.workers", "eagled.control", "eagled.cli",
                    "eagled.tui", "eagled.server", "eagled.shards"),
    "eagled.readers": ("eagled.daemon", "eagled.workers", "eagled.control", "eagled.store"),
    "eagled.workers": ("eagled.daemon", "eagled.cli", "eagled.tui", "eagled.commands"),
    "eagled.engine": ("eagled.daemon", "eagled.workers", "eagled.control", "eagled.store"),
    "eagled.control": ("eagled.daemon", "eagled.workers", "eagled.cli", "eagled.tui"),
    "eagled.types": ("eagled.config", "eagled.store", "eagled.server", "eagled.control"),
    "eagled.errors": ("eagled.",),
}  # fmt: skip
BROUGHT_BY = {
    "annotated_types": "pydantic", "jinja2": "torch", "rich": "textual",
    "tokenizers": "transformers", "yarl": "aiohttp",
}  # fmt: skip
# what an installation may lack, and what brings it
NOT_ALWAYS = {"matplotlib": "the extra `plots`", "sglang": "an environment of its own"}
CORE_MAY_NOT = ("textual",)  # outside the terminal UI


@pytest.mark.parametrize("module", DAEMON_SIDE)
def test_the_daemon_side_loads_no_model_library(module: str) -> None:
    """Importing a module of the daemon's side brings in neither torch nor transformers."""
    code = f"import sys, {module}; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ("[]\n", 0) == (done.stdout, done.returncode), done.stderr


def test_the_screen_loads_neither_aiohttp_nor_numpy() -> None:
    """The first frame comes fast: what `eagled top` asks with is the standard library."""
    code = (
        "import sys, eagled.tui.launch, eagled.tui.browse;"
        "print(sorted({'pydantic', 'aiohttp', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ("[]\n", 0) == (done.stdout, done.returncode), done.stderr


def test_a_status_loads_neither_pydantic_nor_aiohttp() -> None:
    """The command line starts fast: what `eagled status` needs is the standard library."""
    code = (
        "import sys, eagled.cli, eagled.control.call, eagled.socket_path;"
        "print(sorted({'pydantic', 'aiohttp', 'numpy', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ("[]\n", 0) == (done.stdout, done.returncode), done.stderr


def _module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _typing_only(tree: ast.Module) -> set[ast.AST]:
    """Return the nodes below `if TYPE_CHECKING:`, which import nothing at run time."""
    blocks = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    )
    return {inner for block in blocks for stmt in block.body for inner in ast.walk(stmt)}


def _imports(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = _typing_only(tree)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix if prefix.endswith(".") else prefix + ".")


def _breaches(path: Path) -> Iterator[str]:
    module = _module(path)
    for layer, forbidden in FORBIDDEN.items():
        if not _within(module, layer):
            continue
        for name in _imports(path):
            if any(_within(name, prefix) for prefix in forbidden):
                yield f"{module} imports {name}"
    if not _within(module, "eagled.tui"):
        for name in _imports(path):
            if name.split(".")[0] in CORE_MAY_NOT:
                yield f"{module} imports {name}"


def test_imports_point_one_way() -> None:
    """No module imports one of a layer above its own."""
    found = [breach for path in sorted(PACKAGE.rglob("*.py")) for breach in _breaches(path)]

    assert [] == found


def _names(requirements: Iterable[str]) -> set[str]:
    """Return the packages of requirement lines that hold without an extra, as imports say them."""
    plain = (line for line in requirements if "extra ==" not in line)
    return {re.split(r"[^\w.-]", line)[0].lower().replace("-", "_") for line in plain}


def test_a_plain_installation_brings_every_package_that_is_imported() -> None:
    """What `pip install eagled` names covers every import, at the top or inside a function."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    named = _names(project["dependencies"])
    imported = {name.split(".")[0] for path in PACKAGE.rglob("*.py") for name in _imports(path)}
    others = imported - set(sys.stdlib_module_names) - {PACKAGE.name}

    assert set(BROUGHT_BY) | set(NOT_ALWAYS) == others - named
    for name, by in BROUGHT_BY.items():
        assert by in named
        assert name in _names(metadata.requires(by) or ())


def test_the_check_of_directions_can_fail(tmp_path: Path) -> None:
    """A module of the store that imported the daemon would be found, even inside a function."""
    path = PACKAGE / "store" / "store.py"
    code = path.read_text(encoding="utf-8") + "\ndef late():\n    import eagled.daemon\n"
    copy = tmp_path / "eagled" / "store" / "store.py"
    copy.parent.mkdir(parents=True)
    copy.write_text(code)

    assert "eagled.daemon" in set(_imports(copy))
    assert _within("eagled.daemon", "eagled.daemon")
    assert not _within("eagled.daemonic", "eagled.daemon")
