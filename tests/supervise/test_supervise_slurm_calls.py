"""The few calls by which the wrapper itself changes something in Slurm, in a table; all else is the daemon's."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from slurm_robust.slurm.client import SlurmClient

READING = frozenset({"nodes", "node", "jobs", "job", "job_gpus", "reservations", "cluster_name", "settings"})
"""Methods of `SlurmClient` that change nothing: they may be called anywhere."""


class SlurmCall(NamedTuple):
    """One place.

    Attributes:
        module: Below `supervise`.
        call: The method of `SlurmClient`, or the program.
        why: What it is for.
    """

    module: str
    call: str
    why: str


ALLOWED = (
    SlurmCall("job", "update_job", "writes the claim into the job's Comment"),
    SlurmCall("recover.requeue_wait", "requeue", "requests a plain requeue, where the daemon's does not come"),
    SlurmCall("recover.step_control", "signal", "kills the training step"),
    SlurmCall("recover.node_tests", "signal", "kills the step of tests whose agents do not end by themselves"),
)
STARTED_PROGRAMS = (
    SlurmCall("launch.srun_command", "srun", "the user's own step; the launcher starts it"),
    SlurmCall("launch.srun_refusal", "srun", "asks srun for its version, to learn whether it takes its options"),
    SlurmCall("reported.watch_step", "srun", "the watch step, with one agent on each node"),
)

SUPERVISE = Path(inspect.getfile(SlurmClient)).parents[1] / "supervise"
METHODS = {name for name, _ in inspect.getmembers(SlurmClient, inspect.isfunction) if not name.startswith("_")}
COMMANDS = ("srun", "scontrol", "scancel", "sbatch", "squeue", "sinfo", "sacct", "sacctmgr", "salloc", "sattach")


def module_of(path: Path) -> str:
    """`recover.requeue_wait` for its file."""
    return ".".join(path.relative_to(SUPERVISE).with_suffix("").parts)


def is_client(node: ast.expr) -> bool:
    """Whether an expression is the client, by its name."""
    return (isinstance(node, ast.Name) and node.id == "client") or (
        isinstance(node, ast.Attribute) and node.attr == "client"
    )


def calls(path: Path) -> Iterator[tuple[str, str]]:
    """(module, method) of each use of a changing method of the client, and (module, program) of each command line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in METHODS - READING and is_client(node.value):
            yield module_of(path), node.attr
        words = node.elts if isinstance(node, ast.List | ast.Tuple) else node.args if isinstance(node, ast.Call) else []
        if words and isinstance(words[0], ast.Constant) and words[0].value in COMMANDS:
            yield module_of(path), str(words[0].value)


def test_the_wrapper_changes_slurm_in_the_places_of_the_table_only() -> None:
    """A new place has to be entered, and one that is gone has to leave."""
    found = {item for path in sorted(SUPERVISE.rglob("*.py")) for item in calls(path)}
    table = {(call.module, call.call) for call in (*ALLOWED, *STARTED_PROGRAMS)}
    assert found - table == set(), "calls that are not in the table of this file"
    assert table - found == set(), "entries without a call"


def test_each_method_of_the_client_is_known_as_reading_or_changing() -> None:
    """A new method counts as changing until somebody says otherwise."""
    assert READING <= METHODS
    changing = METHODS - READING
    assert {"requeue", "update_job", "signal", "cancel", "drain", "create_reservation", "submit"} <= changing
    assert {call.call for call in ALLOWED} <= changing


def test_the_client_goes_by_its_name() -> None:
    """The test above knows it by the name `client`: no other name is given to one."""
    for path in sorted(SUPERVISE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
                name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
                if ast.unparse(node.annotation) == "SlurmClient":
                    assert name == "client", f"{path}:{node.lineno}: {name}"
