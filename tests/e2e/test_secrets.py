"""A server's key is nowhere but in its file: not in what eagled writes, prints, shows or dumps."""

from __future__ import annotations

import signal
from pathlib import Path

from eagled.control import call
from tests.daemon_kit import daemon, eagled, fill, write_config
from tests.servers.misbehaving import INFO
from tests.servers.process import ServerProcess

KEY = "sk-planted-5f1e77aa90"
# SGLang's own dump of its arguments has the key; an error page may repeat the request's headers
TELLTALE_INFO = {**INFO, "api_key": KEY, "admin_api_key": KEY, "server_args": f"--api-key {KEY}"}
ECHO = {"do": "status", "status": 500, "body": f'{{"error": {{"message": "Bearer {KEY} failed"}}}}'}


def _keyed(tmp_path: Path, url: str) -> Path:
    key = tmp_path / "server.key"
    key.write_text(KEY + "\n")
    key.chmod(0o600)
    config = write_config(tmp_path, url, daemon={"metrics_port": 0})
    text = config.read_text().replace("[[servers]]", f'[[servers]]\napi_key_file = "{key}"')
    config.write_text(text)
    return config


def _files_with_key(root: Path) -> list[str]:
    return [
        str(path)
        for path in root.rglob("*")
        if path.is_file() and path.name != "server.key" and KEY.encode() in path.read_bytes()
    ]


def _printed(config: Path, socket: Path) -> str:
    """Return everything that commands and the control API say."""
    commands = (
        ("config", "--show"), ("config", "--show", "--json"), ("status", "--json"),
        ("events", "--json"), ("failures", "--json"), ("doctor", "--json"), ("samples", "--json"),
        ("report", "--json"), ("report",), ("db", "backup"), ("db", "check", "--json"),
    )  # fmt: skip
    said = [eagled(*c, "--config", str(config), cwd=config.parent) for c in commands]
    api = [
        str(call.get(socket, path))
        for path in ("/v1/status", "/v1/events", "/v1/failures", "/v1/report")
    ]
    return "\n".join([*(f"{d.stdout}{d.stderr}" for d in said), *api])


def test_a_planted_key_is_found_nowhere(tmp_path: Path) -> None:
    """It is used, sent back in error pages and in the server's own dump, and still stays hidden."""
    with ServerProcess() as server:
        server.set(info=TELLTALE_INFO)
        server.steps(ECHO, ECHO, {"do": "answer"})
        config = _keyed(tmp_path, server.url)
        fill(config, [[1, 2, i] for i in range(6)])
        with daemon(config, EAGLED_DEBUG="1") as process:
            process.until(lambda status: status["datasets"]["d"]["done"] == 6)
            said = _printed(config, process.socket)
            process.signal(signal.SIGABRT)  # what the watchdog does: every thread is printed
            process.wait()
        keys = {request["key"] for request in server.seen()["sent"]}

    assert {f"Bearer {KEY}"} == keys
    assert "Fatal Python error: Aborted" in process.log
    assert "SECRET" in process.log, "the echoed key did reach the log, as a sign"
    assert [] == _files_with_key(tmp_path)
    assert 1 == len(list((tmp_path / "state/backups").glob("q-v*.db"))), "a copy was searched, too"
    assert KEY not in said


def test_the_search_can_find_something(tmp_path: Path) -> None:
    """The check above is not blind."""
    (tmp_path / "x.log").write_bytes(b"Bearer " + KEY.encode())

    assert [str(tmp_path / "x.log")] == _files_with_key(tmp_path)
