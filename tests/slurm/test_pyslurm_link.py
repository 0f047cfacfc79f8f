"""The pyslurm back end with a pyslurm that hangs, dies or is refused: no cluster is needed."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.config.site import SlurmConfig
from slurm_robust.slurm.client import Reservation
from slurm_robust.slurm.errors import (
    SlurmError,
    SlurmRefusedError,
    SlurmTimeoutError,
    SlurmUnavailableError,
)
from slurm_robust.slurm.pyslurm_backend import PyslurmClient
from slurm_robust.slurm.pyslurm_link import WorkerDiedError

Make = Callable[[str], PyslurmClient]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a client whose pyslurm is this source."""

    def make(source: str) -> PyslurmClient:
        (tmp_path / "pyslurm.py").write_text(source)
        for name in ("scontrol", "squeue"):
            (tmp_path / name).write_text("#!/bin/sh\necho 'No reservations in the system'\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()
        return PyslurmClient(SlurmConfig(backend="pyslurm", bin_dir=str(tmp_path), timeout_s=2.0))

    return make


RESERVATION = """
class Jobs: load = None
class reservation:
    def get(self):
        {body}
        return {{"r": {{"node_list": "n[1-2]", "users": ["ann"], "flags": "FLEX,OVERLAP", "start_time": 10,
                      "end_time": 20}}}}
"""


def test_what_pyslurm_says_is_read(fake: Make) -> None:
    """A reservation of its older kind; over, so not active; what it prints on stdout disturbs nothing."""
    client = fake(RESERVATION.format(body="print('noise'); import os; os.system('echo more noise')"))
    for _ in range(2):
        assert client.reservations() == [
            Reservation("r", "n[1-2]", ("ann",), frozenset({"FLEX", "OVERLAP"}), 10, 20, "INACTIVE")
        ]
    client.close()


def test_a_call_that_hangs_ends_at_its_deadline_and_the_next_one_works(fake: Make, tmp_path: Path) -> None:
    """The process is ended, its late answer is never taken for another's."""
    note = tmp_path / "hung"
    body = f"import os, time; path = {str(note)!r}\n        if not os.path.exists(path): "
    body += "open(path, 'w').write(str(os.getpid())); time.sleep(60)"
    client = fake(RESERVATION.format(body=body))
    began_s = time.monotonic()
    with pytest.raises(SlurmTimeoutError, match="within 2 s"):
        client.reservations()
    assert time.monotonic() - began_s < 30
    wait_until(lambda: not Path(f"/proc/{note.read_text()}").exists(), 2, "the hung process gone")
    assert client.reservations()[0].name == "r"
    client.close()


def test_a_process_that_dies_in_a_change_is_an_error_and_no_verdict(fake: Make) -> None:
    """It may be done: neither a refusal, nor done again by the command."""
    client = fake(
        "class Jobs:\n  load = None\nclass Node:\n  extra = ''\n  modify = None\n"
        "class Nodes:\n  load = None\n"
        "def slurm_delete_reservation(name):\n  import os; os._exit(7)\n"
    )
    with pytest.raises(SlurmError) as caught:
        client.delete_reservation("r")
    assert type(caught.value) is WorkerDiedError
    client.close()


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("ValueError('Invalid user id', 2010)", SlurmRefusedError),
        ("ValueError('Unable to contact slurm controller (connect failure)', 1)", SlurmUnavailableError),
    ],
)
def test_its_errors_are_ours(fake: Make, raised: str, kind: type[SlurmError]) -> None:
    """The same types as the commands give."""
    client = fake(RESERVATION.format(body=f"raise {raised}"))
    with pytest.raises(kind):
        client.reservations()
    client.close()
