"""Every variable is checked, and names itself when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagled.sglang_plugin import register
from eagled.sglang_plugin.hooks import set_boundaries
from eagled.sglang_plugin.settings import CaptureError, CaptureSettings, check_layers
from eagled.sglang_plugin.versions import refusal


def test_all_variables_are_read(tmp_path: Path) -> None:
    """Values arrive in the units that their names say."""
    found = CaptureSettings.from_environment(
        {
            "EAGLED_CAPTURE_SPOOL": str(tmp_path / "spool"),
            "EAGLED_CAPTURE_LAYERS": "2,18,33",
            "EAGLED_CAPTURE_FSYNC": "off",
            "EAGLED_CAPTURE_RING_MB": "64",
            "EAGLED_CAPTURE_WRITERS": "3",
            "EAGLED_CAPTURE_RESERVE_MB": "5",
            "EAGLED_CAPTURE_STALL_S": "1.5",
            "EAGLED_CAPTURE_REPLY_WAIT_S": "2",
        }
    )

    expected = CaptureSettings(
        tmp_path / "spool", (2, 18, 33), "off", 64 << 20, 3, 5 << 20, 1.5, 2.0
    )
    assert expected == found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EAGLED_CAPTURE_SPOOL", ""),
        ("EAGLED_CAPTURE_LAYERS", ""),
        ("EAGLED_CAPTURE_LAYERS", "1,x"),
        ("EAGLED_CAPTURE_LAYERS", "2,2"),
        ("EAGLED_CAPTURE_LAYERS", "5,2"),
        ("EAGLED_CAPTURE_LAYERS", "-1,2"),
        ("EAGLED_CAPTURE_FSYNC", "sometimes"),
        ("EAGLED_CAPTURE_RING_MB", "many"),
        ("EAGLED_CAPTURE_STALL_S", "nan"),
    ],
)
def test_wrong_value_is_refused_by_name(tmp_path: Path, name: str, value: str) -> None:
    """The message says which variable."""
    good = {"EAGLED_CAPTURE_SPOOL": str(tmp_path / "s"), "EAGLED_CAPTURE_LAYERS": "1,2"}

    with pytest.raises(CaptureError, match=name):
        CaptureSettings.from_environment(good | {name: value})


def test_layers_past_the_model_are_refused() -> None:
    """Boundary N is one that SGLang cannot capture."""
    check_layers((0, 7), 8)
    with pytest.raises(CaptureError, match=r"boundary 8 is outside 0\.\.7 .*last layer"):
        check_layers((2, 8), 8)


def test_without_the_variable_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin is installed everywhere and active nowhere by itself."""
    monkeypatch.delenv("EAGLED_CAPTURE", raising=False)
    register()


def test_missing_sglang_ends_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang ignores ordinary exceptions of plugins, so it is SystemExit."""
    monkeypatch.setenv("EAGLED_CAPTURE", "1")
    monkeypatch.setenv("EAGLED_CAPTURE_SPOOL", str(tmp_path / "s"))
    monkeypatch.setenv("EAGLED_CAPTURE_LAYERS", "")
    with pytest.raises(SystemExit, match="EAGLED_CAPTURE_LAYERS"):
        register()


class _Arguments:
    disable_radix_cache = True
    pp_size = 1
    enable_return_hidden_states = True
    speculative_algorithm = None
    disaggregation_mode = "null"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("disable_radix_cache", False, "--disable-radix-cache"),
        ("pp_size", 2, "--pp-size 2"),
        ("enable_return_hidden_states", False, "--enable-return-hidden-states"),
        ("speculative_algorithm", "EAGLE3", "EAGLE3"),
        ("disaggregation_mode", "prefill", "prefill"),
    ],
)
def test_server_arguments_that_spoil_capture(name: str, value: object, words: str) -> None:
    """Each is refused with what to change."""
    arguments = _Arguments()
    assert refusal(arguments) is None
    setattr(arguments, name, value)

    assert words in str(refusal(arguments))


def test_model_without_capture_support_is_refused() -> None:
    """The class is named."""
    with pytest.raises(CaptureError, match="object has no support"):
        set_boundaries(object(), (2, 4))
