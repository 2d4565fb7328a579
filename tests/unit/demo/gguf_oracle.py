"""A second reader of GGUF files, to compare ours with."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def differences(gguf_path: Path, folder: Path, every: int = 1) -> list[str]:
    """Return the names of tensors in which transformers' dequantised reading differs from ours."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    theirs = load_gguf_checkpoint(str(gguf_path), return_tensors=True, model_to_load=model)
    ours = load_file(folder / "model.safetensors")
    names = sorted(ours)[::every]
    return [n for n in names if not torch.equal(ours[n], theirs["tensors"][n].to(torch.bfloat16))]
