"""A devcluster whose nodes are tested, with faults put into the ranks of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

COMMAND = [sys.executable, "-m", "slurm_robust.cli.main", "test"]
_FAULTY = Path(__file__).with_name("faulty_ranks")


class TestedCluster:
    """Types `srobust test` on a devcluster."""

    __test__ = False

    def __init__(self, cluster: DevCluster) -> None:
        self.cluster = cluster

    @contextmanager
    def started(self, *words: str, faults: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        """The command, running; it is killed at the end if it still runs."""
        with tempfile.TemporaryDirectory(prefix="stoptime-") as folder:
            env = self.cluster.env | {
                "PYTHONPATH": f"{_FAULTY}:{Path.cwd()}",
                "FAULTY_RANKS": json.dumps(faults or {}),
                "FAULTY_RANKS_FOLDER": folder,
            }
            pipe = subprocess.PIPE
            with subprocess.Popen([*COMMAND, *words], stdout=pipe, stderr=pipe, text=True, env=env) as process:
                try:
                    yield process
                finally:
                    process.kill()

    def test(self, *words: str, faults: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """Exit code and JSON of a whole run, after which nothing of it is left."""
        found = self.test_beside(*words, faults=faults)
        self.nothing_is_left()
        return found

    def test_beside(self, *words: str, faults: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """The same, while another test may run."""
        with self.started(*words, "--json", faults=faults) as process:
            out, err = process.communicate(timeout=200)
        assert out, err
        return process.returncode, json.loads(out)

    def tested(self) -> list[int]:
        """Processes of a test on this cluster's nodes, ranks and agents alike, and its srun."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes()
                environ = (path / "environ").read_bytes()
            except OSError:
                continue
            ours = str(self.cluster.directory).encode() in environ and int(path.name) != os.getpid()
            replayed = b"\0SROBUST_REPLAY=1" in environ
            if ours and (replayed or any(part in words for part in (b"stoptime", b"srobust-test", b"srobust-replay"))):
                found.append(int(path.name))
        return found

    def nothing_is_left(self) -> None:
        """Wait until no process of a test is there."""
        wait_until(lambda: not self.tested(), 20, "every process of the test has ended")
