"""What a draft borrows from its target: embedding, output head, final norm; loaded, never trained.

Guarantee: three tensors are read from the target's safetensors files, nothing else of the model is
built, so a target of any size or architecture works. Price: V * Dt values twice, on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from eagled.artifacts import read_json
from eagled.errors import ArtifactError, ConfigError
from eagled.train.geometry import target_config

_EMBED = ("model.embed_tokens.weight", "embed_tokens.weight", "wte.weight")
_HEAD = ("lm_head.weight", "output.weight")
_NORM = ("model.norm.weight", "norm.weight", "ln_f.weight")
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target's ends.

    Attributes:
        embed: [V, Dt].
        head: [V, Dt]; the embedding itself when the target ties them.
        norm: [Dt], scale of the final norm.
    """

    embed: Tensor
    head: Tensor
    norm: Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> Teacher:
        """Return a copy; tied tensors stay one."""
        embed = self.embed.to(device, dtype)
        head = embed if self.head is self.embed else self.head.to(device, dtype)
        return Teacher(embed, head, self.norm.to(device))


def load_teacher(folder: Path) -> Teacher:
    """Return the ends of the target in `folder`, in the files' dtype.

    Raises:
        ConfigError: if the files hold no embedding, head or norm by a known name.
        ArtifactError: if a file cannot be read.
    """
    places = _places(folder)
    embed = _read(folder, places, _EMBED)
    norm = _read(folder, places, _NORM)
    tied = bool(target_config(folder).get("tie_word_embeddings"))
    found = _find(places, _HEAD)
    if found is None and not tied:
        raise ConfigError(f"{folder} has no {_HEAD[0]}, and its config does not tie it")
    head = embed if tied or found is None else _read(folder, places, _HEAD)
    return Teacher(embed, head, norm)


def _places(folder: Path) -> dict[str, str]:
    """Return the file of each tensor."""
    if (folder / _INDEX).is_file():
        return dict(read_json(folder / _INDEX)["weight_map"])
    places = {}
    for path in sorted(folder.glob("*.safetensors")):
        with _open(path) as file:
            places.update(dict.fromkeys(file.keys(), path.name))
    return places


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (OSError, ValueError) as exc:
        raise ArtifactError(f"{path} cannot be read: {exc}") from exc


def _find(places: dict[str, str], names: tuple[str, ...]) -> str | None:
    """Return the tensor that is called so, or whose name ends so; the shortest of several."""
    for name in names:
        if name in places:
            return name
        ending = sorted((p for p in places if p.endswith("." + name)), key=lambda p: (len(p), p))
        if ending:
            return ending[0]
    return None


def _read(folder: Path, places: dict[str, str], names: tuple[str, ...]) -> Tensor:
    name = _find(places, names)
    if name is None:
        raise ConfigError(f"{folder} has no tensor called {' or '.join(names)}")
    with _open(folder / places[name]) as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor
