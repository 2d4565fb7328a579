"""Models for the runs: real small ones that transformers can check, and shapes without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TINY_LAYERS = (2, 4, 5)  # boundaries of the 8-layer models
QWEN3_8B_LAYERS = (2, 18, 33)
KIMI_LAYERS = (2, 4, 7)
KIMI_N = 10


def tiny(folder: Path) -> Path:
    """Write a random bf16 Qwen3 of 8 layers and width 256."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    if (folder / "config.json").exists():
        return folder
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def qwen3_8b_shape(folder: Path, *, dry: bool) -> Path:
    """Write the config of Qwen3-8B (on a dry run: of a tiny one); weights are dummies."""
    big = {
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
    }
    small = {
        "head_dim": 32,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_hidden_layers": 36,
        "num_key_value_heads": 4,
        "vocab_size": 2048,
    }
    common: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(common | (small if dry else big)))
    return folder


def kimi_shape(folder: Path, *, dry: bool) -> Path:
    """Write a DeepSeek-V3 model of Kimi's width with real random weights: MLA, all layers dense."""
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    if (folder / "config.json").exists():
        return folder
    width = 256 if dry else 7168
    config = DeepseekV3Config(
        vocab_size=2048 if dry else 32768,
        hidden_size=width,
        intermediate_size=512 if dry else 18432,
        moe_intermediate_size=64,
        num_hidden_layers=KIMI_N,
        first_k_dense_replace=KIMI_N,
        num_attention_heads=4 if dry else 64,
        num_key_value_heads=4 if dry else 64,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        q_lora_rank=64 if dry else 1536,
        kv_lora_rank=64 if dry else 512,
        qk_rope_head_dim=32 if dry else 64,
        qk_nope_head_dim=32 if dry else 128,
        v_head_dim=32 if dry else 128,
        max_position_embeddings=16384,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with torch.device("cpu" if dry else "cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = DeepseekV3ForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    del model
    written = json.loads((folder / "config.json").read_text())
    more = {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    (folder / "config.json").write_text(json.dumps(written | more))  # SGLang reads these too
    if not dry:
        torch.cuda.empty_cache()
    return folder
