"""The pipeline example of ByteRobust (SOSP 2025, Fig. 7), from the stacks to the plan, within ninety seconds."""

from __future__ import annotations

from dataclasses import replace

from parallel_scenes import BYTEROBUST, evidence_of, job

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.core.model import Grade, Plan, Road, TestName
from slurm_robust.localize.apart import standing_apart
from slurm_robust.localize.judge import judge
from slurm_robust.policy.job.consequences import Pauses, Silence
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.ladder import LadderOptions, Rung
from slurm_robust.policy.job.situation import Situation

MACHINES = tuple(f"m{n:02}" for n in range(16))


def planned(silent_s: float, *, over_evict: bool) -> Plan:
    """What is done after so many seconds without a step: four standby nodes are there, and the defaults count."""
    evidence = evidence_of(job(BYTEROBUST), rounds=4)
    verdict = judge(evidence)
    assert (verdict.corroborated, verdict.grade) == (True, Grade.STRONG)
    apart = standing_apart(evidence, verdict)
    known = Situation(verdict, MACHINES, 16, MACHINES, daemon=True, standby_nodes=4)
    known = replace(known, apart_nodes=apart.nodes, apart_group=apart.group)
    options = LadderOptions(True, (TestName.IN_NODE, TestName.PAIRS), over_evict=over_evict)
    silence = Silence.of(silent_s, "train", Pauses({"train": 4.0}), SuperviseConfig())
    return decide(replace(known, ladder_options=options, silence=silence))


def test_with_over_evict_the_whole_group_is_left_in_time() -> None:
    """The machines of the pipeline group that stands apart are left together, fifteen seconds before the ninety."""
    assert planned(70.0, over_evict=True).road is Road.ALERT_ONLY
    plan = planned(75.0, over_evict=True)
    assert plan.rung == Rung.LEAVE_GROUP
    assert plan.evict == ("m12", "m13", "m14", "m15")


def test_without_over_evict_the_group_is_tested_in_time() -> None:
    """Nobody is named: the nodes that stand apart are tested with as many others."""
    plan = planned(75.0, over_evict=False)
    assert (plan.road, plan.rung, plan.evict) == (Road.TEST, Rung.TEST_APART, ())
    assert set(plan.test_nodes) >= {"m12", "m13", "m14", "m15"}
