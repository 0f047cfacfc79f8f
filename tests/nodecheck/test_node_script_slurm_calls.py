"""Node checks and their scripts make few calls to Slurm themselves; all of them are in the table of `gate`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from slurm_robust.nodecheck.stages import gate
from slurm_robust.slurm.client import SlurmClient

ROOT = Path(__file__).resolve().parents[2]
NODECHECK = ROOT / "slurm_robust/nodecheck"
CLIENT = frozenset(name for name in vars(SlurmClient) if not name.startswith("_"))
MAY_START = {
    "checks/host/disk_health.py": "smartctl",
    "checks/network/chrony.py": "chronyc",
    "checks/torch/collective.py": "a rank of torch",
}
"""The files that start a program, and which."""
COMMANDS = re.compile(
    r"\s*(?:/\S+/)?(?:scontrol|sbatch|scancel|squeue|sinfo|srun|salloc|sacct|sacctmgr|sbcast|sattach)\b"
)


def parsed() -> Iterator[tuple[str, ast.Module]]:
    """Each file of nodecheck by its path below it."""
    for path in sorted(NODECHECK.rglob("*.py")):
        yield str(path.relative_to(NODECHECK)), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> set[str]:
    """Full dotted names of everything that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a method or of a module's function, by its last name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr, node


def test_only_the_gate_has_a_client() -> None:
    """Another file that imports one could call Slurm past the table."""
    acting = ("slurm_robust.slurm.client", "slurm_robust.slurm.commands", "slurm_robust.slurm.pyslurm")
    users = {file for file, tree in parsed() if any(name.startswith(acting) for name in imported(tree))}
    assert users == {"stages/gate.py"}


def test_every_call_of_the_gate_is_in_the_table() -> None:
    """And the table has no other."""
    tree = dict(parsed())["stages/gate.py"]
    made = {
        name
        for name, call in calls(tree)
        if name in CLIENT and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call)
    }
    assert made == set(gate.SLURM_CALLS)
    assert all(gate.SLURM_CALLS.values())
    # A client that is kept in a variable could be called out of this test's sight.
    kept = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and "connect(" in ast.unparse(node.value)]
    assert all(re.search(r"connect\(.*\)\.\w+\(", ast.unparse(node.value)) for node in kept)


def test_what_changes_slurm_is_called_nowhere_else() -> None:
    """Methods that no other object has: drain, requeue, cancel, update_job and their kind."""
    mutating = CLIENT - {"node", "nodes", "job", "jobs", "reservations", "cluster_name", "settings", "signal", "submit"}
    assert {"drain", "resume", "set_down", "requeue", "update_job", "cancel", "set_node_comment"} <= mutating
    wrong = [
        f"{file}:{call.lineno}: {name}" for file, tree in parsed() for name, call in calls(tree) if name in mutating
    ]
    assert all(line.startswith("stages/gate.py:") for line in wrong), wrong


def test_no_file_starts_a_command_of_slurm() -> None:
    """Programs are started by three checks, and none of them is Slurm's; the scripts start none either."""
    starting = {file for file, tree in parsed() if {"subprocess", "asyncio", "pty"} & imported(tree)}
    assert starting == set(MAY_START)
    wrong = [
        f"{file}:{name}"
        for file, tree in parsed()
        for name, _ in calls(tree)
        if name in ("system", "popen") or name.startswith(("exec", "spawn", "posix_spawn"))
    ]
    assert not wrong
    for file in MAY_START:
        for node in ast.walk(dict(parsed())[file]):
            if isinstance(node, ast.List | ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant):
                assert not COMMANDS.match(str(node.elts[0].value)), f"{file}:{node.lineno}"
    for script in ("prolog/srobust-prolog", "prolog/srobust-healthcheck", "epilog/srobust-epilog"):
        lines = (ROOT / script).read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if COMMANDS.match(line)]
