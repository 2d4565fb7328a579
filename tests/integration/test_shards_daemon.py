"""Disk plan and ring through a running daemon, as people and trainers use them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.daemon_kit import daemon, eagled, write_config


@pytest.mark.slow
def test_plan_choice_and_ring_over_the_socket(tmp_path: Path) -> None:
    """What-if and choice, consumers that come and go, and mistakes with their exit codes."""
    config = write_config(tmp_path, disk={"mode": "stream", "ring_bytes": 1 << 30})
    sizes = tmp_path / "model" / "config.json"
    known = json.loads(sizes.read_text(encoding="utf-8"))
    sizes.write_text(json.dumps({**known, "num_hidden_layers": 8, "hidden_size": 16}))
    flag = ("--config", str(config))
    with daemon(config) as running:
        running.ready()
        shown = running.post("/v1/plan/disk", {"choose": "lossless"})
        assert "lossless" in shown["message"]
        plan = json.loads(eagled("plan", "disk", "--what-if", "codec=fp8", "--json", *flag).stdout)
        assert plan["options"][0]["policy"]["codec"] == "lossless"
        assert [o["policy"]["codec"] for o in plan["options"] if o["name"] == "asked"] == ["fp8"]
        assert plan["recommended"] == ""  # no length is known yet
        taken = eagled("plan", "disk", "--choose", "config", *flag)
        assert "configuration holds" in taken.stdout, taken.stderr

        for words in (("register",), ("lease", "--max", "2"), ("release", "--all"), ("leave",)):
            done = eagled("shards", words[0], "--consumer", "t", *words[1:], *flag)
            assert done.returncode == 0, done.stderr
        ring = json.loads(eagled("shards", "ring", "--json", *flag).stdout)
        assert (ring["mode"], ring["cap_bytes"], ring["consumers"]) == ("stream", 1 << 30, [])
        wrong = eagled("plan", "disk", "--what-if", "codec=gzip", *flag)
        assert (wrong.returncode, "raw, lossless, fp8" in wrong.stderr) == (2, True)
        verified = json.loads(eagled("verify", "--sample", "0.5", "--json", *flag).stdout)
        assert (verified["ok"], verified["share"]) == (True, 0.5)

    assert eagled("shards", "ring", *flag).returncode == 69
    assert "0 shards" in eagled("shards", "list", *flag).stdout
