"""The pyslurm back end with a pyslurm that hangs, dies, is broken or can do nothing: no cluster is needed."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.config import SlurmConfig
from slurm_robust.slurm.client import Reservation
from slurm_robust.slurm.errors import (
    SlurmError,
    SlurmMissingError,
    SlurmParseError,
    SlurmRefusedError,
    SlurmTimeoutError,
    SlurmUnavailableError,
)
from slurm_robust.slurm.pyslurm_backend import PyslurmClient
from slurm_robust.slurm.pyslurm_worker import exit_code

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


def test_libslurm_that_ends_its_process_is_unavailable(fake: Make) -> None:
    """As it does without a configuration; its last words reach the caller."""
    words = "fatal: Could not establish a configuration source"
    client = fake(f"import os\nos.write(2, b'{words}')\nos._exit(1)\n")
    with pytest.raises(SlurmUnavailableError, match="configuration source"):
        client.nodes()
    client.close()


def test_a_process_that_dies_silently_is_an_error_and_no_verdict(fake: Make) -> None:
    """Neither a refusal nor an empty list."""
    client = fake(RESERVATION.format(body="import os; os._exit(7)"))
    with pytest.raises(SlurmError) as caught:
        client.reservations()
    assert type(caught.value) is SlurmError
    client.close()


def test_a_pyslurm_of_another_slurm_is_missing(fake: Make) -> None:
    """It does not import: the words of the import reach the caller, each time."""
    client = fake("raise ImportError('libslurm.so.41: cannot open shared object file')")
    for _ in range(2):
        with pytest.raises(SlurmMissingError, match=r"libslurm\.so\.41"):
            client.nodes()
    client.close()


def test_what_pyslurm_has_not_goes_by_the_commands(fake: Make) -> None:
    """An empty module: the answer is scontrol's."""
    client = fake("")
    assert client.reservations() == []
    client.close()


@pytest.mark.parametrize(
    ("state", "printed", "derived", "meant"),
    [
        ("COMPLETED", "0:0", "0:0", "0:0"),
        ("PENDING", "0:126", "0:126", "0:0"),
        ("FAILED", "3:126", "0:126", "3:0"),
        ("COMPLETED", "0:9", "0:9", "0:0"),
        ("FAILED", "0:9", "0:9", "0:9"),
        ("FAILED", "3:9", "0:9", "3:0"),
        ("FAILED", "1:9", "1:0", "0:9"),
        ("CANCELLED", "0:15", "0:0", "0:15"),
    ],
)
def test_an_exit_code_without_what_a_step_left_in_it(state: str, printed: str, derived: str, meant: str) -> None:
    """Seen with 22.5.x: the two codes of one job run into each other."""
    assert exit_code(state, printed, derived) == meant


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("ValueError('Invalid user id', 2010)", SlurmRefusedError),
        ("ValueError('Unable to contact slurm controller (connect failure)', 1)", SlurmUnavailableError),
        ("KeyError('new_layout')", SlurmParseError),
        ("AttributeError('no such thing')", SlurmParseError),
    ],
)
def test_its_errors_are_ours(fake: Make, raised: str, kind: type[SlurmError]) -> None:
    """The same types as the commands give."""
    client = fake(RESERVATION.format(body=f"raise {raised}"))
    with pytest.raises(kind):
        client.reservations()
    client.close()
