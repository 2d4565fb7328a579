"""A complete model folder that is made in a second, for tests that need a real target.

Guarantee: the folder loads with `AutoModelForCausalLM` and `AutoTokenizer`; the same seed gives
the same bytes on every run. The weights are random, but not flat: ids that a test's answer should
not hold by chance (markers, bytes outside printable ASCII) are made very unlikely, and the stop id
likely enough that sampled answers end by themselves after some dozen tokens. So no random answer
ever closes a think block: with `thinking=True` every answer is an unclosed one.
Price: nothing is learnt; the text is letter salad.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

_Floats = npt.NDArray[np.float32]

_SOURCES = Path(__file__).parent / "data" / "tiny"

BOS, EOS = "<|im_start|>", "<|im_end|>"
MARKERS = (
    BOS, EOS, "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>",
)  # fmt: skip
_VOCAB_WISH = 1000
_LAYERS = 8  # the fewest for which [2, N // 2, N - 3] are three layers well apart
_WIDTH = 64
_HEADS, _KV_HEADS, _HEAD_WIDTH = 4, 2, 16
_FFN = 128
_POSITIONS = 2048

_SPREAD = 0.15  # standard deviation of every matrix: about 1 / sqrt(width), so that context counts
_HEAD_SPREAD = 0.15
_CONSTANT = 8.0  # dimension 0 of each embedding: survives the final norm, so it works as a bias
_STOP_BIAS = 1.6  # sampled answers: a few to a hundred tokens
_NEVER_BIAS = -20.0  # times about 1.5, against logits of about +-4


def make_tiny_model(folder: Path, *, seed: int = 0) -> Path:
    """Write a random 8-layer Llama with tokenizer and chat template into `folder`.

    Returns:
        `folder`, which is created if needed. float32, untied, vocabulary exactly `len(tokenizer)`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (_SOURCES / "chat_template.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())
    _write_json(folder / "config.json", _model_config(tokenizer))
    _write_json(folder / "generation_config.json", _generation_config(tokenizer))
    save_file(_weights(tokenizer, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _train_tokenizer() -> Tokenizer:
    """Return a byte-level BPE whose first ids are the markers."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=_VOCAB_WISH,
        min_frequency=1,
        special_tokens=list(MARKERS),
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    text = (_SOURCES / "corpus.txt").read_text(encoding="utf-8")
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": _POSITIONS,
    }


def _model_config(tokenizer: Tokenizer) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _WIDTH,
        "intermediate_size": _FFN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_WIDTH,
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": _POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "dtype": "float32",
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(EOS),
    }


def _generation_config(tokenizer: Tokenizer) -> dict[str, object]:
    return {
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(EOS),
        "pad_token_id": tokenizer.token_to_id(EOS),
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.95,
    }


def _weights(tokenizer: Tokenizer, seed: int) -> dict[str, _Floats]:
    """Return all tensors of the model by their Hugging Face names, float32."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, spread: float = _SPREAD) -> _Floats:
        return rng.normal(0.0, spread, (rows, columns)).astype(np.float32)

    vocab = tokenizer.get_vocab_size()
    embed = matrix(vocab, _WIDTH, 1.0)
    embed[:, 0] = _CONSTANT
    head = matrix(vocab, _WIDTH, _HEAD_SPREAD)
    head[:, 0] = _biases(tokenizer)
    tensors = {
        "model.embed_tokens.weight": embed,
        "lm_head.weight": head,
        "model.norm.weight": np.ones(_WIDTH, np.float32),
    }
    shapes = {
        "self_attn.q_proj": (_HEADS * _HEAD_WIDTH, _WIDTH),
        "self_attn.k_proj": (_KV_HEADS * _HEAD_WIDTH, _WIDTH),
        "self_attn.v_proj": (_KV_HEADS * _HEAD_WIDTH, _WIDTH),
        "self_attn.o_proj": (_WIDTH, _HEADS * _HEAD_WIDTH),
        "mlp.gate_proj": (_FFN, _WIDTH),
        "mlp.up_proj": (_FFN, _WIDTH),
        "mlp.down_proj": (_WIDTH, _FFN),
    }
    for layer in range(_LAYERS):
        stem = f"model.layers.{layer}."
        tensors |= {f"{stem}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{stem}{norm}.weight"] = np.ones(_WIDTH, np.float32)
        for writer in ("self_attn.o_proj", "mlp.down_proj"):
            tensors[f"{stem}{writer}.weight"][0] = 0.0  # no layer touches the constant
    return tensors


def _biases(tokenizer: Tokenizer) -> _Floats:
    """Return the head's weight on the constant dimension, [vocabulary]."""
    biases = np.zeros(tokenizer.get_vocab_size(), np.float32)
    for token, index in tokenizer.get_vocab().items():
        clean = tokenizer.decode([index], skip_special_tokens=False)
        if token in MARKERS or not (clean.isascii() and clean.replace("\n", "").isprintable()):
            biases[index] = _NEVER_BIAS
    biases[tokenizer.token_to_id(EOS)] = _STOP_BIAS
    return biases


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
