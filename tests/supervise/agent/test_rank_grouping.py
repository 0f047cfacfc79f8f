"""Processes of a step, sorted into ranks."""

from __future__ import annotations

from slurm_robust.supervise.agent.ranks import StepProcess, group


def member(pid: int, ppid: int, procid: int, rank: int = -1, command: str = "python") -> StepProcess:
    """A process of the step, for the pure part."""
    return StepProcess(pid, ppid, pid, command, procid, rank, "0", 8, 2, "")


def test_torchrun_workers_are_the_ranks() -> None:
    """One task a node, its workers told apart by RANK; a worker's loaders belong to it; the launcher is no rank."""
    members = [
        member(10, 1, 0, command="torchrun"),
        member(11, 10, 0, 0),
        member(12, 10, 0, 1),
        member(13, 11, 0, 0),
        member(14, 12, 0, 1),
    ]
    ranks = group(members)
    assert [(r.rank, [m.pid for m in r.tree]) for r in ranks] == [(0, [11, 13]), (1, [12, 14])]


def test_tasks_without_rank_are_named_by_procid() -> None:
    """One task a rank, a shell above the Python."""
    ranks = group([member(10, 1, 4, command="sh"), member(11, 10, 4), member(20, 1, 5)])
    assert [(r.rank, r.main.pid) for r in ranks] == [(4, 11), (5, 20)]


def test_an_orphaned_loader_stays_with_its_rank() -> None:
    """Its parent died and it was adopted by init: it joins the rank instead of becoming one."""
    ranks = group([member(10, 1, 0), member(15, 1, 0)])
    assert [(r.rank, r.main.pid, len(r.tree)) for r in ranks] == [(0, 10, 2)]


def test_runs_with_the_same_rank_are_named_by_their_tasks() -> None:
    """Four separate runs in one step, each with RANK=0 in a world of its own: four ranks, and none joins another."""
    members = [member(10 + task, 1, task, 0)._replace(alone=True) for task in range(4)]
    members.append(member(30, 12, 2, 0)._replace(alone=True))
    ranks = group(members)
    assert [(r.rank, [m.pid for m in r.tree]) for r in ranks] == [(0, [10]), (1, [11]), (2, [12, 30]), (3, [13])]
