"""Hidden states by a transformers forward pass: the embedded default and the numeric reference.

Guarantee: `aux` are the inputs of the planned layers and `last` is the decoder's output after the
final norm, equal to what `output_hidden_states` returns; a sample's rows do not depend on its
batch beyond numeric noise. Only the planned layers are kept, by hooks; no logits are computed.
Price: one batch is padded to its longest sample. Padding is on the right and needs no mask: under
causal attention no real token sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
import transformers

from eagled.errors import ConfigError
from eagled.shards.backend import Captured, Ids, states_manifest
from eagled.shards.format import Bits, LastPolicy, ShardManifest
from eagled.shards.selfcheck import Reference, check_batching, check_layers, probe_inputs
from eagled.shards.target import TargetFacts

_LAYER_NAMES = ("layers", "h", "blocks")
_NORM_NAMES = ("norm", "ln_f", "final_layer_norm", "final_layernorm")
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class TransformersBackend:
    """One loaded target model; not shareable between threads."""

    def __init__(
        self,
        target: TargetFacts,
        *,
        layers: tuple[int, ...],
        last: LastPolicy = "supervised",
        device: str = "auto",
        dtype: str = "bfloat16",
        name: str = "",
        revision: str | None = None,
    ) -> None:
        """Load the model in `target.folder`; `name` is what the manifest calls it."""
        self.device = pick_device(device)
        self.model = _load(target, _DTYPES[dtype]).to(self.device).eval()
        self._decoder = self.model.get_decoder()
        self._layers = _child(self._decoder, _LAYER_NAMES, target)
        self._norm = _child(self._decoder, _NORM_NAMES, target)
        self._manifest = states_manifest(
            target,
            name=name,
            revision=revision,
            layers=layers,
            last=last,
            compute_dtype=dtype,
            backend=f"transformers {transformers.__version__}, torch {torch.__version__}",
        )

    @property
    def manifest(self) -> ShardManifest:
        """What the states are."""
        return self._manifest

    @torch.inference_mode()
    def capture(self, batch: Sequence[Ids]) -> list[Captured]:
        """Return the states of each sample, in order.

        Raises:
            torch.OutOfMemoryError: if the batch does not fit; half of it may.
        """
        lengths = [len(ids) for ids in batch]
        padded = np.zeros((len(batch), max(lengths)), np.int64)  # [B, T]
        for row, ids in zip(padded, batch, strict=True):
            row[: len(ids)] = ids
            row[len(ids) :] = ids[-1]  # any id of the vocabulary
        with self._boundaries() as kept:
            last = self._forward(torch.from_numpy(padded))
        layers = [kept[k] for k in self._manifest.layers]
        return [
            Captured(ids, to_bits(torch.stack([x[i, :n] for x in layers], 1)), to_bits(last[i, :n]))
            for i, (ids, n) in enumerate(zip(batch, lengths, strict=True))
        ]

    def release(self, batch: Sequence[Ids]) -> None:
        """Nothing is kept."""

    @torch.inference_mode()
    def reference(self, ids: Ids) -> Reference:
        """Return every boundary of one sample by `output_hidden_states`, not by hooks."""
        output = self._decoder(
            input_ids=torch.from_numpy(np.asarray(ids, np.int64))[None].to(self.device),
            use_cache=False,
            output_hidden_states=True,
        )
        # the last entry is after the final norm, so it is no boundary
        boundaries = tuple(_floats(x[0]) for x in output.hidden_states[:-1])
        return Reference(boundaries, _floats(output.last_hidden_state[0]))

    @torch.inference_mode()
    def before_norm(self, ids: Ids) -> Any:  # noqa: ANN401 - numpy
        """Return what enters the final norm, boundary N, of one sample, [T, D]."""
        kept: list[torch.Tensor] = []
        handle = self._norm.register_forward_pre_hook(lambda _module, args: kept.append(args[0]))
        try:
            self._forward(torch.from_numpy(np.asarray(ids, np.int64))[None])
        finally:
            handle.remove()
        return _floats(kept[0][0])

    def self_check(self) -> None:
        """Compare hooks with the reference, and a batch with its samples one by one.

        Raises:
            ArtifactError: if they differ; an off-by-one layer is named.
        """
        inputs = probe_inputs(self._manifest.vocab_size)
        together = self.capture(inputs)
        alone = [self.capture([ids])[0] for ids in inputs]
        check_layers(alone[0], self.reference(inputs[0]), self._manifest.layers)
        check_batching(together, alone)

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states, [B, T, D], after the final norm."""
        output = self._decoder(input_ids=ids.to(self.device), use_cache=False)
        return cast("torch.Tensor", output.last_hidden_state)

    @contextmanager
    def _boundaries(self) -> Iterator[dict[int, torch.Tensor]]:
        """Keep the input of each planned layer during the block, by boundary id."""
        kept: dict[int, torch.Tensor] = {}
        handles = []
        for k in self._manifest.layers:
            module = self._norm if k == self._manifest.n_layers else self._layers[k]

            def hook(_module: object, args: Any, kwargs: Any, k: int = k) -> None:  # noqa: ANN401 - torch
                kept[k] = args[0] if args else kwargs["hidden_states"]

            handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        try:
            yield kept
        finally:
            for handle in handles:
                handle.remove()


def pick_device(wish: str) -> torch.device:
    """Return the device for `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        ConfigError: if a GPU is asked for and there is none.
    """
    if wish == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wish.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"extract.device = {wish!r}, but torch sees no GPU; use cpu or auto")
    try:
        return torch.device(wish)
    except RuntimeError as exc:
        raise ConfigError(f"extract.device = {wish!r} is not a device: {exc}") from exc


def to_bits(states: torch.Tensor) -> Bits:
    """Return a tensor as bf16 bit patterns in host memory, same shape."""
    halves = states.to(torch.bfloat16).contiguous().cpu()
    return cast("Bits", halves.view(torch.int16).numpy().view(np.uint16))


def _floats(states: torch.Tensor) -> Any:  # noqa: ANN401 - numpy
    return states.float().cpu().numpy()


def _load(target: TargetFacts, dtype: torch.dtype) -> Any:  # noqa: ANN401 - untyped library
    transformers.utils.logging.disable_progress_bar()  # it would fill the worker's log
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(target.folder, dtype=dtype)
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"target.model = {str(target.folder)!r} cannot be loaded by transformers "
            f"{transformers.__version__}: {exc}"
        ) from exc


def _child(decoder: Any, names: tuple[str, ...], target: TargetFacts) -> Any:  # noqa: ANN401 - untyped library
    for name in names:
        if hasattr(decoder, name):
            return getattr(decoder, name)
    raise ConfigError(
        f"{type(decoder).__name__} of {target.folder} has none of {', '.join(names)}: "
        "the transformers back end does not know this architecture"
    )
