"""`python -m bench.crash --kills N --cuts M`: what the daemon acknowledges, it keeps.

N times the real daemon is killed with SIGKILL at a random moment under load and started again,
while a witness in a process of its own writes down every acknowledgement. In the end database,
corpus and shards are compared with what was acknowledged. Then M simulated power cuts of the
store's own transactions, with the negative control that switching fsync off is caught.

    python -m bench.crash --kills 300 --cuts 0 --server sim --with-server
    python -m bench.crash --kills 10 --cuts 0 --server sglang --with-server

With `--with-server` each kill takes the daemon, the server, or both at the same moment, drawn at
random (both: every second one on average), and what is down is started again.

Prints `lost=0 doubled=0` and exits 0, or names every finding and exits 1. 0 losses in N kills bound
the rate below 3/N at 95% confidence.
"""

from __future__ import annotations

import argparse
import random
import socket
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import orjson

from bench import powercut
from bench.crash.engines import Kind
from bench.crash.world import World, make_world, start_helpers, wait_until
from eagled.audit import Audit, audit

_START_S = 60.0
_DRAIN_S = 1800.0
_LIFE_S = (0.05, 1.2)  # from the socket's first answer to the kill
_LONG_LIFE_S = (2.0, 5.0)  # of every tenth, so that shards are committed between kills
_OPEN_STATES = (0, 1, 2, 3, 4, 6)
_FLYING = (1,)
_TO_ANSWER = (0, 1, 2, 6)
_ANSWERED = (3, 4, 5)
_PER_KILL = {"canned": 90, "sim": 90, "sglang": 15}  # conversations, so that some are left
_VICTIMS = ("both", "both", "daemon", "server")
_LOAD_S = 300.0  # until requests are in flight; real SGLang takes minutes on a busy machine


@dataclass(slots=True)
class Tally:
    """What the kills hit."""

    kills: int = 0
    of_server: int = 0
    of_both: int = 0
    in_flight: int = 0

    def line(self) -> str:
        """Return it in words."""
        servers = f"of_server={self.of_server} of_both={self.of_both} " if self.of_server else ""
        return f"kills={self.kills} {servers}in_flight_at_kills={self.in_flight}"


def kill_loop(world: World, kills: int, rng: random.Random, *, with_server: bool) -> Tally:
    """Start daemon and server and kill one or both, again and again; return what was hit."""
    tally = Tally()
    for number in range(kills):
        world.engine.start()
        world.start_daemon()
        if number % 5:  # every fifth kill may hit the start itself
            _wait_for_answer(world)
            if with_server:
                wait_until(lambda: _busy(world), _LOAD_S, "request in flight")
        time.sleep(rng.uniform(*(_LIFE_S if number % 10 else _LONG_LIFE_S)))
        tally.in_flight += _count(world, _FLYING)
        _kill(world, tally, rng.choice(_VICTIMS) if with_server else "daemon")
        _report(tally, world)
        if _all_done(world):
            sys.stdout.write("all samples are done before all kills were: use more samples\n")
            break
    return tally


def _busy(world: World) -> bool:
    """Return whether requests are in flight, or nothing is left to send."""
    if _count(world, _FLYING):
        return True
    return _count(world, _ANSWERED) > 0 and _count(world, _TO_ANSWER) == 0


def _kill(world: World, tally: Tally, victims: str) -> None:
    if victims != "daemon":
        world.engine.kill()
    if victims != "server":
        world.kill_daemon()
    tally.kills += 1
    tally.of_server += victims != "daemon"
    tally.of_both += victims == "both"


def drain(world: World) -> None:
    """Let the daemon finish everything, freeze a corpus, and stop it in order."""
    world.engine.start()
    world.start_daemon()
    _wait_for_answer(world)
    wait_until(lambda: _all_done(world), _DRAIN_S, "end of the work")
    world.command("merge")
    world.command("verify")
    code = world.stop_daemon(_START_S)
    if code:
        raise SystemExit(f"the daemon ended with {code} on SIGTERM")


def compare(world: World) -> Audit:
    """Hold what is there against what the witness saw."""
    acks = [orjson.loads(line) for line in world.acks.read_bytes().splitlines()]
    corpus = max(world.state.corpora.iterdir()) / "corpus.parquet"
    return audit(acks, world.state.database, corpus=corpus, shards=world.state.shards)


