"""SGLang plugin: hidden states of asked-for requests become files, while SGLang serves.

Guarantee: without EAGLED_CAPTURE=1 nothing is hooked and nothing heavy is imported. With it, a
server that cannot capture correctly does not start: another SGLang version, a prefix cache,
pipeline stages, layers that the model does not have.
Price: the pinned ring (host memory, see `settings.py`) and one more copy of the states on the GPU.
Imports only the standard library, torch, safetensors and sglang: it lives in SGLang's environment.
"""

from __future__ import annotations

import logging
import os

from eagled.sglang_plugin.settings import ACTIVE_ENV, CaptureError, CaptureSettings

__all__ = ["CaptureError", "CaptureSettings", "register"]
_log = logging.getLogger(__name__)


def register() -> None:
    """Hook SGLang in this process; called by SGLang through its entry point group.

    Raises:
        SystemExit: if capture was asked for and cannot work. SGLang logs and ignores ordinary
            exceptions of plugins, and would then serve without capturing.
    """
    if os.environ.get(ACTIVE_ENV, "0") in {"", "0"}:
        return
    try:
        settings = CaptureSettings.from_environment(os.environ)
        from eagled.sglang_plugin.hooks import install

        install(settings)
    except CaptureError as exc:
        raise SystemExit(f"eagled capture: {exc}") from exc
    _log.info("eagled capture hooked spool=%s layers=%s", settings.spool, list(settings.layers))
