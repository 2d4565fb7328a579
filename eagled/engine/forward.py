"""The model and its one forward pass over rows of a slab; the only place that runs the network.

Every row writes its new keys and values at its own position and attends to its own past through a
4-D mask, so rows of different lengths share one pass. Hidden-state capture, when it comes, hooks
in here and nowhere else.

Guarantee: at start the slab path is compared with the model's own plain forward; a model for which
they differ is refused. In float32 greedy tokens equal those of `generate`.
Price: two short forwards at start; attention runs over the longest row of the group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache
from transformers.utils import logging as library_logging

from eagled.engine.slab import KvShape, Slab, width_for
from eagled.engine.support import check_model_config, resolve_context_length, stop_ids
from eagled.errors import ConfigError

_CHECK_IDS = 9  # tokens of the start-up comparison: chunks of 5 and 3, then a single step
_CHECK_TOLERANCE = {torch.float32: 1e-3}  # relative error of the logits
_CHECK_TOLERANCE_LOW = 0.1  # 16-bit dtypes: rounding differs with the shape of a product


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the server tells about its model."""

    path: str
    model_type: str
    architectures: tuple[str, ...]
    vocab_size: int
    context_length: int
    eos_ids: frozenset[int]
    dtype: str
    device: str


class _SlabLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped here
    """One layer's view of the slab for one pass; takes new rows, returns all that are attended."""

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, starts: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values  # [B, H, W, D]
        self.is_initialized = True
        self._starts = starts  # [B]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [B, H, q, D] at each row's start; return [B, H, W, D]."""
        if key_states.shape[2] == 1 and key_states.shape[0] > 1:
            rows = torch.arange(key_states.shape[0], device=self._starts.device)
            self.keys[rows, :, self._starts] = key_states[:, :, 0]
            self.values[rows, :, self._starts] = value_states[:, :, 0]
        else:
            start = self.keys.shape[2] - key_states.shape[2]  # one row: the view ends with it
            self.keys[:, :, start:] = key_states
            self.values[:, :, start:] = value_states
        return self.keys, self.values

    def lazy_initialization(self, *_: object) -> None:
        """Do nothing: the slab is already there."""

    def get_mask_sizes(self, *_: object) -> tuple[int, int]:
        """Return the attended width and no offset."""
        return self.keys.shape[2], 0

    def get_seq_length(self, *_: object) -> int:
        """Return 0; positions are always given, so nobody may derive them from here."""
        return 0

    def get_max_length(self) -> int:
        """Return the attended width."""
        return int(self.keys.shape[2])

    get_max_cache_shape = get_max_length  # the name before transformers 5.2x


class SlotModel:
    """A causal LM whose forward runs over the rows of a slab."""

    def __init__(self, model: torch.nn.Module, shape: KvShape, info: ModelInfo) -> None:
        self.shape = shape
        self.info = info
        self._model = model
        self._cache_name = _cache_argument(model)

    @torch.inference_mode()
    def forward(
        self, slab: Slab, first: int, ids: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> torch.Tensor:
        """Feed new tokens of consecutive rows and return the logits after the last of each.

        Args:
            slab: rows `first` to `first + B - 1` are fed.
            first: index of the first row.
            ids: [B][q] new tokens; q may exceed 1 only for a single row.
            starts: [B] tokens that each row already holds.

        Returns:
            [B, V] float32 on the CPU.
        """
        device = self.shape.device
        begin = torch.tensor(starts, device=device)  # [B]
        tokens = torch.tensor(ids, device=device)  # [B, q]
        positions = begin[:, None] + torch.arange(tokens.shape[1], device=device)  # [B, q]
        width = max(starts) + tokens.shape[1]
        mask = torch.arange(width, device=device) <= positions[:, None, :, None]  # [B, 1, q, W]
        last = first + len(starts)
        layers = [
            _SlabLayer(keys[first:last, :, :width], values[first:last, :, :width], begin)
            for keys, values in zip(slab.keys, slab.values, strict=True)
        ]
        output = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: Cache(layers=layers)},
        )
        logits: torch.Tensor = output.logits[:, -1].float().cpu()
        return logits


