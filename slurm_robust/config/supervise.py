"""What the site chose for the supervision of jobs: a section of `config`."""

from __future__ import annotations

from typing import Annotated

import msgspec

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NonNegative = Annotated[float, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class SuperviseConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a job is suspected, and when that is acted on."""

    tick_s: _Positive = 0.5
    """How often an agent polls its ranks."""
    suspicion_p99_factor: _Positive = 3.0
    suspicion_floor_s: _NonNegative = 2.0
    """Suspected after factor × p99 of this attempt's own steps + floor."""
    min_steps: _Count = 5
    """Steps seen before an attempt's own p99 counts."""
    corroborate_after_s: _Positive = 4.2
    """Between captures in the first half minute of a suspicion: two, three or more without motion may confirm it."""
    suspicions_per_hour: Annotated[int, msgspec.Meta(ge=1)] = 12
    """After so many that came to nothing, a job's silence is examined only once strong evidence would be acted on."""
    strong_patience_s: _NonNegative = 75.0
    """After this long a silence strong evidence is acted on: a recorder names a rank twice, or nobody works."""
    weak_patience_s: _NonNegative = 300.0
    """The same for weak evidence (one rank stands in a sleep, a lock, a loader): one restart in place, never a node."""
    healthy_pause_factor: _NonNegative = 3.0
    """Neither is acted on before this factor × the longest healthy pause of the kind that the training has shown."""
    continue_stopped_after_s: _NonNegative = 30.0
    """After this long without progress a rank that a signal has stopped is continued, once; 0: never."""
    action_limit_s: _Positive = 1800.0
    """After this long a silence the job is acted on, whatever the stacks show."""
    startup_limit_s: _Positive = 1800.0
    """The same, before the first step; for weak evidence too, if no run of this training has reported a step."""
    recapture_s: _Positive = 60.0
    """Between captures while a suspicion lasts and nothing explains it."""
    quiet_capture_interval_s: _Positive = 30.0
    """Between captures of a silent job that reports no progress, or too few steps for a p99."""
    slowness_interval_s: _Positive = 60.0
    """Between two evaluations of the ranks' step times. A slow machine is announced; nothing is done about it."""
    report_interval_s: _NonNegative = 60.0
    """How often a training that makes steps tells the daemon how it gets on; 0: only at changes of its state."""
    capture_timeout_s: _Positive = 15.0
    kill_clean_timeout_s: _Positive = 20.0
    """A node that still has processes this long after SIGKILL is itself a suspect."""
    answer_timeout_s: _Positive = 20.0
    """How long a claim waits for the daemon's answer, and then for its requeue, before the plain requeue."""
    requeue_timeout_s: _Positive = 300.0
    """How long the wrapper waits to be ended once a requeue is under way."""
    fruitless_attempts: Annotated[int, msgspec.Meta(ge=1)] = 3
    """Attempts in a row without a new step before the job is stopped, exit 93."""
    fruitless_launches_per_hour: Annotated[int, msgspec.Meta(ge=1)] = 30
    """Launches of a job that may end badly without a new step within an hour; at the last of them it is stopped."""
    outage_wait_s: _NonNegative = 1800.0
    """How long all pauses may be while something that nodes share (storage, names, network) is down; 0: no pause."""
    fault_wait_s: _NonNegative = 1800.0
    """How long a job stays on a node whose fault is not urgent until a checkpoint is verified; then it leaves."""
    code_max_mib: _Positive = 256.0
    code_max_files: Annotated[int, msgspec.Meta(ge=1)] = 20_000
    """The most that a snapshot of a job's code may have, MiB and files."""
    warm_restarts: bool = False
    warm_modules: tuple[str, ...] = ()
    warm_mib: Annotated[int, msgspec.Meta(ge=1)] = 600
    """Whether there are warm steps, what they import besides what the ranks import, and the MiB of each process."""
    log_pattern: str = ""
    """A site's own regex for log lines that show progress, with a group named `step`."""
