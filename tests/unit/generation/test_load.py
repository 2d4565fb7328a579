"""A server's load in its three forms."""

from __future__ import annotations

import pytest

from eagled.server.gauges import parse_metrics
from eagled.server.load import load_of_metrics, load_of_ranks
from eagled.server.protocol import Load


def test_loads_are_summed_over_ranks() -> None:
    """Usage is the highest one: the fullest rank is the one that runs over."""
    rank = {"num_running_reqs": 2, "num_waiting_reqs": 1, "num_used_tokens": 10}
    rank |= {"max_total_num_tokens": 100, "gen_throughput": 5}
    ranks = [rank | {"token_usage": 0.1}, rank | {"token_usage": 0.4}]

    assert load_of_ranks({"loads": ranks}) == Load(4, 2, 20, 200, 0.4, 10.0)


def test_the_older_form_has_no_count_of_running_requests() -> None:
    """It is what does not wait."""
    old = [{"dp_rank": 0, "num_reqs": 7, "num_waiting_reqs": 3, "num_tokens": 500}]

    assert load_of_ranks(old) == Load(4, 3, 500, 0, 0.0, 0.0)


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [1, None], {"loads": "x"}])
def test_what_is_not_there_is_zero(value: object) -> None:
    """Nothing in a body makes it raise."""
    assert load_of_ranks(value) == Load(0, 0, 0, 0, 0.0, 0.0)


def test_metrics_give_the_same() -> None:
    """With whatever labels."""
    page = """
sglang:num_running_reqs{model_name="m",tp_rank="0"} 5.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:num_used_tokens{model_name="m"} 300.0
sglang:max_total_num_tokens{model_name="m"} 1000.0
sglang:gen_throughput{model_name="m"} 77.5
"""

    assert load_of_metrics(parse_metrics(page)) == Load(5, 2, 300, 1000, 0.3, 77.5)


def test_a_page_without_load_is_none() -> None:
    """Another program's metrics are no load."""
    assert load_of_metrics(parse_metrics("up 1\n")) is None
