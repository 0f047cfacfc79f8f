"""Which holds of Slurm are ours to end: only those that a node of ours to judge caused, for certain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_robust.core.model import JobRef
from slurm_robust.policy.cluster.launch_failed import launch_failed, refused_by
from slurm_robust.slurm.client import Job, Node

HELD = Job(
    JobRef(7), "PENDING", "ann", 1000, "main", reason="launch failed requeued held", restart_count=1, submit_at_s=1000
)
NODE = Node("n2", "IDLE", frozenset(("DRAIN",)), "srobust: XID 79 on GPU 3 [job 7]", "root", reason_at_s=999)


@pytest.mark.parametrize(
    ("job", "node", "ours"),
    [
        (HELD, NODE, True),
        (replace(HELD, reason="launch_failed_requeued_held"), NODE, True),
        (replace(HELD, reason="JobHeldUser"), NODE, False),
        (replace(HELD, reason="JobHeldAdmin"), NODE, False),
        (replace(HELD, priority=1), NODE, False),
        (replace(HELD, state="RUNNING"), NODE, False),
        (replace(HELD, hetjob_id=7), NODE, False),
        # Held again, for another cause, while the node of last time is still out.
        (replace(HELD, submit_at_s=5000), NODE, False),
        (HELD, replace(NODE, reason_at_s=1020), False),
        (HELD, replace(NODE, reason="srobust: XID 79 on GPU 3 [job 77]"), False),
        (HELD, replace(NODE, reason="srobust: XID 79 on GPU 3"), False),
        (HELD, replace(NODE, reason="bad fan [job 7]"), False),
        (HELD, replace(NODE, reason="Prolog error"), False),
        (HELD, replace(NODE, flags=frozenset()), False),
    ],
)
def test_only_a_refusal_of_ours_is_ours_to_end(job: Job, node: Node, ours: bool) -> None:
    """A person's hold never is, nor one whose cause is not certain."""
    assert refused_by(job, {"n1": Node("n1", "IDLE"), "n2": node}) == (node if ours else None)


def test_a_hold_of_slurm_s_own_is_told_from_a_person_s() -> None:
    """By the reason alone, in both spellings."""
    assert launch_failed(HELD)
    assert not launch_failed(replace(HELD, reason="JobHeldUser"))
    assert not launch_failed(replace(HELD, reason=""))
