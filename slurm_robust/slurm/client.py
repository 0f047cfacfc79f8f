"""Defines the one interface to Slurm, and the values that it uses.

Every call blocks, has a deadline, and either succeeds or raises a `SlurmError` (see `slurm.errors`) with Slurm's own
message. A change can be lost after the call returned: a slurmctld that is killed seconds later forgets it. Only a
second reading shows whether the change holds.

After an error about a list of nodes, the change may hold for a part of the nodes: Slurm drains the nodes that it knows,
then reports an unknown node; it resumes the drained nodes, then reports a node that was not drained.

Every change to a job names exactly one job: a ref that means the pending rest of an array, or a part of a het job, is
refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict

from slurm_robust.core.model import JobRef

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Node:
    """A node in slurmctld's view.

    Attributes:
        state: Base state in capitals: IDLE, ALLOCATED, MIXED, DOWN, UNKNOWN, …
        flags: State flags: DRAIN, NOT_RESPONDING, RESERVED, COMPLETING, MAINTENANCE, FAIL, …
        reason: Why the node is drained or down, in the words of the user or program that did it; without Slurm's
            `[user@time]`. The reason means nothing on a node that is neither drained nor down: Slurm 24.11 to 25.11
            keep the text when a node is resumed.
        reason_user: Who set the reason.
        reason_at_s: When it was set, 0 if unknown.
        boot_at_s: When it booted, 0 if unknown.
        extra: Free text of administrators, beside the comment; the fault marker stands here.
        gres_used: The number of its generic resources that Slurm counts as given to jobs; 0 if the back end cannot
            tell.
    """

    name: str
    state: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    reason_user: str = ""
    reason_at_s: int = 0
    partitions: tuple[str, ...] = ()
    gres: str = ""
    features: tuple[str, ...] = ()
    cpus: int = 0
    memory_mb: int = 0
    boot_at_s: int = 0
    comment: str = ""
    gres_used: int = 0
    extra: str = ""

    @property
    def drained(self) -> bool:
        """Whether somebody decided that no new job may start on it."""
        return "DRAIN" in self.flags or self.state == "DOWN" or "FAIL" in self.flags

    @property
    def busy(self) -> bool:
        """Whether a job runs on it, or ends there."""
        return self.state in ("ALLOCATED", "MIXED", "COMPLETING") or "COMPLETING" in self.flags

    @property
    def usable(self) -> bool:
        """Whether Slurm could start a job on it now, apart from reservations."""
        bad = {"NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "REBOOT_ISSUED", "MAINTENANCE"}
        return not self.drained and not (self.flags & bad) and self.state not in ("UNKNOWN", "FUTURE", "INVAL")


class NodeLine(NamedTuple):
    """The fields of a node that change while the site runs; thousands of nodes share one such line.

    The fields mean what they mean in `Node`, except that a drained node of which a part is in use is ALLOCATED here:
    sinfo does not say MIXED then.
    """

    state: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    reason_user: str = ""
    reason_at_s: int = 0
    comment: str = ""
    extra: str = ""
    gres_used: int = 0


NodeListing = Mapping[NodeLine, frozenset[str]]
"""The names of the nodes, by the line that the cheap listing shows of them."""


@dataclass(frozen=True)
class Job:
    """A job in slurmctld's view.

    Attributes:
        state: RUNNING, PENDING, CONFIGURING, … in capitals, as Slurm prints it: COMPLETING hides the state underneath.
        completing: Whether its nodes are still ending it.
        nodes: Where it runs now; empty while pending.
        time_limit_s: None if unlimited.
        start_at_s: Start of the current run, or the earliest start of a pending job; 0 if unknown.
        hetjob_id: Id of the het job it belongs to, or 0.
        batch: Whether it has a script (not `salloc`, not `srun`).
        requeueable: Whether Slurm would requeue it: a batch job without `--no-requeue`.
        exclude: Nodes it must not use, folded; None if this call did not ask (the command back end's `jobs`).
        exit_code: `ExitCode` as Slurm prints it, `0:0`; empty if the back end cannot tell.
        std_out: Its output file. Some versions of Slurm leave patterns in it (`%j`): `output_files.expanded`.
        std_err: The file for errors; empty if errors go to `std_out`.
        eligible_at_s: Since when it could start, as far as the job itself goes; set anew by a requeue; 0 if unknown.
    """

    ref: JobRef
    state: str
    user: str
    uid: int
    partition: str
    completing: bool = False
    name: str = ""
    nodes: tuple[str, ...] = ()
    batch_host: str = ""
    num_nodes: int = 0
    reason: str = ""
    comment: str = ""
    admin_comment: str = ""
    reservation: str = ""
    exclude: str | None = ""
    req_nodes: str = ""
    restart_count: int = 0
    batch: bool = True
    requeueable: bool = True
    start_at_s: int = 0
    submit_at_s: int = 0
    end_at_s: int = 0
    time_limit_s: int | None = None
    hetjob_id: int = 0
    priority: int = 0
    gres: str = ""
    features: str = ""
    exit_code: str = ""
    std_out: str = ""
    std_err: str = ""
    work_dir: str = ""
    eligible_at_s: int = 0


@dataclass(frozen=True)
class Reservation:
    """A reservation as slurmctld sees it. `nodes` is folded, `n[1-3]`."""

    name: str
    nodes: str = ""
    users: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    start_at_s: int = 0
    end_at_s: int = 0
    state: str = ""


class PastRun(NamedTuple):
    """One run of a job in the accounting: a requeued job has several runs.

    Attributes:
        job: Its address, `12` or `12_3`; the pending rest of an array is one row, `12_[3-9]`.
        nodes: Its nodes, folded; empty if it has none (yet).
        gpus: The number of GPUs on all nodes together; the number asked for if the run has no GPUs yet. 0 if the
            accounting does not track them.
        submitted_at_s: When this run was submitted: a requeue submits the job anew. None if
            there is no such time, which holds for the other times, too.
    """

    job_id: int
    job: str
    cluster: str
    user: str
    account: str
    name: str
    partition: str
    nodes: str
    node_count: int
    gpus: int
    submitted_at_s: int | None
    eligible_at_s: int | None
    started_at_s: int | None
    ended_at_s: int | None
    state: str
    exit_code: str


class JobPlacement(TypedDict, total=False):
    """Where a job may run, and for how long. A missing key or None leaves the value; an empty text clears it."""

    exclude: str | None
    req_nodes: str | None
    reservation: str | None
    time_limit_min: int | None


class JobChanges(JobPlacement, total=False):
    """The changes that `update_job` makes. A missing change or None leaves the value; an empty text clears it."""

    comment: str | None
    admin_comment: str | None
    start_now: bool
    start_in_s: int | None


def same(one: JobRef, asked: JobRef) -> bool:
    """Return whether both name the same job: by array and index if `asked` has them, else by raw id."""
    if asked.array_job_id is not None and asked.array_task_id is not None:
        return (one.array_job_id, one.array_task_id) == (asked.array_job_id, asked.array_task_id)
    return one.job_id == asked.job_id


def enough_without(job: Job, nodes: Sequence[Node], out: Collection[str]) -> bool:
    """Return whether the job's partition has as many usable nodes as it needs without those, free or not."""
    fit = [n for n in nodes if job.partition in n.partitions and n.usable and n.name not in out]
    return len(fit) >= max(job.num_nodes, len(job.nodes))


class SlurmClient(Protocol):
    """The interface by which the rest of the project reads from Slurm and changes it.

    Attributes:
        unread: By the name of the call, what the last `nodes`, `jobs`, `reservations` and `past_runs` left out: a line
            for each record that could not be read. Calls about one thing raise `SlurmParseError` instead.
        clock_ahead_s: How far this host's clock is ahead of slurmctld's, as the owner of this client has measured it.
            Slurm's commands read `now` from this host's clock: a start is passed in slurmctld's time.
    """

    unread: dict[str, list[str]]
    clock_ahead_s: int

    def nodes(self) -> list[Node]:
        """Return all nodes, in one call."""

    def node(self, name: str) -> Node | None:
        """Return one node; None if Slurm does not know it.

        Prologs call this: it must not ask slurmctld for a full list.
        """

    def node_listing(self) -> NodeListing:
        """Return the changing fields of nodes, for a tenth of the cost of `nodes`; omits nodes in no partition."""

    def nodes_named(self, names: Sequence[str]) -> list[Node]:
        """These nodes, in one call. Raises `SlurmNotFoundError` where Slurm does not know one of them."""

    def jobs(self) -> list[Job]:
        """Return all jobs that slurmctld holds (also those ended in the last minutes), in one call."""

    def jobs_named(self, jobs: Sequence[JobRef]) -> list[Job | None]:
        """Return each of these jobs as `job` reads it, in at most two calls; None for a job unknown to Slurm."""

    def job(self, job: JobRef) -> Job | None:
        """Return one job, exactly; None if Slurm does not know it (any more)."""

    def job_gpus(self, job: JobRef) -> dict[str, frozenset[int]]:
        """Return the GPUs that a job was given, by node, as Slurm numbers them.

        Nodes where Slurm does not say which are left out; the set is empty if it was given none.
        """

    def past_job(self, job: JobRef) -> Job | None:
        """Return a job from the site's accounting; None if the accounting does not know it.

        The job has user, partition, name, state, work_dir, and from Slurm 24.05 on std_out and std_err (from 21.08 on,
        if they were given to sbatch on its command line).
        """

    def past_runs(self, from_s: int, to_s: int, *, timeout_s: float) -> list[PastRun]:
        """Return each run of every job at some moment of this time, from the site's accounting.

        Callers ask for a long time day by day: the answer is held in memory.
        """

    def reservations(self) -> list[Reservation]:
        """Return all reservations, in one call."""

    def cluster_name(self) -> str:
        """Return the cluster's name."""

    def settings(self) -> dict[str, str]:
        """Return slurm.conf as slurmctld runs it, by key (`SLURM_VERSION`, …), in one call; time: `parse.as_of_s`."""

    def drain(self, nodes: str, reason: str) -> None:
        """Drain nodes (folded list). `reason` must begin with `srobust:`."""

    def set_down(self, nodes: str, reason: str) -> None:
        """Set nodes DOWN, which ends what runs on them. `reason` must begin with `srobust:`.

        With `ReturnToService=2` this lasts only until the node's slurmd registers again: drain it too.
        """

    def resume(self, nodes: str) -> None:
        """Bring nodes back; they are usable about a second later. Refused if a node is neither drained nor down."""

    def reboot(self, node: str, reason: str) -> None:
        """Have Slurm reboot a node that is drained and empty. `reason` must begin with `srobust:`.

        The node's reason becomes `reason` at once, to which Slurm adds its own words. The node stays drained; but on
        Slurm 22.05 one that has not booted within `ResumeTimeout` is DOWN instead, which `ReturnToService=2` ends.
        Refused where slurm.conf has no `RebootProgram`.
        """

    def set_node_comment(self, nodes: str, comment: str) -> None:
        """Write the nodes' comment (the drain permit)."""

    def set_node_extra(self, nodes: str, extra: str) -> None:
        """Write the nodes' extra text (the fault marker); an empty text clears it."""

    def requeue(self, job: JobRef, *, without: Sequence[str] = ()) -> None:
        """Requeue a job plainly; never by `requeuehold`, which would leave the job held until somebody releases it.

        With `without`, these nodes are added to the job's exclusions, unless too few usable nodes of its partition
        would remain for it. Slurm accepts exclusions for a pending job only, so the change follows the requeue at once;
        a job that requeues itself may be ended between the two.
        """

    def requeue_and_place(self, job: JobRef, *, start_in_s: int, **placement: Unpack[JobPlacement]) -> bool:
        """Requeue a job, and say in the same call where and when it may run again, while it still ends.

        So the job cannot start elsewhere in between: under `requeue_delay=0`, Slurm starts a requeued job as soon as
        its last node has ended it. If the start time is then still ahead, Slurm keeps it; otherwise Slurm sets its own
        delay.

        Args:
            job: The job.
            start_in_s: When it may start, seconds from now; at least 1.
            placement: The placement, as `update_job` takes it.

        Returns:
            True if Slurm took both; False if Slurm requeued the job, and refused the placement.

        Raises:
            SlurmError: the job was not requeued, and nothing of it was changed.
        """

    def start_in_reservation(self, job: JobRef, user: str, open_s: float, **changes: Unpack[JobChanges]) -> None:
        """Let `user` into the reservation that `changes` name and change the job, in one call.

        Until then the reservation lets no other user in. The job starts at once if `changes` have `start_now`.

        Args:
            job: The job.
            user: The job's user.
            open_s: The reservation's new end, seconds from now; infinite for none. Slurm ends it sooner, once for three
                minutes no job has been in it or waited for it.
            changes: The changes, as `update_job` takes them.

        Raises:
            SlurmError: Slurm could not or would not; the reservation may be open.
        """

    def leave_reservation(self, array: JobRef) -> None:
        """Take the waiting rest of an array, which has no task's number, out of the reservation that it waits for."""

    def release(self, job: JobRef) -> None:
        """End a pending job's hold, even if another user put it on: the caller has checked that this is right."""

    def update_job(self, job: JobRef, **changes: Unpack[JobChanges]) -> None:
        """Change a job in one call."""

    def create_reservation(
        self, name: str, nodes: str, users: tuple[str, ...], duration_min: int, flags: tuple[str, ...]
    ) -> None:
        """Create a reservation that starts now."""

    def update_reservation(self, name: str, *, nodes: str | None = None, duration_min: int | None = None) -> None:
        """Change a reservation; `nodes` is the whole new list."""

    def expire_reservation(self, name: str, users: tuple[str, ...]) -> None:
        """Have a reservation end within a minute, open only to `users`; jobs in it run on without it.

        Slurm 24.11 does not remove users whose jobs are in the reservation: there it only ends, with the jobs that run
        in it.
        """

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation."""

    def submit(self, args: list[str], script: str, *, env: dict[str, str] | None = None) -> JobRef:
        """Submit a batch script: `args` of `sbatch`, `script` its text."""

    def cancel(self, job: JobRef) -> None:
        """Cancel a job."""

    def signal(self, job: JobRef, signal: str, step: str | None = None) -> None:
        """Send a signal (`KILL`, `TERM`, …) to a job's step (`0`, `1`, …), or to all its numbered steps."""
