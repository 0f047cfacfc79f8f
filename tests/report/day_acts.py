"""The trainings of a scripted day: what each does, what is done to it, and what its incidents have to say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Act:
    """One supervised training of the day.

    Attributes:
        strikes: Step and kind (`hang`, `kill`, `raise`) of what its rank 1 does in each launch, one after the other.
        every: Steps between two checkpoints.
        stall_s: How long each of them stands still.
        roads: What its incidents have to say: road and outcome.
        states: Slurm's states of its runs.
        unfit: The suspect fails its check afterwards.
        lose_node: After this step, the node of rank 1 loses power.
        away: The daemon is killed before the first strike, and back after the last one: only that one is told.
    """

    name: str
    steps: int = 60
    strikes: tuple[tuple[int, str], ...] = ()
    every: int = 20
    stall_s: float = 0.0
    roads: tuple[tuple[str, str], ...] = ()
    states: tuple[str, ...] = ("COMPLETED",)
    unfit: bool = False
    lose_node: int = 0
    away: bool = False


# Both train for nine seconds after their restart: on a busy machine the agents are seconds behind the ranks, and what
# has ended before they come was never seen.
HANG = Act(
    "hang", steps=120, every=30, strikes=((57, "hang"),), roads=(("seat", "resumed"),), states=("REQUEUED", "COMPLETED")
)  # fmt: skip
CRASH = Act("crash", steps=120, every=30, strikes=((57, "kill"),), roads=(("restart_in_place", "resumed"),))
UNFIT = Act(
    "unfit", strikes=((36, "hang"),), roads=(("seat", "resumed"),), states=("REQUEUED", "COMPLETED"), unfit=True
)
PROGRAM = Act("program", strikes=((36, "raise"),), roads=(("stop", "stopped"),), states=("FAILED",))
TWICE = Act(
    "twice", steps=80, strikes=((36, "kill"), (56, "hang")), states=("REQUEUED", "COMPLETED"),
    roads=(("restart_in_place", "resumed"), ("seat", "resumed")),
)  # fmt: skip
LOST = Act("lost", roads=(("seat", "resumed"),), states=("NODE_FAIL", "COMPLETED"), lose_node=36)
AWAY = Act(
    "away", steps=600, every=100, strikes=((150, "kill"), (300, "kill")), roads=(("restart_in_place", "resumed"),),
    away=True,
)  # fmt: skip
STEADY = Act("steady", steps=1500, every=700, stall_s=6.0)
