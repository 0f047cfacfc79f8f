"""Nodes on which jobs are, and those on which others than one job are."""

from __future__ import annotations

from dataclasses import replace

from fake_slurm import FakeSlurm
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.daemon.context import SlurmReadings
from slurm_robust.policy.cluster.node_states import busy_nodes

STATES = st.sampled_from(("RUNNING", "PENDING", "SUSPENDED", "COMPLETED"))
NODES = st.sets(st.sampled_from(("n1", "n2", "n3")), min_size=1)


@given(st.lists(st.tuples(NODES, STATES, st.booleans()), min_size=1, max_size=4))
def test_a_jobs_own_nodes_are_left_out_where_nobody_else_is(jobs: list[tuple[set[str], str, bool]]) -> None:
    """As if that job were not there."""
    slurm = FakeSlurm(3)
    first = slurm.run_job(("n1",))
    made = {
        number: replace(
            first, ref=replace(first.ref, job_id=number), nodes=tuple(sorted(nodes)), state=state, completing=ends
        )
        for number, (nodes, state, ends) in enumerate(jobs, start=1)
    }
    readings = SlurmReadings(jobs=made)
    assert readings.busy == busy_nodes(made.values())
    for number in (*made, 99):
        others = [job for key, job in made.items() if key != number]
        assert readings.busy_without(number) == busy_nodes(others)
