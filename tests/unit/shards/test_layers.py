"""Layer ids are boundaries, distinct, ascending and inside the model."""

from __future__ import annotations

import json

import pytest

from eagled.errors import ConfigError
from eagled.shards.layers import plan_layers
from tests.faults import fault_file


@pytest.mark.parametrize(("n", "want"), [(61, (2, 30, 58)), (30, (2, 15, 27)), (8, (2, 4, 5))])
def test_default_layers(n: int, want: tuple[int, ...]) -> None:
    """The default is [2, N//2, N-3]."""
    assert plan_layers(n) == want


@pytest.mark.fault("F65")
def test_shallow_target_needs_explicit_layers() -> None:
    """On five layers the default collides: refused at planning, asking for explicit layers."""
    with pytest.raises(ConfigError, match=r"\[2, 2, 2\].*set extract.layers") as info:
        plan_layers(5)

    assert info.value.problems == ("layer 2 is listed more than once",)


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ((2, 30, 62), "layer 62 is outside 0..61"),
        ((-1, 4), "layer -1 is outside 0..61"),
        ((4, 4, 5), "layer 4 is listed more than once"),
        ((30, 2), "layers are not in ascending order (low, mid, high)"),
    ],
)
def test_bad_lists_are_refused(layers: tuple[int, ...], problem: str) -> None:
    """Each fault of an explicit list is named."""
    with pytest.raises(ConfigError) as info:
        plan_layers(61, layers)

    assert info.value.problems == (problem,)


def test_both_ends_are_boundaries() -> None:
    """0 (embeddings) and N (after the last layer) are legal ids."""
    assert plan_layers(61, (0, 61)) == (0, 61)


def test_captured_ids_are_those_written_down() -> None:
    """The plan for 61 layers is what the fault's file captures, and not its output numbering."""
    case = json.loads(fault_file("hidden/layer_offset.json").read_text(encoding="utf-8"))

    planned = list(plan_layers(case["num_layers"]))
    assert planned == case["capture_before"]
    assert [k - 1 for k in planned] == case["trained_on_outputs_of"]