def load_model(
    folder: Path, *, dtype: str, context_length: int | None, device: str
) -> tuple[SlotModel, Any]:
    """Load a model folder and prove that the slot loop serves it rightly.

    Args:
        folder: configuration, safetensors and, if there is one, a tokenizer.
        dtype: one of `support.DTYPES`.
        context_length: tokens to serve, or None for the model's own.
        device: cpu, cuda, or auto (cuda when there is one).

    Returns:
        The model and its tokenizer (None when the folder holds none).

    Raises:
        ConfigError: if the folder is no model, or one that cannot be served.
    """
    library_logging.disable_progress_bar()
    config = _guarded(folder, lambda: AutoConfig.from_pretrained(folder, local_files_only=True))
    text_config = config.get_text_config(decoder=True)  # itself, unless the model is multimodal
    context = resolve_context_length(text_config, context_length)
    check_model_config(text_config, context)
    tokenizer = _load_tokenizer(folder)
    model = _guarded(folder, lambda: _load_weights(folder, dtype, _device(device)))
    if getattr(model, "_is_stateful", False):
        raise ConfigError(
            f"the embedded engine cannot serve {config.model_type!r}: it is recurrent"
        )
    shape = _probe_shape(model, config)
    info = ModelInfo(
        path=str(folder),
        model_type=str(config.model_type),
        architectures=tuple(config.architectures or ()),
        vocab_size=int(model.get_input_embeddings().weight.shape[0]),
        context_length=context,
        eos_ids=stop_ids(text_config, tokenizer, folder),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(shape.device),
    )
    slot_model = SlotModel(model, shape, info)
    _self_check(slot_model, model)
    return slot_model, tokenizer


def _device(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


def _guarded(folder: Path, load: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever `load` returns
    try:
        return load()
    except Exception as exc:  # each library raises its own for a bad folder
        raise ConfigError(f"cannot load the model in {folder}: {exc}") from exc


def _load_weights(folder: Path, dtype: str, device: str) -> Any:  # noqa: ANN401 - untyped library
    model, report = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation="sdpa",
        local_files_only=True,
        output_loading_info=True,
    )
    if missing := sorted(report["missing_keys"]):
        # the library would fill these with random numbers and only warn
        raise ValueError(f"{len(missing)} weights are missing, the first is {missing[0]}")
    return model.to(device).eval().requires_grad_(requires_grad=False)


def _load_tokenizer(folder: Path) -> Any:  # noqa: ANN401 - untyped library
    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    if not any((folder / name).is_file() for name in names):
        return None
    return _guarded(folder, lambda: AutoTokenizer.from_pretrained(folder, local_files_only=True))


def _cache_argument(model: torch.nn.Module) -> str:
    """Return the name of the cache argument: it changes within transformers 5."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


@torch.inference_mode()
def _probe_shape(model: Any, config: Any) -> KvShape:  # noqa: ANN401 - untyped library
    """Learn the cache's shape from one token through the library's own cache."""
    cache = DynamicCache()
    try:
        one = torch.zeros((1, 1), dtype=torch.long, device=model.device)
        model(input_ids=one, use_cache=True, **{_cache_argument(model): cache})
        layers = tuple(
            (int(x.keys.shape[1]), int(x.keys.shape[3]), int(x.values.shape[3]))
            for x in cache.layers
        )
        return KvShape(layers, cache.layers[0].keys.dtype, model.device)
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError) as exc:
        raise ConfigError(
            f"the embedded engine cannot serve this model (model_type {config.model_type!r})",
            (f"it does not keep plain keys and values: {exc}", "serve it with SGLang instead"),
        ) from exc


@torch.inference_mode()
def _self_check(slot_model: SlotModel, model: Any) -> None:  # noqa: ANN401 - untyped library
    """Compare the slab path (two chunks, then one step) with the model's plain forward.

    Raises:
        ConfigError: if the logits differ by more than rounding.
    """
    count = min(_CHECK_IDS, slot_model.info.context_length)
    ids = [(7 * i + 3) % slot_model.info.vocab_size for i in range(count)]
    plain = model(torch.tensor([ids], device=model.device), use_cache=False).logits[0, -1]
    slab = Slab(slot_model.shape, width_for(count, slot_model.info.context_length))
    slab.add()
    cuts = sorted({0, count // 2 + 1, count - 1, count})
    try:
        for begin, end in pairwise(cuts):
            ours = slot_model.forward(slab, 0, [ids[begin:end]], [begin])
    except (AttributeError, TypeError, ValueError, RuntimeError) as exc:
        raise ConfigError(
            f"the embedded engine cannot serve {slot_model.info.model_type!r}: {exc}"
        ) from exc
    wanted = plain.float().cpu()
    error = float((ours[0] - wanted).norm() / wanted.norm().clamp_min(1e-6))
    if not error <= _CHECK_TOLERANCE.get(slot_model.shape.dtype, _CHECK_TOLERANCE_LOW):
        raise ConfigError(
            f"the embedded engine computes other logits than {slot_model.info.model_type!r} itself "
            f"(relative error {error:.3g}); serve this model with SGLang instead"
        )
