"""Nothing that eagled reads can run code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "eagled"
# marshal between the two ends of a private socket pair: parent and child, one interpreter
ALLOWED = {("sglang_plugin/wire.py", "marshal")}
FORBIDDEN = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def _unsafe_calls(tree: ast.AST) -> Iterator[str]:
    """Yield calls that unpickle: torch.load without weights_only, numpy.load with allow_pickle."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        given = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
        owner = getattr(node.func.value, "id", "")
        if (owner, node.func.attr) == ("torch", "load") and given.get("weights_only") is not True:
            yield f"torch.load at line {node.lineno}"
        if given.get("allow_pickle"):
            yield f"allow_pickle at line {node.lineno}"


def test_no_module_unpickles() -> None:
    """No pickle and its kin, no torch.load of anything but weights, no numpy objects."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bad = [*(FORBIDDEN & set(_imports(tree))), *_unsafe_calls(tree)]
        name = str(path.relative_to(ROOT))
        found += [f"{name}: {what}" for what in bad if (name, what) not in ALLOWED]

    assert [] == found


def test_the_search_can_find_something() -> None:
    """Each forbidden way is seen."""
    tree = ast.parse(
        "import pickle\nfrom dill import loads\ntorch.load(p)\nnp.load(p, allow_pickle=True)\n"
        "torch.load(p, weights_only=True)\n"
    )

    assert {"pickle", "dill"} == FORBIDDEN & set(_imports(tree))
    assert ["torch.load at line 3", "allow_pickle at line 4"] == list(_unsafe_calls(tree))
