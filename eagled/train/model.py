"""The EAGLE-3 draft head: one Llama layer over [token embedding ; hidden state].

Parameter names are those of a served checkpoint (`fc`, `midlayer.*`, `norm`, `lm_head`), so that
an export is a copy. The token embedding is the target's, frozen, and stays outside.

    h0 = fc(aux)                                       aux: three layers of the target, [R, 3*Dt]
    step k = 0..K-1, at every row in parallel, token x one further to the right each step:
        z    = [input_layernorm(embed(x)) ; hidden_norm(h)]                         [Q, 2*D]
        r    = h + o_proj(attend(q(z), keys))           keys of step 0: causal; later: own row only
        h'   = r + mlp(post_attention_layernorm(r))     h' recurs, before the final norm
        out  = norm(h')                                 logits = lm_head(out)

Letters: R rows, Q rows with a wanted loss, D width, Dt target width, N heads, G key-value heads,
E head width, K steps, V target vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from eagled.train.attention import Spans, attend
from eagled.train.fused import fused
from eagled.train.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Rows:
    """A packed batch; row i of a document belongs to its token i.

    Attributes:
        aux: [R, 3*Dt], states of token i.
        tokens: i64 [R], the token after it, x_{i+1}; what step 0 reads.
        positions: i64 [R], i within its document.
        active: i64 [Q], the rows whose loss is wanted at some step; a suffix of each document.
        spans: the documents.
    """

    aux: Tensor
    tokens: Tensor
    positions: Tensor
    active: Tensor
    spans: Spans


class Norm(nn.Module):
    """RMS norm with a learnt scale, computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return x normed, in x's dtype."""
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Projections of the layer; queries, keys and values read 2*D."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.head_dim = g.head_dim
        self.q_proj = nn.Linear(2 * g.hidden_size, g.n_heads * g.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * g.hidden_size, g.n_kv_heads * g.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * g.hidden_size, g.n_kv_heads * g.head_dim, bias=False)
        self.o_proj = nn.Linear(g.n_heads * g.head_dim, g.hidden_size, bias=False)

    def queries(self, z: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Return rotated queries [Q, N, E]."""
        return rotate(self.q_proj(z).view(len(z), -1, self.head_dim), rope)

    def keys_values(self, z: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return rotated keys and values, each [rows, G, E]."""
        k, v = (p(z).view(len(z), -1, self.head_dim) for p in (self.k_proj, self.v_proj))
        return rotate(k, rope), v


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(g.hidden_size, g.intermediate_size, bias=False)
        self.up_proj = nn.Linear(g.hidden_size, g.intermediate_size, bias=False)
        self.down_proj = nn.Linear(g.intermediate_size, g.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [Q, D]."""
        out: Tensor = self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))
        return out


class Layer(nn.Module):
    """The one decoder layer."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.input_layernorm = Norm(g.hidden_size, g.rms_norm_eps)
        self.hidden_norm = Norm(g.hidden_size, g.rms_norm_eps)
        self.self_attn = Attention(g)
        self.post_attention_layernorm = Norm(g.hidden_size, g.rms_norm_eps)
        self.mlp = Mlp(g)

    def joined(self, embeds: Tensor, h: Tensor) -> Tensor:
        """Return what the projections read, [rows, 2*D]: the embedding first."""
        return torch.cat([self.input_layernorm(embeds).to(h.dtype), self.hidden_norm(h)], -1)

    def after(self, h: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output [Q, D] from its input and the attention's output."""
        r = h + self.self_attn.o_proj(attended.flatten(1))
        out: Tensor = r + self.mlp(self.post_attention_layernorm(r))
        return out


class DraftHead(nn.Module):
    """The trainable part of an EAGLE-3 draft."""

    inv_freq: Tensor  # [E / 2]

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        g = self.geometry = geometry
        self.fc = nn.Linear(g.n_aux * g.target_hidden_size, g.hidden_size, bias=False)
        self.midlayer = Layer(g)
        self.norm = Norm(g.hidden_size, g.rms_norm_eps)
        self.lm_head = nn.Linear(g.hidden_size, g.draft_vocab_size, bias=False)
        inv_freq, self.rope_scale = g.rope_frequencies()
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, rows: Rows, embed: Tensor, steps: int) -> list[Tensor]:
        """Return the normed output of each of K steps, [Q, D]; `lm_head` of it are the logits.

        Args:
            rows: the batch.
            embed: the target's embedding table [V, D].
            steps: K.
        """
        layer, active, spans = self.midlayer, rows.active, rows.spans
        h = self.fc(rows.aux)  # [R, D]
        z = layer.joined(F.embedding(rows.tokens, embed), h)  # [R, 2*D]
        k0, v0 = layer.self_attn.keys_values(z, self._rope(rows.positions, h))  # [R, G, E]
        h, z = h[active], z[active]
        own_k = own_v = k0.new_empty(len(h), 0, *k0.shape[1:])  # [Q, 0, G, E]
        outputs = []
        for k in range(steps):
            rope = self._rope(rows.positions[active] + k, h)
            if k:
                z = layer.joined(F.embedding(_ahead(rows.tokens, active + k), embed), h)
                key, value = layer.self_attn.keys_values(z, rope)  # [Q, G, E]
                own_k = torch.cat([own_k, key.unsqueeze(1)], 1)  # [Q, k, G, E]
                own_v = torch.cat([own_v, value.unsqueeze(1)], 1)
            q = layer.self_attn.queries(z, rope)  # [Q, N, E]
            h = layer.after(h, attend(q, k0, v0, (own_k, own_v), spans))  # [Q, D]
            outputs.append(self.norm(h))
        return outputs

    def _rope(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine [rows, 1, E] at positions, in float32."""
        angles = positions[:, None].float() * self.inv_freq.to(like.device)  # [rows, E / 2]
        angles = torch.cat([angles, angles], -1).unsqueeze(1)
        return angles.cos() * self.rope_scale, angles.sin() * self.rope_scale


@fused
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x normed over its last dimension and scaled, in x's dtype."""
    return F.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


@fused
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up."""
    return F.silu(gate) * up


@fused
def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Return x [rows, heads, E] rotated; halves are paired as Llama pairs them."""
    cos, sin = rope
    a, b = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


def _ahead(tokens: Tensor, rows: Tensor) -> Tensor:
    """Return the tokens at `rows`; past the end is any token, those rows carry no loss."""
    return tokens[rows.clamp_max(len(tokens) - 1)]
