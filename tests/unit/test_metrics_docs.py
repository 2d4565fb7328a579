"""Metrics, their page, the alert rules and the dashboard name the same things."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from eagled.metrics import METRICS, metrics_page

DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"\beagled_[a-z0-9_]+")


def _expressions() -> list[str]:
    rules = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())
    board = json.loads((DOCS / "monitoring" / "dashboard.json").read_text())
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return alerts + [t["expr"] for panel in board["panels"] for t in panel["targets"]]


def test_the_page_of_metrics_is_up_to_date() -> None:
    """`python -m eagled.metrics` was run after the last change of a metric."""
    assert metrics_page() == (DOCS / "metrics.md").read_text(encoding="utf-8")


def test_names_follow_the_conventions() -> None:
    """Lower case, no unit in a short form, each once, and each explained with its unit."""
    names = [doc.shown for doc in METRICS]

    assert sorted(set(names)) == sorted(names)
    assert [] == [n for n in names if not NAME.fullmatch(n) or n.endswith(("_s", "_ms"))]
    assert [] == [doc.name for doc in METRICS if not doc.text or not doc.unit]


def test_alerts_and_dashboard_use_metrics_that_exist() -> None:
    """A rule over a name that nobody exports would never fire."""
    used = {name for text in _expressions() for name in NAME.findall(text)}

    assert set() == used - {doc.shown for doc in METRICS}


def test_every_alert_says_what_to_do() -> None:
    """A person who is woken reads the next step in the message."""
    rules = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())
    found = [rule for group in rules["groups"] for rule in group["rules"]]

    assert [] == [r["alert"] for r in found if not r["annotations"].get("action")]
