"""Says what a replay of this job's training runs, and on groups of how many nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from slurm_robust.stoptime.agent_step import environment
from slurm_robust.stoptime.replay_run import ReplaySpec, by_option
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState

_LEAST_NODES = 2
"""The least nodes of a group: communication between nodes is a part of what is replayed."""
_PROCESSORS = ("SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_TASK")
"""Variables for the size of a task that srun reads: a replay's tasks are as large as the job's."""
_REPLICA = ("tp", "pp", "cp")
"""Parallel sizes whose product is one replica of the model."""


def group_nodes(layout: Mapping[str, int], ranks_a_node: int) -> int:
    """Return how many nodes one group has: the nodes of one replica of the model, but at least two."""
    replica = math.prod(layout.get(kind, 1) for kind in _REPLICA)
    return max(_LEAST_NODES, math.ceil(replica / max(1, ranks_a_node)))


def replay_spec(session: Session, attempt: AttemptState) -> ReplaySpec | None:
    """Return what is replayed; None if the nodes are too few for two groups, or the step was not launched by us."""
    command = session.command
    if command is None or session.channel is None:
        return None
    ranks = attempt.fleet.ranks.values()
    ranks_of = Counter(rank.node for rank in ranks)
    size = group_nodes(attempt.layout, max(ranks_of.values(), default=1))
    if len(ranks_of) < 2 * size:
        return None
    # Several ranks of torchrun are one task for Slurm.
    tasks_of = Counter(node for node, _ in {(rank.node, rank.task if rank.task >= 0 else rank.rank) for rank in ranks})
    launched = session.launched(command)
    env = dict(session.environment)
    processors = {name: env[name] for name in _PROCESSORS if name in env}
    if session.code is not None:
        env |= session.code.environment(env)
    own = ReplaySpec(
        size,
        max(tasks_of.values(), default=1),
        launched.command,
        attempt.layout.get("tp", 0),
        srun_options=launched.options,
        environment=environment(env) | processors,
    )
    return by_option(session.replay, own)
