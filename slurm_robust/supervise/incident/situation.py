"""Translates what the supervisor knows into the situation that the policy judges. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_robust.config import Config
from slurm_robust.model import Failure, Verdict
from slurm_robust.policy.job.bad_loss import BadLoss
from slurm_robust.policy.job.decide import JobFacts, Situation
from slurm_robust.slurm.client import Job, Node
from slurm_robust.supervise.launch.srun_command import SrunCommand, named_hosts
from slurm_robust.supervise.recover.lineage import Lineage
from slurm_robust.supervise.watch.fleet import Fleet


@dataclass(frozen=True)
class IncidentFacts:
    """What a decision is made from, beside the verdict.

    Attributes:
        nodes: Nodes of the allocation that were not evicted.
        silent_nodes: Those whose agent does not answer.
        dead_nodes: Those that Slurm calls down, or not responding where their agent does not answer either.
        failure: This one, as it is compared with others.
        lineage: What counts of the training's earlier attempts.
        fruitless: Attempts in a row without a new step, this one included.
        overdue: The action limit was reached.
        ended: A rank died, or srun ended.
        exit_code: srun's, where it ended by itself.
        srun_ended: srun has ended, or waits for us to release it; agents may be a moment behind.
        failed_launches: Launches of the job within the hour that made no new step, with this one where it made none.
        bad_loss, full_disk, resumes, at_stake: As in `Situation`.
    """

    config: Config
    job: Job
    fleet: Fleet
    command: SrunCommand | None
    environment: Mapping[str, str]
    nodes: Sequence[str]
    silent_nodes: Sequence[str]
    dead_nodes: Sequence[str]
    failure: Failure | None
    lineage: Lineage
    fruitless: int
    overdue: bool
    ended: bool
    exit_code: int | None
    srun_ended: bool = False
    bad_loss: BadLoss | None = None
    full_disk: str = ""
    failed_launches: int = 0
    resumes: bool | None = True
    at_stake: bool = True


def lost_nodes(nodes: Sequence[str], known: Iterable[Node], answering: Collection[str]) -> list[str]:
    """Nodes that are dead: down, or not responding to Slurm while their agent is silent too.

    A slurmd that is busy, or restarted, makes its node NOT_RESPONDING for a while, and the training goes on there.
    """
    lost = {n.name for n in known if n.state == "DOWN" or ("NOT_RESPONDING" in n.flags and n.name not in answering)}
    return [name for name in nodes if name in lost]


def describe(verdict: Verdict, facts: IncidentFacts) -> Situation:
    """The situation that `policy.decide` judges."""
    used = {r.node for r in facts.fleet.ranks.values()} or set(facts.nodes)
    spares = [n for n in facts.nodes if n not in used and n not in facts.silent_nodes and n not in facts.dead_nodes]
    candidates = {s.node for s in verdict.suspects} | set(facts.dead_nodes)
    named = set()
    if facts.command is not None:
        named = {n for n in candidates if named_hosts(facts.command, facts.environment, [n])}
    job = facts.job
    return Situation(
        verdict=verdict,
        allocation_nodes=tuple(facts.nodes),
        training_node_count=facts.fleet.step_nodes or len(used),
        training_nodes=tuple(sorted(used)),
        # A watch from outside cannot relaunch the step, so no road inside the allocation is open to it.
        healthy_spares=tuple(spares) if facts.command is not None else (),
        dead_nodes=tuple(facts.dead_nodes),
        batch_node=job.batch_host,
        excluded_named=frozenset(named),
        ended=facts.ended,
        over=facts.ended and (facts.srun_ended or not facts.fleet.alive),
        exit_code=facts.exit_code,
        failure=facts.failure,
        earlier_failures=tuple(facts.lineage.failures),
        older_failures=tuple(facts.lineage.older),
        restarts_in_place=facts.lineage.restarts_in_place,
        fruitless=facts.fruitless,
        fruitless_limit=facts.config.supervise.fruitless_attempts,
        action_limit_reached=facts.overdue,
        bad_loss=facts.bad_loss,
        full_disk=facts.full_disk,
        failed_launches=facts.failed_launches,
        failed_launches_limit=facts.config.supervise.fruitless_launches_per_hour,
        resumes=facts.resumes,
        at_stake=facts.at_stake,
        job=JobFacts(
            requeueable=job.requeueable,
            het_job=bool(job.hetjob_id) or job.ref.het_offset is not None,
            requeued=job.restart_count > 0,
            survives_node_failure=bool(facts.environment.get("SLURM_NO_KILL")),
        ),
        mode=facts.config.mode,
        outside=facts.command is None,
    )
