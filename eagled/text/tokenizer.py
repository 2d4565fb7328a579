"""Load the target's tokenizer and chat template, and name their exact content.

Guarantee: a missing template is an error, never replaced by a generic one; code of a repository
runs only with `target.trust_remote_code`, and only code that the pinned revision holds; the hashes
change with anything that changes token ids, that code included. Price: two seconds to import
transformers (torch stays out if `keep_torch_out` ran first).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagled.config import TargetConfig
from eagled.errors import ConfigError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_GENERATION_CONFIG = "generation_config.json"


def keep_torch_out() -> None:
    """Make transformers believe that torch is not installed, in this process.

    For processes that only tokenise: saves a second and 300 MB. Call it before the first import
    of transformers, and never in a process that needs torch later.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment] # documented way to hide a module


def load_tokenizer(target: TargetConfig) -> Any:  # noqa: ANN401 - transformers has no types
    """Return the tokenizer of the target, with the configured chat template set.

    Raises:
        ConfigError: if it cannot be loaded, is not the class that the repository names, or has no
            chat template.
    """
    from transformers import AutoTokenizer

    name = target.tokenizer or target.model
    if not Path(name).is_dir() and not _HUB_ID.fullmatch(name):
        raise ConfigError(
            f"the model folder {name!r} does not exist: set target.model to the folder of the "
            "target model, or to its hub id"
        )
    try:
        _refuse_unpinned_code(name, target)
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=target.revision, trust_remote_code=target.trust_remote_code
        )
    except (OSError, ValueError, ImportError, KeyError) as exc:
        raise ConfigError(
            f"the tokenizer of target.model = {name!r} cannot be loaded: {exc}; give a folder with "
            "tokenizer.json (or the hub id of one that can be reached), and set"
        ) from exc
    _refuse_wrong_class(tokenizer, name)
    if target.chat_template is not None:
        tokenizer.chat_template = _read_template(target.chat_template)
    if not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer {name!r} has no chat template: set target.chat_template to the Jinja "
            "file that the server uses; eagled never falls back to a generic form"
        )
    return tokenizer


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"target.chat_template = {str(path)!r} cannot be read: {exc}") from exc


def _refuse_unpinned_code(name: str, target: TargetConfig) -> None:
    """Refuse code that may not run, or that comes from another repository than the pinned one."""
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    own = _own_classes(get_tokenizer_config(name, revision=target.revision))
    if own and not target.trust_remote_code:
        raise ConfigError(
            f"the tokenizer {name!r} is code of its own ({', '.join(own)}), which runs only with "
            "target.trust_remote_code = true and, from the hub, target.revision = the full commit "
            "that you have read; it then runs in prep and in the text worker, nowhere else"
        )
    foreign = [entry for entry in own if "--" in entry]
    if foreign:
        raise ConfigError(
            f"the tokenizer {name!r} takes its code from another repository ({foreign[0]!r}), "
            "which target.revision does not pin: copy both into one folder and name that"
        )


def _own_classes(config: Mapping[str, Any]) -> list[str]:
    """Return what a tokenizer_config.json names as classes of its own."""
    named = (config.get("auto_map") or {}).get("AutoTokenizer") or ()
    entries = [named] if isinstance(named, str) else named
    return [entry for entry in entries if entry]


def _refuse_wrong_class(tokenizer: Any, name: str) -> None:  # noqa: ANN401 - transformers has no types
    """Refuse a generic class where the repository brings its own (wrong ids without an error)."""
    own = _own_classes(tokenizer.init_kwargs)
    remote = not type(tokenizer).__module__.startswith("transformers.")
    if own and not remote:
        raise ConfigError(
            f"the tokenizer {name!r} names its own class {own[0]!r}, but "
            f"{type(tokenizer).__name__} was loaded, which would give other ids"
        )


def tokenizer_hash(tokenizer: Any) -> str:  # noqa: ANN401 - transformers has no types
    """Return the SHA-256 of everything that decides which ids a text gets."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = backend.to_str() if backend is not None else _slow_identity(tokenizer)
    special = json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str)
    return hashlib.sha256(f"{vocabulary}\0{special}".encode()).hexdigest()


def _slow_identity(tokenizer: Any) -> str:  # noqa: ANN401 - transformers has no types
    """Return vocabulary and code of a Python tokenizer as one text."""
    added = {index: str(token) for index, token in tokenizer.added_tokens_decoder.items()}
    vocabulary = json.dumps([tokenizer.get_vocab(), added], sort_keys=True)
    code = sys.modules[type(tokenizer).__module__].__file__
    folder = sorted(Path(code).parent.glob("*.py")) if code else []  # what it imports lies beside
    source = "\0".join(f"{path.name}\0{path.read_text(encoding='utf-8')}" for path in folder)
    return f"{vocabulary}\0{source}"


def template_hash(tokenizer: Any) -> str:  # noqa: ANN401 - transformers has no types
    """Return the SHA-256 of the chat template (of all of them, where there are several)."""
    text = json.dumps(tokenizer.chat_template, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def generation_eos(target: TargetConfig) -> frozenset[int]:
    """Return the stop ids in the model folder's generation_config.json, if there is one."""
    path = Path(target.model) / _GENERATION_CONFIG
    if not path.is_file():
        return frozenset()
    try:
        value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc
    ids = value if isinstance(value, list) else [value]
    return frozenset(i for i in ids if isinstance(i, int))
