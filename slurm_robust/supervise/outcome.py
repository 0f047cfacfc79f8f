"""Defines what the parts of the supervisor return to it; the supervisor alone acts on the current attempt."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_robust.core.model import Failure, Plan, Verdict
from slurm_robust.policy.job.situation import Situation


@dataclass(frozen=True)
class Exit:
    """The supervision is over, with this exit code for the batch script."""

    code: int


@dataclass(frozen=True)
class ExecutePlan:
    """The current incident is judged, and its plan is to be carried out.

    Attributes:
        failure: The failure in a form that can be compared with others; None if it cannot be compared.
        trains: The attempt itself is not known to be faulty: it is ended because of reports of its nodes.
        situation: The facts on which the plan was decided, to decide again once nodes were tested. None if the policy
            was not asked.
    """

    verdict: Verdict
    plan: Plan
    failure: Failure | None
    trains: bool = False
    situation: Situation | None = None


@dataclass(frozen=True)
class Relaunch:
    """The attempt has ended, and srun is to be started again in the allocation.

    Attributes:
        evict: Nodes of the allocation that no attempt may use from now on.
        nodes_used: How many nodes the training needs; 0 if only the user's own options say.
    """

    argv: tuple[str, ...]
    evict: frozenset[str]
    nodes_used: int


Outcome = Exit | ExecutePlan | None
"""The result of handling an incident; None if nothing is to be done now."""
