"""The site's choices for the supervision of jobs: a section of `config`."""

from __future__ import annotations

from typing import Annotated

import msgspec

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NonNegative = Annotated[float, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class SuperviseConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits after which a job is suspected, and after which something is done about it."""

    tick_s: _Positive = 0.5
    """The time between two polls of the ranks by an agent."""
    suspicion_p99_factor: _Positive = 3.0
    suspicion_floor_s: _NonNegative = 2.0
    """Suspected after factor × p99 of this attempt's own steps + floor."""
    min_steps: _Count = 5
    """Steps seen before an attempt's own p99 counts."""
    corroborate_after_s: _Positive = 4.2
    """The time between captures in the first 30 s of a suspicion: two, three or more without motion may confirm it."""
    suspicions_per_hour: Annotated[int, msgspec.Meta(ge=1)] = 12
    """The number of suspicions without result after which silence is examined only once strong evidence may be acted
    on."""
    strong_patience_s: _NonNegative = 75.0
    """The silence after which strong evidence is acted on: a recorder names a rank twice, or no rank works."""
    weak_patience_s: _NonNegative = 300.0
    """The same for weak evidence (one rank stands in a sleep, a lock, a loader): one restart in place, never a node."""
    healthy_pause_factor: _NonNegative = 3.0
    """Strong and weak evidence wait at least for this factor × the training's longest healthy pause of the kind."""
    continue_stopped_after_s: _NonNegative = 30.0
    """The time without progress after which a rank that a signal has stopped is continued, once; 0: never."""
    action_limit_s: _Positive = 1800.0
    """The length of silence after which the job is acted on, even if the stacks show no cause."""
    startup_limit_s: _Positive = 1800.0
    """The same, before the first step; for weak evidence, too, if no run of this training has reported a step."""
    recapture_s: _Positive = 60.0
    """The time between captures while a suspicion lasts and nothing explains it."""
    quiet_capture_interval_s: _Positive = 30.0
    """The time between captures of a silent job that reports no progress, or too few steps for a p99."""
    slowness_interval_s: _Positive = 60.0
    """The time between two evaluations of the ranks' step times. A slow machine is announced, and no action follows."""
    report_interval_s: _NonNegative = 60.0
    """The time between two progress reports to the daemon while steps are made; 0: only at changes of the state."""
    capture_timeout_s: _Positive = 15.0
    kill_clean_timeout_s: _Positive = 20.0
    """A node that still has processes this long after SIGKILL is itself a suspect."""
    answer_timeout_s: _Positive = 20.0
    """How long a claim waits for the daemon's answer, and then for its requeue, before the plain requeue."""
    requeue_timeout_s: _Positive = 300.0
    """How long the wrapper waits for Slurm to end it once a requeue is under way."""
    fruitless_attempts: Annotated[int, msgspec.Meta(ge=1)] = 3
    """Attempts in a row without a new step before the job is stopped, exit 93."""
    fruitless_launches_per_hour: Annotated[int, msgspec.Meta(ge=1)] = 30
    """Launches of a job that may end badly without a new step within an hour; at the last of them it is stopped."""
    outage_wait_s: _NonNegative = 1800.0
    """The longest sum of pauses while something that nodes share (storage, names, network) is down; 0: no pause."""
    fault_wait_s: _NonNegative = 1800.0
    """How long a job stays on a node with a fault that is not urgent, to wait for a verified checkpoint; then it
    leaves."""
    code_max_mib: _Positive = 256.0
    code_max_files: Annotated[int, msgspec.Meta(ge=1)] = 20_000
    """The most that a snapshot of a job's code may have, MiB and files."""
    warm_restarts: bool = False
    warm_modules: tuple[str, ...] = ()
    warm_mib: Annotated[int, msgspec.Meta(ge=1)] = 600
    """Whether there are warm steps, what they import besides what the ranks import, and the MiB of each process."""
    log_pattern: str = ""
    """A site's own regex for log lines that show progress, with a group named `step`."""
