"""The second opinion on layers: what a stock server's JSON is taken for, and what it catches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagled.errors import ArtifactError, ConfigError, ReplyBrokenError
from eagled.hidden_check import NOTHING, UNSEEN, SampleFinding, judge_stock, summary
from eagled.hidden_stock import StockStates, ask_stock, load_stock, save_stock
from eagled.shards.backend import Captured
from eagled.shards.backend_sglang import CaptureServer
from eagled.shards.selfcheck import Floats, from_bits, probe_inputs
from eagled.shards.target import TargetFacts
from tests.unit.shards.helpers import random_bits

LAYERS, WIDTH, N, VOCAB = (2, 4, 5), 16, 8, 300
IDS = probe_inputs(VOCAB)[0]
AUX = {"enable_return_aux_hidden_states": True}


class Stock(CaptureServer):
    """A server that answers with what it is given."""

    info: dict[str, Any]
    reply: dict[str, Any]

    @classmethod
    def of(cls, states: object, **info: Any) -> Stock:
        """Return one that hands out these states."""
        server = cls("http://stock")
        object.__setattr__(server, "info", {"version": "0.5.23", **info})
        object.__setattr__(server, "reply", {"meta_info": {"hidden_states": states}})
        return server

    def call(self, path: str, body: dict[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        """Answer."""
        del body, timeout_s
        return self.info if path == "/server_info" else self.reply


@pytest.fixture
def target(tmp_path: Path) -> TargetFacts:
    """A target of eight layers whose ids SGLang raises by one."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return TargetFacts(tmp_path, N, WIDTH, VOCAB, "t", "k")


def table(chunks: int, rows: int = len(IDS)) -> list[list[float]]:
    """Return rows of numbers as SGLang sends them."""
    rng = np.random.default_rng(0)
    return [[round(float(x), 6) for x in row] for row in rng.normal(size=(rows, chunks * WIDTH))]


@pytest.mark.parametrize(
    ("chunks", "info", "layers"),
    [
        (3, AUX | {"return_aux_hidden_state_layer_ids": [1, 3, 4]}, LAYERS),
        (3, AUX, LAYERS),  # SGLang's own default is that of a run of eight layers
        (3, {}, LAYERS),  # an older one, with a draft: it does not say
        (1, {}, ()),
    ],
)
@pytest.mark.parametrize("nested", [True, False])
def test_rows_are_taken_whatever_their_nesting(
    target: TargetFacts, chunks: int, info: dict[str, Any], layers: tuple[int, ...], *, nested: bool
) -> None:
    """One row a token, in a block or one by one; layers, or the final state alone."""
    rows = table(chunks)
    found = ask_stock(Stock.of([rows] if nested else rows, **info), target, LAYERS)

    assert (layers, (len(IDS), chunks, WIDTH)) == (found.layers, found.states.shape)
    assert np.allclose(found.states.reshape(len(IDS), -1), rows)


