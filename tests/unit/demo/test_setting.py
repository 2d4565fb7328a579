"""The demo's configuration: what depends on the machine."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from eagled.demo.setting import compute_dtype, config_text


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ("flags\t\t: fpu sse4_2 avx avx2 fma", "float32"),
        ("flags\t\t: fpu avx2 avx512f avx512_bf16", "bfloat16"),
        ("flags\t\t: fpu avx512f amx_bf16 amx_tile", "bfloat16"),
        ("Features\t: fp asimd svebf16 bf16", "bfloat16"),
        ("", "float32"),
    ],
)
def test_bfloat16_is_computed_where_the_processor_has_it(flags: str, dtype: str) -> None:
    """x86 has two sets of instructions for it, Arm one; who says nothing gets float32."""
    assert dtype == compute_dtype(f"processor\t: 0\n{flags}\nbogomips\t: 5000\n")


def test_extraction_computes_in_the_type_of_the_engine() -> None:
    """The states are those of the model that answered."""
    text = config_text(Path("/m"), None, "http://127.0.0.1:1", "float32", [], Path("/x"))

    assert "float32" == tomllib.loads(text)["extract"]["dtype"]
