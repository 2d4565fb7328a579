"""An EAGLE-3 draft as an engine runs it, from its folder alone; shares no code with eagled.

Written from the description of the format: `fc` over the aux states, one layer over the normed
embedding beside the normed state, keys of the guesses behind those of the text, output head over
the draft vocabulary, `d2t` offsets. Everything is made anew at each call; nothing is cached.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


@dataclass(frozen=True)
class IndependentDraft:
    """Weights by their name without the layer's prefix, the config, and the target's embedding."""

    weights: Mapping[str, Tensor]
    config: Mapping[str, Any]
    embed: Tensor
    steps: int

    @classmethod
    def load(cls, folder: Path, embed: Tensor, steps: int) -> IndependentDraft:
        """Read a folder in SGLang's or vLLM's layout."""
        raw = load_file(folder / "model.safetensors")
        weights = {k.removeprefix("midlayer.").removeprefix("layers.0."): v for k, v in raw.items()}
        return cls(weights, json.loads((folder / "config.json").read_text()), embed, steps)

    @torch.no_grad()
    def guesses(self, ids: Sequence[int], aux: Tensor) -> list[int]:
        """Return the chain of guesses behind `ids`; `aux` has the states of all but the last."""
        h = aux @ self._w("fc").T  # row i: states of token i with token i + 1
        tokens, keys, values, found = list(ids[1:]), [], [], []
        for step in range(self.steps):
            first = 0 if step == 0 else len(tokens) - 1
            out = []
            for i in range(first, len(tokens)):
                z = torch.cat(
                    [
                        self._norm(self.embed[tokens[i]].float(), "input_layernorm"),
                        self._norm(h[i - first], "hidden_norm"),
                    ]
                )
                keys.append(self._turned(self._heads("k_proj", z), i))
                values.append(self._heads("v_proj", z))
                out.append(self._layer(h[i - first], z, i, keys, values))
            h = torch.stack(out[-1:])  # what recurs is the state before the final norm
            logits = self._norm(h[0], "norm") @ self._w("lm_head").T
            at = int(logits.argmax())
            found.append(at + int(self.weights["d2t"][at]))
            tokens.append(found[-1])
        return found

    def _layer(
        self, h: Tensor, z: Tensor, position: int, keys: list[Tensor], values: list[Tensor]
    ) -> Tensor:
        q = self._turned(self._heads("q_proj", z), position)  # [N, E]
        share = len(q) // len(keys[0])
        k = torch.stack(keys).repeat_interleave(share, 1)  # [T, N, E]
        v = torch.stack(values).repeat_interleave(share, 1)
        weight = torch.einsum("ne,tne->nt", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
        attended = torch.einsum("nt,tne->ne", weight, v).flatten()
        r = h + self._w("self_attn.o_proj") @ attended
        x = self._norm(r, "post_attention_layernorm")
        gate = torch.nn.functional.silu(self._w("mlp.gate_proj") @ x)
        out: Tensor = r + self._w("mlp.down_proj") @ (gate * (self._w("mlp.up_proj") @ x))
        return out

    def _w(self, name: str) -> Tensor:
        return self.weights[f"{name}.weight"]

    def _norm(self, x: Tensor, name: str) -> Tensor:
        eps = float(self.config["rms_norm_eps"])
        size = (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        return x * size * self._w(name)

    def _heads(self, name: str, z: Tensor) -> Tensor:
        return (self._w(f"self_attn.{name}") @ z).view(-1, self.config["head_dim"])

    def _turned(self, x: Tensor, position: int) -> Tensor:
        half = x.shape[-1] // 2
        turn = position * self.config["rope_theta"] ** (-torch.arange(half) / half)
        a, b = x[:, :half], x[:, half:]
        return torch.cat([a * turn.cos() - b * turn.sin(), b * turn.cos() + a * turn.sin()], -1)
