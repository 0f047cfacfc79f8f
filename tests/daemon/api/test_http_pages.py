"""The read-only HTTP side: what it shows, what it refuses, and that the daemon outlives it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from fake_slurm import FakeSlurm
from helpers import wait_until
from snapshots import stormy

from slurm_robust.config.site import parse
from slurm_robust.core.model import Mode
from slurm_robust.daemon.api.metrics import metrics
from slurm_robust.daemon.api.state_lines import Snapshot, encode
from slurm_robust.daemon.api.state_publisher import StatePublisher
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.store.journal import Journal

SNAPSHOT = {
    "at_s": 100.0,
    "mode": "act",
    "breaker": {"open": True, "why": "XID storm"},
    "slurm_calls": 7,
    "nodes": [{"name": "n1", "node_state": "drained"}, {"name": "n2", "room": "idle"}],
    "standby": [{"name": "p", "short": 2}],
    "jobs": [{"job": "1", "user": "ann", "node_count": 2, "ettr": 0.5}],
    "job_labels": True,
    "notify": [{"target": "t", "waiting": 1}],
    "totals": {
        "counters": {"drains": 2, "incidents|claim|seat|resumed": 1},
        "times": {"stage|running|seat": {"bounds_s": [1.0], "counts": [0, 1], "sum_s": 3.0}},
    },
    "incidents": [{"outcome": "resumed", "times": {"accepted": 10.0, "running": 11.5}}],
}


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and body."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def listening(port: int) -> bool:
    """True once something listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def server(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The HTTP process, as the daemon starts it."""
    argv = [sys.executable, "-m", "slurm_robust.cli.main", "daemon", "http", "--port", str(port)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        wait_until(lambda: listening(port), 20, "it listens")
        yield process
        process.kill()


def test_shows_what_it_is_fed_and_nothing_else(server: subprocess.Popen[bytes], port: int) -> None:
    """State and metrics from the pipe; garbage leaves the old state; other paths and methods are refused."""
    assert server.stdin is not None
    server.stdin.write(json.dumps(SNAPSHOT).encode() + b"\nnot json\n[1]\n")
    server.stdin.flush()
    wait_until(lambda: get(port, "/state.json")[1] != "{}", 10, "the snapshot")
    assert json.loads(get(port, "/state.json")[1]) == SNAPSHOT
    assert "srobust_breaker_open 1.0" in get(port, "/metrics")[1]
    assert get(port, "/healthz")[0] == 503  # the snapshot is old
    assert get(port, "/journal.sqlite")[0] == 404
    assert get(port, "/state.json", "POST")[0] == 405


def test_a_daemon_that_cannot_write_is_not_well(server: subprocess.Popen[bytes], port: int) -> None:
    """It lives, and does nothing; other troubles, which leave it some of its work, are no reason."""
    assert server.stdin is not None
    sentence = "the folder /x cannot be written (No space left on device), so nothing is done: df -h /x"
    for troubles, expected in ((["1 of Slurm's jobs cannot be read"], 200), ([sentence], 503), ([], 200)):
        server.stdin.write(json.dumps({**SNAPSHOT, "at_s": time.time(), "troubles": troubles}).encode() + b"\n")
        server.stdin.flush()
        wait_until(lambda: get(port, "/healthz")[0] == expected, 10, f"{expected}")  # noqa: B023 (called at once)


def test_has_no_rights_and_ends_with_its_input(server: subprocess.Popen[bytes]) -> None:
    """It is nobody, if root started it, and ends when the daemon does."""
    if os.geteuid() == 0:
        status = Path(f"/proc/{server.pid}/status").read_text()
        assert "\nUid:\t65534\t65534\t65534\t65534" in status
        assert "\nCapEff:\t0000000000000000" in status
    assert server.stdin is not None
    server.stdin.close()
    assert server.wait(10) == 0


@pytest.fixture
def closed(tmp_path: Path) -> dict[str, str]:
    """What has Python read all of its library, and all packages, through a folder that only root may enter."""
    home = tmp_path / "closed"
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (home / "lib").mkdir(parents=True)
    (home / "lib" / version).symlink_to(Path(os.__file__).resolve().parent)
    (home / "packages").symlink_to(Path(aiohttp.__file__).parents[1])
    (home / "project").symlink_to(Path(__file__).parents[3])
    home.chmod(0o700)
    return {**os.environ, "PYTHONHOME": str(home), "PYTHONPATH": f"{home}/project:{home}/packages"}


@pytest.fixture
def state_file() -> Iterator[Path]:
    """A snapshot that nobody may read, too: pytest's own folders are root's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / "state.json"
        file.write_text(json.dumps(SNAPSHOT))
        yield file


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to drop")
@pytest.mark.parametrize("from_file", [False, True])
def test_needs_no_file_of_python_once_it_is_nobody(
    closed: dict[str, str], tmp_path: Path, state_file: Path, port: int, from_file: bool
) -> None:
    """Installed below a folder of mode 0700, such as root's home: it has loaded all it needs before it becomes nobody.

    It answers every page, refuses what it does not know, and ends as it should, with no traceback.
    """
    python: str = sys._base_executable  # type: ignore[attr-defined]
    argv = [python, "-m", "slurm_robust.cli.main", "daemon", "http", f"--port={port}", "--host=localhost"]
    argv += [f"--state-file={state_file}"] if from_file else []
    errors = tmp_path / "errors"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=stderr, env=closed, cwd=tmp_path)
    try:
        wait_until(lambda: listening(port) or process.poll() is not None, 60, "it listens")
        assert process.poll() is None, errors.read_text()
        assert "\nUid:\t65534\t65534\t65534\t65534" in Path(f"/proc/{process.pid}/status").read_text()
        assert process.stdin is not None
        if not from_file:
            process.stdin.write(json.dumps(SNAPSHOT).encode() + b"\n")
            process.stdin.flush()
        wait_until(lambda: get(port, "/state.json")[1] != "{}", 60, "the snapshot")
        assert "srobust_breaker_open 1.0" in get(port, "/metrics")[1]
        assert get(port, "/healthz")[0] == 503
        assert get(port, "/nothing")[0] == 404
        assert get(port, "/state.json", "POST")[0] == 405
        with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
            raw.sendall(b"what is this?\r\n\r\n")
            assert b" 400 " in raw.recv(4096)
        assert get(port, "/state.json")[0] == 200
        # A night in which everything is shown that the pages can show.
        text = json.dumps(stormy(time.time()))
        if from_file:
            state_file.with_name("new").write_text(text)
            state_file.with_name("new").replace(state_file)
        else:
            process.stdin.write(text.encode() + b"\n")
            process.stdin.flush()
        wait_until(lambda: "XID 79" in get(port, "/")[1], 60, "the dashboard")
        key = json.loads(text)["incidents"][0]["key"].replace("/", "%2F")
        assert "dl id=" in get(port, f"/incidents/{key}")[1]
        assert get(port, "/static/dashboard.js")[0] == 200
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/events?page=home", timeout=60) as events:
            assert b"retry" in events.readline()
        process.stdin.close()
        if from_file:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    assert errors.read_text() == ""


