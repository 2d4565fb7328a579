"""The file of `eagled init` and docs/configuration.md say what the models say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eagled.config import Config
from eagled.config_fields import FieldDoc, sections
from eagled.config_load import load_config
from eagled.config_template import render_docs, render_template, write_template
from eagled.errors import UsageError

FIELDS = [(section.name, field) for section in sections() for field in section.fields]
DOCS = Path(__file__).parents[3] / "docs/configuration.md"


@pytest.mark.parametrize(("section", "field"), FIELDS, ids=lambda x: getattr(x, "name", x))
def test_every_setting_is_documented_and_in_the_file(section: str, field: FieldDoc) -> None:
    """A setting without a docstring is not a setting; each is in the written file."""
    assert field.text, f"{section}.{field.name} has no docstring"
    assert re.search(rf"^(# )?{field.name} =", render_template("m"), re.MULTILINE)


def test_the_file_as_written_holds_the_defaults(tmp_path: Path) -> None:
    """`eagled init` changes nothing but the target model."""
    path = tmp_path / "eagled.toml"
    write_template(path, "org/model")
    config = load_config(path, environ={}).config
    plain = Config.model_validate(
        {"target": {"model": "org/model"}, "run": {"state_dir": tmp_path / "state"}}
    )

    assert plain == config


def test_the_commented_values_are_the_defaults(tmp_path: Path) -> None:
    """The file with every comment sign before a value taken away still holds the defaults."""
    path = tmp_path / "eagled.toml"
    bare = re.sub(r"^# (?=\[|[a-z_]+ = )", "", render_template("org/model"), flags=re.MULTILINE)
    bare = re.sub(r"^\[\[(servers|datasets)\]\]\n(.*\n)*?\n", "", bare, flags=re.MULTILINE)
    path.write_text(bare)
    config = load_config(path, environ={}).config
    plain = Config.model_validate(
        {"target": {"model": "org/model"}, "run": {"state_dir": tmp_path / "state"}}
    )

    assert plain == config


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    """`eagled init` twice keeps the first file."""
    path = tmp_path / "eagled.toml"
    path.write_text("mine")
    with pytest.raises(UsageError, match="is already there"):
        write_template(path, "m")

    assert "mine" == path.read_text()


def test_the_documentation_page_is_up_to_date() -> None:
    """`python -m eagled.config_template` was run after the last change of a setting."""
    assert render_docs() == DOCS.read_text(encoding="utf-8")
