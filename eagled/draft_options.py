"""Which options of a draft's config.json SGLang reads.

An option that a server does not know is ignored without a word, so the list is of what is known to
be read: for the options that change the computation, from which version on that was checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagled.engine_layers import version_tuple

# fields of a Llama config, of the loader, and notes that change nothing in serving
_ALWAYS = frozenset({
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
    "max_position_embeddings", "vocab_size", "draft_vocab_size", "tie_word_embeddings",
    "rope_theta", "rope_scaling", "rope_parameters", "torch_dtype", "dtype", "bos_token_id",
    "eos_token_id", "pad_token_id", "attention_bias", "attention_dropout", "mlp_bias",
    "initializer_range", "use_cache", "pretraining_tp", "transformers_version", "bias",
    "target_hidden_size", "num_aux_hidden_states", "eagle_config", "target_model_type",
    "quantization_config", "auto_map", "_name_or_path", "is_decoder",
})  # fmt: skip
_NESTED = frozenset({"use_aux_hidden_state", "eagle_aux_hidden_state_layer_ids"})
_SINCE = {"norm_before_fc": (0, 5, 23), "fc_norm": (0, 5, 23), "norm_output": (0, 5, 23)}
_OFF = (None, False)


def unread_options(config: Mapping[str, Any], version: str = "") -> list[str]:
    """Return the options that a server of this version is not known to read, sorted.

    Args:
        config: the draft's config.json.
        version: the server's, such as 0.5.23; empty is the newest that was checked.
    """
    nested = config.get("eagle_config") or {}
    names = [
        *(k for k in config if k not in _ALWAYS),
        *(k for k in nested if k not in _NESTED),
    ]
    return sorted({k for k in names if not _read(k, config.get(k, nested.get(k)), version)})


def _read(name: str, value: object, version: str) -> bool:
    if value in _OFF:
        return True  # off is what an old server does anyway
    since = _SINCE.get(name)
    return since is not None and (not version or version_tuple(version) >= since)
