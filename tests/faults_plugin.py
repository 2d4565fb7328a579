"""Pytest plugin: which known faults have a test that loads their input and passed in this run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

from tests import faults

_KEY = pytest.StashKey["_Tally"]()


class _Tally:
    def __init__(self) -> None:
        self.tests: defaultdict[str, set[str]] = defaultdict(set)
        self.module_of: dict[str, str] = {}
        self.passed: set[str] = set()
        self.failed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the report file."""
    parser.addoption("--faults-report", help="write which fault ids passed to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    """Start the tally."""
    config.stash[_KEY] = _Tally()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note which test runs, and which ids it carries."""
    faults.usage.current = item.nodeid
    tally = item.config.stash[_KEY]
    tally.module_of[item.nodeid] = getattr(getattr(item, "module", None), "__name__", "")
    for mark in item.iter_markers("fault"):
        for fault_id in mark.args:
            tally.tests[fault_id].add(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember which tests passed and which did not."""
    report = yield
    tally = item.config.stash[_KEY]
    if report.failed:
        tally.failed.add(item.nodeid)
    elif report.when == "call" and report.passed:
        tally.passed.add(item.nodeid)
    return report


def _verdict(tally: _Tally, fault_id: str) -> str:
    """Return "passed", or why the id does not count."""
    tests = tally.tests.get(fault_id, set())
    if not tests:
        return "no test"
    if tests & tally.failed:
        return "failed"
    ran = tests & tally.passed
    if not ran:
        return "skipped"
    readers = ran | {tally.module_of[t] for t in ran}
    needed = set(faults._index()[fault_id]["files"])
    loaded: set[str] = set().union(*(faults.usage.files[r] for r in readers))
    missing = needed - loaded
    return f"input not loaded: {', '.join(sorted(missing))}" if missing else "passed"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report when it was asked for."""
    target = session.config.getoption("--faults-report")
    if not target:
        return
    tally = session.config.stash[_KEY]
    report = {
        fault_id: {
            "verdict": _verdict(tally, fault_id),
            "tests": sorted(tally.tests.get(fault_id, ())),
        }
        for fault_id in faults.all_fault_ids()
    }
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_text(json.dumps(report, indent=1))