def redone(world: World) -> str:
    """Return how much was asked for again: requests, and at most how many tokens of answers."""
    with closing(sqlite3.connect(f"file:{world.state.database}?mode=ro", uri=True)) as db:
        again, tokens, whole = db.execute(
            "SELECT sum(attempt - 1), sum((attempt - 1) * n_output), sum(n_output)"
            " FROM sample WHERE attempt > 0 AND n_output IS NOT NULL"
        ).fetchone()
    return f"asked_again={again} redone_tokens<={tokens} ({tokens / whole:.1%} of {whole})"


def _wait_for_answer(world: World) -> None:
    def answered() -> bool:
        code = world.daemon_ended()
        if code is not None:
            log = (world.root / "daemon.log").read_text(errors="replace")[-3000:]
            raise SystemExit(f"the daemon ended with {code}:\n{log}")
        return world.state.socket.exists() and _connects(world)

    wait_until(answered, _START_S, "answer from the daemon")


def _connects(world: World) -> bool:
    with closing(socket.socket(socket.AF_UNIX)) as sock:
        return sock.connect_ex(str(world.state.socket)) == 0


def _count(world: World, states: tuple[int, ...]) -> int:
    marks = ",".join("?" * len(states))
    return _number(world, f"SELECT count(*) FROM sample WHERE state IN ({marks})", states)  # noqa: S608 - only marks


def _all_done(world: World) -> bool:
    """Return whether every prepared sample is in the queue, and settled.

    Raises:
        SystemExit: if a helper has ended.
    """
    world.check_helpers()
    whole = _number(world, "SELECT count(*) FROM dataset WHERE complete = 1")
    return bool(whole) and _count(world, _OPEN_STATES) == 0


def _number(world: World, query: str, parameters: tuple[int, ...] = ()) -> int:
    if not world.state.database.exists():
        return 0
    with closing(sqlite3.connect(f"file:{world.state.database}?mode=ro", uri=True)) as db:
        try:
            return int(db.execute(query, parameters).fetchone()[0])
        except sqlite3.OperationalError:  # killed before the schema was there
            return 0


def _report(tally: Tally, world: World) -> None:
    if tally.kills % 10 == 0:
        left = _count(world, _OPEN_STATES)
        sys.stdout.write(f"{tally.line()} open={left}\n")
        sys.stdout.flush()


def kill_test(
    root: Path,
    *,
    kills: int,
    conversations: int,
    seed: int,
    mean_ms: float,
    kind: Kind = "canned",
    with_server: bool = False,
    venv: Path | None = None,
) -> bool:
    """Run the kill part; print its verdict and return whether it held."""
    world = make_world(
        root, conversations=conversations, seed=seed, mean_ms=mean_ms, kind=kind, venv=venv
    )
    try:
        start_helpers(world)
        tally = kill_loop(world, kills, random.Random(seed), with_server=with_server)
        drain(world)
        found = compare(world)
    finally:
        world.close()
    for line in (*found.lost, *found.doubled)[:20]:
        sys.stdout.write(f"  {line}\n")
    sys.stdout.write(f"{tally.line()} {found.line()} {redone(world)}\n")
    return found.ok


def main() -> int:
    """Parse the arguments, run both parts, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--conversations", type=int, default=0, help="default: by the server")
    parser.add_argument("--mean-ms", type=float, default=300, help="mean time of a reply")
    parser.add_argument("--server", choices=get_args(Kind), default="canned")
    parser.add_argument("--with-server", action="store_true", help="kill the server too")
    parser.add_argument("--sglang-venv", type=Path, default=Path(".sglang-venv"))
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--dir", type=Path, help="where to work; default: a temporary folder")
    args = parser.parse_args()
    sys.stdout.write(f"seed={args.seed}\n")
    ok = True
    with tempfile.TemporaryDirectory(prefix="eagled-crash-") as temporary:
        root = args.dir or Path(temporary) / "w"
        if args.kills:
            conversations = args.conversations or _PER_KILL[args.server] * args.kills
            ok = kill_test(
                root, kills=args.kills, conversations=conversations, seed=args.seed,
                mean_ms=args.mean_ms, kind=args.server, with_server=args.with_server,
                venv=args.sglang_venv.absolute(),
            )  # fmt: skip
        if args.cuts:
            cuts = ["--cuts", str(args.cuts), "--seed", str(args.seed)]
            ok = powercut.main(cuts) == 0 and ok
    sys.stdout.write("crash: ok\n" if ok else "crash: FAILED\n")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
