"""Element-wise functions that may be compiled on a GPU, where their memory traffic is what costs.

Guarantee: off the GPU, and until `compile_fused(True)`, a decorated function is the plain one; the
values are the same up to rounding. Price: the first call of each takes seconds to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
_state = {"on": False}


def compile_fused(on: bool) -> None:  # noqa: FBT001 - a switch
    """Compile decorated functions from now on, or no longer."""
    _state["on"] = on


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that is compiled when it is on a GPU and compiling is on."""
    compiled: list[Callable[P, R]] = []

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _state["on"] or not _on_gpu(args):
            return function(*args, **kwargs)
        if not compiled:
            compiled.append(torch.compile(function, dynamic=True))
        return compiled[0](*args, **kwargs)

    return call


def _on_gpu(args: tuple[Any, ...]) -> bool:
    return any(isinstance(a, torch.Tensor) and a.is_cuda for a in args)