@pytest.mark.parametrize(
    ("states", "info", "error", "words"),
    [
        (None, {}, ConfigError, "--enable-return-hidden-states"),
        ([], {}, ConfigError, "--enable-return-hidden-states"),
        ({"eagled_capture": "x"}, {}, ConfigError, "runs with eagled's plugin"),
        ([table(3)[:5]], {}, ConfigError, "5 rows for a prompt of 24 .*--disable-radix-cache"),
        ([table(2)], {}, ConfigError, "rows of 32 numbers; the target is 16 wide"),
        ([[[0.5, "x"]] * len(IDS)], {}, ReplyBrokenError, "no table of numbers"),
        ([[[1.0], [1.0, 2.0]]], {}, ReplyBrokenError, "no table of numbers"),
        (
            [table(3)], AUX | {"return_aux_hidden_state_layer_ids": [2, 4, 5]}, ConfigError,
            r"returns the boundaries \[3, 5, 6\], this run plans \[2, 4, 5\]",
        ),
    ],
)  # fmt: skip
def test_what_is_no_second_opinion_is_refused(
    target: TargetFacts, states: object, info: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Missing rows, another width, other layers, our own plugin: each says what to do."""
    with pytest.raises(error, match=words):
        ask_stock(Stock.of(states, **info), target, LAYERS)


def test_other_layers_are_told_how_to_ask(target: TargetFacts) -> None:
    """The ids that SGLang wants for the run's boundaries are in the message."""
    with pytest.raises(ConfigError, match="--return-aux-hidden-state-layer-ids 2 4 6"):
        ask_stock(Stock.of([table(3)], **AUX), target, (3, 5, 7))


def captured() -> Captured:
    """Return states of the probe prompt as a back end gives them."""
    bits = random_bits(np.random.default_rng(1), (len(IDS), 4, WIDTH))
    return Captured(IDS, bits[:, :3], bits[:, 3], "prefill")


def verdict(states: Captured, stock: Floats, layers: tuple[int, ...]) -> tuple[bool, str]:
    """Return what is said of a comparison."""
    chunks = judge_stock(states, stock, layers)
    good, lines = summary([SampleFinding("of stock", len(IDS), chunks)])
    return good, "\n".join(lines)


def test_equal_states_are_good_and_others_are_named() -> None:
    """The same rows pass; swapped layers, foreign ones and a shifted final state do not."""
    states = captured()
    aux, last = from_bits(states.aux), from_bits(states.last)[:, None]
    other = from_bits(random_bits(np.random.default_rng(2), (len(IDS), 3, WIDTH)))

    assert verdict(states, aux, LAYERS)[0]
    assert verdict(states, last, ())[0]
    good, said = verdict(states, aux[:, [1, 0, 2]], LAYERS)
    assert not good
    assert "boundary 2: it is boundary 4 (the layers are in another order" in said
    good, said = verdict(states, other, LAYERS)
    assert not good
    assert "other layers, or another model?" in said
    assert not verdict(replace(states, last=np.roll(states.last, 1, axis=0)), last, ())[0]


def test_a_head_check_alone_says_that_layers_were_not_looked_at() -> None:
    """The final state is all that the head sees; with a stock server's layers nothing is left."""
    head = SampleFinding("s", 20, (), 1.0)
    states = captured()
    chunks = judge_stock(states, from_bits(states.aux), LAYERS)
    final = judge_stock(states, from_bits(states.last)[:, None], ())

    assert UNSEEN in summary([head])[1]
    assert UNSEEN in summary([head, SampleFinding("of stock", 24, final)])[1]
    assert UNSEEN not in summary([head, SampleFinding("of stock", 24, chunks)])[1]
    good, lines = summary([])
    assert (False, NOTHING) == (good, lines[0])


def test_what_is_kept_is_read_back(target: TargetFacts, tmp_path: Path) -> None:
    """Bit for bit; of another plan, or damaged, it is refused."""
    path = tmp_path / "stock.json"
    stock = ask_stock(Stock.of([table(3)]), target, LAYERS)
    save_stock(stock, path)
    found = load_stock(path, target, LAYERS)

    assert (stock.ids.tolist(), stock.layers, stock.version) == (
        found.ids.tolist(), found.layers, found.version
    )  # fmt: skip
    assert np.array_equal(stock.states, found.states)
    with pytest.raises(ConfigError, match="ask the stock server again"):
        load_stock(path, target, (3, 5, 6))
    with pytest.raises(ConfigError, match="--keep"):
        save_stock(stock, tmp_path / "config.json" / "stock.json")
    for damage in ({"states": "AAAA"}, {"ids": [1]}, {"format": "x"}, {"layers": None}):
        path.write_text(json.dumps(json.loads(path.read_text()) | damage))
        with pytest.raises(ArtifactError):
            load_stock(path, target, LAYERS)
        save_stock(StockStates(stock.ids, stock.states, stock.layers, "0.5.23"), path)