def test_metrics_are_numbers_and_states() -> None:
    """Rooms, breaker, standby and the last recovery's stages; no job, user or text stands in a label."""
    text = metrics(SNAPSHOT, now_s=103.0).decode()
    for line in (
        "srobust_snapshot_age_seconds 3.0",
        'srobust_nodes{room="drained",state="drained"} 1.0',
        'srobust_standby_missing{pool="p"} 2.0',
        'srobust_last_recovery_seconds{stage="running"} 1.5',
    ):
        assert line in text
    assert "XID" not in text
    assert b"srobust_acting 0.0" in metrics({}, now_s=0.0)


class AlwaysNew:
    """The snapshot, with the time of now."""

    def revision(self) -> None:
        """Not known."""

    def take(self) -> Snapshot:
        """The state now."""
        nodes = {str(row["name"]): encode(row) for row in SNAPSHOT["nodes"]}
        return Snapshot({**SNAPSHOT, "at_s": time.time()}, nodes)


@pytest.mark.parametrize(("every_h", "shown"), [("1", True), ("0", False)])
def test_pages_that_nobody_makes_anew_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_h: str, shown: bool
) -> None:
    """They would be as old as the last change of the configuration."""
    started: list[str] = []

    async def start(*argv: str, **_: object) -> None:
        started.extend(argv)
        raise OSError

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    config = parse(f"daemon: {{http: {{report_every_h: {every_h}}}}}")
    context = DaemonContext(config, FakeSlurm(), Journal.open(tmp_path), account="root", mode=Mode.ACT)
    asyncio.run(StatePublisher(context, tmp_path, AlwaysNew()).tick())
    assert started
    assert any(word.startswith("--pages=") for word in started) is shown


def test_daemon_goes_on_when_it_dies(tmp_path: Path, port: int) -> None:
    """Killed, it is started again after a while; the daemon's own file is there all the time."""
    config = parse(f"daemon: {{http: {{port: {port}}}}}")
    context = DaemonContext(config, FakeSlurm(), Journal.open(tmp_path), account="root", mode=Mode.ACT)
    context.private = frozenset()
    window = StatePublisher(context, tmp_path, AlwaysNew())

    async def story() -> None:
        async def ticking(until_s: float) -> None:
            deadline_s = time.monotonic() + until_s
            while time.monotonic() < deadline_s and not listening(port):
                await window.tick()
                await asyncio.sleep(0.05)

        await ticking(20)
        assert window._process is not None
        window._process.send_signal(signal.SIGKILL)
        await window._process.wait()
        assert not listening(port)
        await ticking(20)
        assert listening(port)
        await window.close()
        assert not listening(port)

    asyncio.run(story())
    assert json.loads((tmp_path / "state.json").read_text())["mode"] == "act"
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o644
    context.journal.close()
