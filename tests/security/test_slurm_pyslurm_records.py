"""With pyslurm too, no job keeps the others from being read: what it cannot read, Slurm's commands do."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.slurm import values
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.pyslurm_messages import Request, Unable
from slurm_robust.slurm.pyslurm_objects import Objects
from slurm_robust.slurm.pyslurm_records import job_of
from slurm_robust.slurm.pyslurm_worker import answer

SHAPES = Path(__file__).parents[1] / "slurm/pyslurm_shapes/objects_25_11.py"


def load() -> ModuleType:
    """The stand-in of pyslurm 25.11."""
    spec = importlib.util.spec_from_file_location("stand_in_pyslurm", SHAPES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PYSLURM = load()
TIME = st.integers(-(2**63), 2**64 - 1) | st.none()


@given(TIME, TIME, TIME, st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_time_and_text_of_a_job_is_read(start_s: int, end_s: int, eligible_s: int, text: str) -> None:
    """Its times are in the calendar, and the reply reaches the daemon as it was."""
    fields: dict[str, Any] = dict.fromkeys(("name", "working_directory", "standard_output", "admin_comment"), text)
    job = PYSLURM.Job(8, start_time=start_s, end_time=end_s, eligible_time=eligible_s, **fields)
    read = job_of(job)
    assert all(0 <= at_s <= values.MAX_TIME_S for at_s in (read.start_at_s, read.end_at_s, read.eligible_at_s))
    assert msgspec.json.decode(msgspec.json.encode(read), type=Job) == read


@pytest.mark.parametrize(
    "broken",
    [{"allocated_nodes": "n[1-8000000]"}, {"allocated_nodes": "n["}, {"start_time": float("inf")}],
    ids=str,
)
def test_a_job_that_pyslurm_cannot_read_is_left_to_the_command_each_time(
    broken: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is no failure of pyslurm's: once the job is gone, pyslurm reads the jobs again."""
    monkeypatch.setenv("STUB_CALLS", str(tmp_path / "calls"))
    jobs = {7: PYSLURM.Job(7), 8: PYSLURM.Job(8, **broken)}
    monkeypatch.setattr(PYSLURM.Jobs, "load", staticmethod(lambda: jobs))
    reply = answer(Objects(PYSLURM), Request("jobs", "read jobs"), (PYSLURM.PyslurmError,))
    assert (reply.kind, "cannot be read" in reply.text) == (Unable.__name__, True)
    del jobs[8]
    reply = answer(Objects(PYSLURM), Request("jobs", "read jobs"), (PYSLURM.PyslurmError,))
    assert not reply.kind
    assert [job.ref.job_id for job in msgspec.json.decode(reply.value, type=list[Job])] == [7]
