"""The configuration: who wins, what is reported, where paths start."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagled.config_load import load_config
from eagled.config_problems import Origin
from eagled.errors import ConfigError

GOOD = """
[run]
seed = 3
[target]
model = "models/tiny"
chat_template = "chat.jinja"
[[servers]]
url = "http://127.0.0.1:30000"
[lanes.short]
context = 4096
limit = 20
[[datasets]]
name = "a"
source = "org/name"
[[datasets]]
name = "b"
source = "./b.jsonl"
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "eagled.toml"
    path.write_text(text)
    return path


def _problems(path: Path, **kwargs: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, **kwargs)
    return list(caught.value.problems)


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    """Each value comes from the highest layer that has it, and says from which."""
    path = _write(tmp_path, GOOD)
    environ = {"EAGLED_RUN__SEED": "4", "EAGLED_LANES__SHORT__LIMIT": "30", "EAGLED_DEBUG": "1"}
    loaded = load_config(path, {"run.seed": "5"}, environ)
    config = loaded.config

    assert (5, 30, 4096, 2.0) == (
        config.run.seed,
        config.lanes["short"].limit,
        config.lanes["short"].context,
        config.generation.retry_base_s,
    )
    assert [Origin.FLAG, Origin.ENVIRONMENT, Origin.FILE, Origin.DEFAULT] == [
        loaded.origins[name]
        for name in (
            "run.seed",
            "lanes.short.limit",
            "lanes.short.context",
            "generation.retry_base_s",
        )
    ]


def test_paths_of_the_file_start_at_its_folder(tmp_path: Path) -> None:
    """A relative path means the same from whatever directory the command runs."""
    (tmp_path / "models/tiny").mkdir(parents=True)
    config = load_config(_write(tmp_path, GOOD), environ={}).config

    assert tmp_path / "state" == config.run.state_dir
    assert str(tmp_path / "models/tiny") == config.target.model
    assert tmp_path / "chat.jinja" == config.target.chat_template
    assert ["org/name", str(tmp_path / "b.jsonl")] == [d.source for d in config.datasets]


def test_all_problems_come_together_each_with_path_value_and_what_is_accepted(
    tmp_path: Path,
) -> None:
    """One run of the command is enough to see everything that is wrong, cross rules included."""
    path = _write(
        tmp_path,
        """
        disk = 5
        [run]
        seed = -1
        sede = 1
        [lanes.short]
        context = 100
        limit = "k"
        [lanes.long]
        concurrency = 50
        limit = 20
        [[servers]]
        url = "host"
        [[datasets]]
        name = "x"
        [extract]
        start = "never"
        layers = [1, "x"]
        """,
    )

    assert [
        "run.seed = -1: must be >= 0 (accepted: an integer >= 0)",
        "run.sede: unknown setting; did you mean run.seed?",
        "target: must be given",
        (
            "servers[0].url = 'host': has a wrong form "
            "(accepted: an address such as http://127.0.0.1:30000)"
        ),
        "lanes.short.limit = 'k': must be an integer (accepted: an integer >= 0)",
        "datasets[0].source: must be given (accepted: text)",
        (
            "extract.start = 'never': must be 'as_completed' or 'after_merge' "
            '(accepted: one of "as_completed", "after_merge")'
        ),
        "extract.layers[1] = 'x': must be an integer (accepted: a list, each an integer)",
        "disk = 5: must be a table",
        "lanes.short.context = 100 leaves no room for generation.min_reply = 1024",
        "lanes.long.concurrency = 50 is over its limit 20",
    ] == _problems(path, environ={})


def test_a_wrong_value_that_is_not_in_the_file_says_where_it_is(tmp_path: Path) -> None:
    """A person who looks into the file for a value of the environment is told."""
    path = _write(tmp_path, GOOD)
    environ = {"EAGLED_RUN__SEED": "x", "EAGLED_SERVERS__3__URL": "http://a"}

    assert [
        "servers.3.url: there is no servers.3 to change",
        "run.seed = 'x': must be an integer (accepted: an integer >= 0) [from the environment]",
        "disc: unknown section; did you mean disk? [from the flag]",
    ] == _problems(path, overrides={"disc.budget_bytes": "1"}, environ=environ)


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    """A file that is not TOML is refused with the line."""
    path = _write(tmp_path, "[run]\nseed = \n")
    with pytest.raises(ConfigError, match=r"is not TOML: .* \(at line 2, column 8\)"):
        load_config(path, environ={})


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    """Without a file the message names `eagled init`, and the exit code is 78."""
    with pytest.raises(ConfigError, match="eagled init") as caught:
        load_config(tmp_path / "none.toml", environ={})

    assert 78 == caught.value.exit_code


def test_lists_and_tables_come_from_text_as_toml(tmp_path: Path) -> None:
    """A flag can hold a list; a template argument keeps its type (the word false is not text)."""
    config = load_config(
        _write(tmp_path, GOOD),
        {"extract.layers": "[2, 4]", "target.template_kwargs.thinking": "false", "run.name": "7"},
        {},
    ).config

    assert ((2, 4), {"thinking": False}, "7") == (
        config.extract.layers,
        config.target.template_kwargs,
        config.run.name,
    )


def test_a_worker_sees_the_flags_of_its_daemon(tmp_path: Path) -> None:
    """What the daemon was started with holds in the processes that it starts."""
    path = _write(tmp_path, GOOD)
    environ = {"EAGLED_FLAGS": '{"run.seed": "9", "run.name": "x"}'}
    config = load_config(path, {"run.name": "y"}, environ).config

    assert (9, "y") == (config.run.seed, config.run.name)
