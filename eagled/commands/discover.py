"""`eagled discover`: find prompt datasets, propose a mix, and write the chosen one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagled.commands.common import (
    ConfigOption,
    JsonOption,
    SetOption,
    load,
    progress_line,
    say,
    say_json,
    say_table,
)
from eagled.errors import UnreachableError, UsageError

if TYPE_CHECKING:
    from eagled.config_load import LoadedConfig
    from eagled.discover.findings import Findings
    from eagled.discover.run import Options


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(discover)


def discover(  # noqa: PLR0913 - one argument an option of the command
    *,
    category: Annotated[
        list[str] | None, typer.Option("--category", help="Only this one; may be given again.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="Name of the target, such as kimi-k2.5; none is the configured one.")
    ] = "",
    goal: Annotated[int, typer.Option(min=1, help="Conversations wanted.")] = 100_000,
    categories: Annotated[
        Path | None, typer.Option("--categories", help="Your own file of categories.")
    ] = None,
    show_categories: Annotated[
        bool, typer.Option("--show-categories", help="Print the file of categories to start from.")
    ] = False,
    catalogue: Annotated[
        list[Path] | None,
        typer.Option("--catalogue", help="JSON or TOML file that lists datasets."),
    ] = None,
    folder: Annotated[
        list[Path] | None, typer.Option("--folder", help="Folder with datasets in it.")
    ] = None,
    hub: Annotated[bool, typer.Option("--hub/--no-hub", help="Search the hub.")] = True,
    limit: Annotated[int, typer.Option(min=1, help="Most datasets of one query.")] = 10,
    rows: Annotated[int, typer.Option(min=1, help="Rows looked at of each dataset.")] = 256,
    rate: Annotated[
        float | None, typer.Option(help="Answer tokens a second; none is what the run measured.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the hub's token (mode 0600).")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one dataset.")] = 120.0,
    max_age: Annotated[
        float, typer.Option("--max-age", min=0, help="Hours that the cache holds; 0 asks again.")
    ] = 72.0,
    offline: Annotated[bool, typer.Option("--offline", help="Only what the cache has.")] = False,
    choose: Annotated[
        str, typer.Option(help="Write a mix of the last report into the configuration.")
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="With --choose: old datasets become comments.")
    ] = False,
    viewer: Annotated[str, typer.Option(help="Address of another hub's dataset viewer.")] = "",
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find datasets by category, look at their first rows, and propose a mix."""
    from eagled.discover.run import Options

    if show_categories:
        from eagled.discover.categories import default_text

        say(default_text())
        return
    if replace and not choose:
        raise UsageError("--replace goes with --choose NAME")
    loaded = load(config, settings)
    if choose:
        _choose(loaded, choose, replace=replace)
        return
    options = Options(
        categories=tuple(category or ()), categories_file=categories, target=target, goal=goal,
        catalogues=tuple(catalogue or ()), folders=tuple(folder or ()), hub=hub, viewer=viewer,
        limit=limit, rows=rows, timeout_s=timeout, token_file=token_file, rate_tok_per_s=rate,
        max_age_h=max_age, offline=offline,
    )  # fmt: skip
    _search(loaded, options, as_json=as_json)


def _search(loaded: LoadedConfig, options: Options, *, as_json: bool) -> None:
    """Look, write the pages, and print what was found."""
    from eagled.discover.pages import write_pages
    from eagled.discover.run import discover as run
    from eagled.discover.run import found_new
    from eagled.discover.view import FAILED_HEAD, failed_rows
    from eagled.paths import StatePaths
    from eagled.text.tokenizer import keep_torch_out

    keep_torch_out()  # this process only tokenises
    for name in ("eagled.readers", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)  # what is tried again is no news
    findings = run(loaded.config, options, _progress)
    progress_line("")
    if not found_new(findings, loaded.config):
        say_table(FAILED_HEAD, failed_rows(findings))
        reasons = "; ".join(findings.failures) or "the table says why"
        raise UnreachableError(
            f"nothing new was found ({reasons}), so an earlier report stays as it is; is the hub "
            "in reach (HF_ENDPOINT, --token-file)? --catalogue and --folder name other sources"
        )
    written = write_pages(StatePaths(loaded.config.run.state_dir).discover, findings)
    if as_json:
        say_json(findings.to_json())
        return
    show(findings)
    say("")
    for path in written:
        say(f"wrote {path}")


def _choose(loaded: LoadedConfig, name: str, *, replace: bool) -> None:
    from eagled.discover.choose import choose

    choice, plan = choose(loaded, name, replace=replace)
    proposal = choice.proposal
    say(f"{loaded.path}: {len(proposal.entries)} datasets, {proposal.count:,} conversations")
    for risk in choice.figures.risks:
        say(f"look at the licence of {risk}")
    say(f"the decision is in {plan}; `eagled prep` comes next")


def _progress(done: int, known: int, name: str) -> None:
    progress_line(f"{done} of {known} datasets looked at; {name}")


def show(findings: Findings) -> None:
    """Print the findings as tables."""
    from eagled.discover import view

    say(view.headline(findings))
    if findings.note:
        say(findings.note)
    say_table(view.SHORT_HEAD, [view.short_row(item) for item in view.usable(findings)])
    if failed := view.failed_rows(findings):
        say("")
        say_table(view.FAILED_HEAD, failed)
    for failure in findings.failures:
        say(f"a search failed: {failure}")
    proposed = findings.proposed.proposal
    say(f"\n{proposed.title}: {proposed.count:,} conversations")
    say_table(view.ENTRY_HEAD, view.entry_rows(findings.proposed))
    say("")
    say_table(view.compare_head(findings.choices), view.compare_rows(findings.choices))
    say("")
    for choice in findings.choices:
        say(f"{choice.proposal.name}: {choice.proposal.trade}")
        for risk in choice.figures.risks:
            say(f"  licence to look at: {risk}")
    say("")
    say_table(view.ASSUMPTION_HEAD, view.assumption_rows(findings))
    say(f"\nchoose one: eagled discover --choose {proposed.name}")
