"""Situations in which the ladder is climbed, and what follows from one plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from situations import UNDETERMINED

from slurm_robust.core.model import Failure, FailureCause, Plan, Road, TestName
from slurm_robust.policy.job.bad_loss import BadLoss
from slurm_robust.policy.job.climb import after_plan
from slurm_robust.policy.job.code_versions import CodeState
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.ladder import LadderOptions, TestOutcome
from slurm_robust.policy.job.situation import Situation

IN_NODE, PAIRS, ALIGNMENT, REPLAY = TestName.IN_NODE, TestName.PAIRS, TestName.ALIGNMENT, TestName.REPLAY
NODES = tuple(f"n{n:02}" for n in range(1, 17))
OFFERED = LadderOptions(True, (IN_NODE, PAIRS, ALIGNMENT))
NAN = BadLoss("the loss of step 90 is NaN", 80)
HANG = Failure("hang at all_reduce", (), FailureCause.EITHER)
CRASH = Failure("died: cuda error: illegal memory access", (), FailureCause.WORDS, "cuda_error")


def hang(**more: object) -> Situation:
    """Sixteen nodes that hang, after new steps; no node is known to be at fault, and no spare is there."""
    base = Situation(
        UNDETERMINED, NODES, 16, NODES, daemon=True, action_limit_reached=True, failure=HANG, ladder_options=OFFERED,
        now_s=1e9,
    )  # fmt: skip
    return replace(base, **more)  # type: ignore[arg-type]


def crash(**more: object) -> Situation:
    """The same nodes, on which a rank died by a CUDA error."""
    return hang(**{"ended": True, "exit_code": 1, "failure": CRASH, "action_limit_reached": False, **more})


def after_tests(
    s: Situation,
    plan: Plan,
    failed: Mapping[str, str] | None = None,
    links: Mapping[tuple[str, str], str] | None = None,
    doubts: tuple[str, ...] = (),
) -> Situation:
    """The situation once this plan's tests have ended."""
    assert plan.road is Road.TEST
    outcome = TestOutcome(plan.tests, plan.test_nodes, failed or {}, links or {}, doubts, took_s=20.0)
    begun = replace(s, ladder=after_plan(s, plan))
    return replace(begun, ladder=after_plan(begun, plan, outcome), tested=(*s.tested, outcome))


def next_incident(s: Situation, plan: Plan, **more: object) -> Situation:
    """The same again half an hour later, in the attempt that this plan has led to, without a new step."""
    code = s.code.switched(plan.code, back=True) if plan.code else s.code
    bad = s.bad_loss and replace(s.bad_loss, before=s.bad_loss.before + plan.roll_back)
    memory = after_plan(s, plan)
    later = replace(s, ladder=memory, tested=(), code=code, bad_loss=bad, now_s=s.now_s + 1800.0, fruitless=1)
    return replace(later, **more)  # type: ignore[arg-type]


def climb_to_the_end(s: Situation) -> list[Plan]:
    """All plans up to the stop, where no test finds anything and the same comes again each time."""
    plans = [decide(s)]
    while plans[-1].road is not Road.STOP:
        assert len(plans) < 20
        s = after_tests(s, plans[-1]) if plans[-1].road is Road.TEST else next_incident(s, plans[-1])
        plans.append(decide(s))
    return plans


CODE = CodeState(in_force=2, proven=(1, 2))
