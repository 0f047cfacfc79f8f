"""A Slurm of a few lines, for planners and for the daemon's loop: its clock is the test's, and it can forget."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slurm_robust.core.model import JobRef
from slurm_robust.policy.cluster.node_picture import line_of
from slurm_robust.policy.cluster.tested_pairs import PairReport, PairResult
from slurm_robust.slurm.client import Job, JobChanges, JobPlacement, Node, NodeLine, NodeListing, PastRun, Reservation
from slurm_robust.slurm.errors import SlurmNotFoundError, SlurmRefusedError, SlurmUnavailableError
from slurm_robust.slurm.values import expand

if TYPE_CHECKING:
    from typing_extensions import Unpack

REQUEUE_DELAY_S = 121
PAIR_TEST = "srobust-pair-test"
CHECKS = ("srobust-recheck", "srobust-standby-check", PAIR_TEST)


@dataclass
class State:
    """What slurmctld keeps, and loses when it is killed before it saved."""

    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)


class FakeSlurm:
    """`SlurmClient`, in memory."""

    def __init__(self, nodes: int = 6, recheck_exit: str = "0:0") -> None:
        self.now_s = 1_000_000.0
        self.state = State({f"n{i}": Node(f"n{i}", "IDLE", partitions=("main",)) for i in range(1, nodes + 1)})
        self.saved = copy.deepcopy(self.state)
        self.recheck_exit = recheck_exit
        self.acts: list[str] = []
        self.down = False
        self.failures = 0
        self.stuck: set[str] = set()
        self.scripts: list[str] = []
        """Of the checks that were submitted."""
        self.verdict = ""
        """What checks write into their job's comment."""
        self.reboot_program = "/sbin/reboot"
        self.gpus: dict[int, dict[str, frozenset[int]]] = {}
        self.recheck_ends_s = 0.0
        """How long the node of a recheck takes to end it."""
        self.pair_reports: dict[frozenset[str], PairReport] = {}
        """What tests of two nodes tell: by both nodes, by one of them, or by none; a pass where nothing fits."""
        self.refuses_placement = False
        """A requeue and a placement in one call: Slurm takes the requeue alone."""
        self.requeue_delay_s = REQUEUE_DELAY_S
        self.past: list[PastRun] = []
        """What the accounting has."""
        self.clock_ahead_s = 0
        self.unread: dict[str, list[str]] = {}
        """What a reading leaves out."""
        self.no_report = False
        """Tests of two nodes end without a word."""
        self.refuses_jobs = ""
        """What it says to a job that is submitted; empty if it takes it."""
        self.keeps_jobs = ""
        """Why a job that was submitted never starts; empty if it does."""
        self.submitted: list[list[str]] = []
        """The options of each job that somebody wanted to submit."""

    # --- time and mishaps

    def pass_s(self, seconds: float) -> None:
        """Time goes on: ends end, starts start, reservations expire."""
        self.now_s += seconds
        state = self.state
        state.reservations = {k: r for k, r in state.reservations.items() if r.end_at_s > self.now_s}
        for job in list(state.jobs.values()):
            holding = tuple(n for n in job.nodes if self._holds_up(n))
            if job.completing and job.name.startswith(CHECKS):
                if self.now_s >= job.end_at_s + self.recheck_ends_s:
                    state.jobs[job.ref.job_id] = replace(job, completing=False, nodes=())
            elif job.completing and holding:
                state.jobs[job.ref.job_id] = replace(job, nodes=holding)
            elif job.completing:
                # As Slurm does: a start time that has come is replaced by its own delay.
                at_s = job.start_at_s if job.start_at_s > self.now_s else int(self.now_s) + self.requeue_delay_s
                later = replace(job, state="PENDING", completing=False, nodes=(), reason="BeginTime", start_at_s=at_s)
                state.jobs[job.ref.job_id] = later
            elif job.state == "RUNNING" and job.name.startswith(PAIR_TEST) and self.now_s >= job.start_at_s + 1:
                self._end_pair_test(job)
            elif job.state == "RUNNING" and job.name.startswith(CHECKS) and self.now_s >= job.start_at_s + 1:
                ended = "COMPLETED" if self.recheck_exit == "0:0" else "FAILED"
                words = {"comment": "srobust-check: unfit:"} if self.recheck_exit == "1:0" and not job.comment else {}
                self._end(job, ended, exit_code=self.recheck_exit, **words)
            elif job.state == "PENDING":
                self._try_start(job)
        busy = {n for j in state.jobs.values() if j.state == "RUNNING" or j.completing for n in j.nodes}
        for name, node in state.nodes.items():
            if node.state != "DOWN":
                state.nodes[name] = replace(node, state="ALLOCATED" if name in busy else "IDLE")

    def _end_pair_test(self, job: Job) -> None:
        keys = (frozenset(job.nodes), *(frozenset((n,)) for n in job.nodes), frozenset[str]())
        report = next((self.pair_reports[key] for key in keys if key in self.pair_reports), PairReport())
        code = {PairResult.PASSED: 0, PairResult.FAILED: 1}.get(report.result, 2)
        told = {} if self.no_report else {"comment": report.comment()}
        self._end(job, "FAILED" if code else "COMPLETED", exit_code=f"{code}:0", **told)

    def _end(self, job: Job, state: str, **more: str) -> None:
        slow = bool(self.recheck_ends_s and job.nodes)
        left = {"completing": True, "end_at_s": int(self.now_s)} if slow else {"nodes": ()}
        self.state.jobs[job.ref.job_id] = replace(job, state=state, **left, **more)  # type: ignore[arg-type]

    def _holds_up(self, name: str) -> bool:
        node = self.state.nodes[name]
        return node.state != "DOWN" and (name in self.stuck or "NOT_RESPONDING" in node.flags)

    def _try_start(self, job: Job) -> None:
        if job.start_at_s > self.now_s or job.reason.startswith("launch failed"):
            return
        if self.keeps_jobs and job.name.startswith(CHECKS):
            self.state.jobs[job.ref.job_id] = replace(job, reason=self.keeps_jobs)
            return
        state = self.state
        busy = {n for j in state.jobs.values() if j.state == "RUNNING" or j.completing for n in j.nodes}
        # As Slurm does: a reservation gone from under a job leaves it waiting for one that will not come back.
        seat = state.reservations.get(job.reservation)
        if job.reservation and seat is None:
            job = replace(job, reservation="")
        if seat is not None and job.user not in seat.users:
            state.jobs[job.ref.job_id] = replace(job, reason="Reservation")
            return
        reserved = {n for r in state.reservations.values() if r.name != job.reservation for n in expand(r.nodes)}
        own = set(expand(seat.nodes)) if seat else set()
        free = [
            n.name
            for n in state.nodes.values()
            if n.usable and n.name not in busy and (n.name in own if seat else n.name not in reserved)
        ]
        asked = set(expand(job.req_nodes))
        free = [n for n in free if n not in expand(job.exclude or "") and (not asked or n in asked)]
        free.sort(key=lambda n: (n not in own, n))
        if len(free) < job.num_nodes:
            state.jobs[job.ref.job_id] = replace(job, reason="Resources")
            return
        nodes = tuple(free[: job.num_nodes])
        state.jobs[job.ref.job_id] = replace(job, state="RUNNING", nodes=nodes, reason="", start_at_s=int(self.now_s))

    def save(self) -> None:
        """Slurmctld writes its state files."""
        self.saved = copy.deepcopy(self.state)

    def forget(self) -> None:
        """Slurmctld is killed, and starts from what it had saved."""
        self.state = copy.deepcopy(self.saved)
        self.failures = 1

    def run_job(self, nodes: tuple[str, ...], **more: object) -> Job:
        """A job that runs."""
        job_id = len(self.state.jobs) + 1
        start_at_s = int(self.now_s)
        job = Job(
            JobRef(job_id), "RUNNING", "ann", 1000, "main", nodes=nodes, num_nodes=len(nodes), start_at_s=start_at_s
        )
        self.state.jobs[job_id] = replace(job, priority=1, **more)  # type: ignore[arg-type]
        return self.state.jobs[job_id]

    def _act(self, what: str) -> None:
        if self.down:
            raise SlurmUnavailableError(what, "Unable to contact slurm controller (connect failure)")
        self.acts.append(what)

    # --- SlurmClient

    def nodes(self) -> list[Node]:
        """All nodes."""
        self._ask()
        return list(self.state.nodes.values())

    def node_listing(self) -> NodeListing:
        """What changes of nodes; those in no partition are not in it."""
        self._ask()
        lines: dict[NodeLine, frozenset[str]] = {}
        for node in self.state.nodes.values():
            if node.partitions:
                lines[line_of(node)] = lines.get(line_of(node), frozenset()) | {node.name}
        return lines

    def nodes_named(self, names: Sequence[str]) -> list[Node]:
        """These nodes."""
        self._ask()
        if missing := [name for name in names if name not in self.state.nodes]:
            raise SlurmNotFoundError(f"read nodes {missing}", "Node not found")
        return [self.state.nodes[name] for name in names]

    def jobs_named(self, jobs: Sequence[JobRef]) -> list[Job | None]:
        """Each of these jobs."""
        self._ask()
        return [self.state.jobs.get(job.job_id) for job in jobs]

    def jobs(self) -> list[Job]:
        """All jobs, without their exclusions, as squeue shows them."""
        self._ask()
        return [replace(j, exclude=None) for j in self.state.jobs.values()]

    def job(self, job: JobRef) -> Job | None:
        """One job."""
        self._ask()
        return self.state.jobs.get(job.job_id)

    def past_job(self, job: JobRef) -> Job | None:
        """This site keeps no accounting."""
        return None

    def past_runs(self, from_s: int, to_s: int, *, timeout_s: float) -> list[PastRun]:
        """What the test put there, in this time."""
        self._ask()
        return [run for run in self.past if run.ended_at_s is None or from_s <= run.ended_at_s <= to_s]

    def reservations(self) -> list[Reservation]:
        """All reservations."""
        self._ask()
        return list(self.state.reservations.values())

    def _ask(self) -> None:
        if self.down or self.failures:
            self.failures = 0
            raise SlurmUnavailableError("read", "Unable to contact slurm controller (connect failure)")

    def settings(self) -> dict[str, str]:
        """As a new Slurm would answer."""
        self._ask()
        shown = {
            "ClusterName": self.cluster_name(),
            "SLURM_VERSION": "24.11.5",
            "PrologFlags": "Alloc",
            "PrivateData": "none",
            "MinJobAge": "300 sec",
        }
        return shown | {"RebootProgram": self.reboot_program}

    def cluster_name(self) -> str:
        """Its name."""
        return "fake"

    def drain(self, nodes: str, reason: str) -> None:
        """Drain nodes."""
        self._act(f"drain {nodes}")
        for name in expand(nodes):
            node = self.state.nodes[name]
            drained = replace(node, flags=node.flags | {"DRAIN"}, reason=reason, reason_at_s=int(self.now_s))
            self.state.nodes[name] = drained

    def set_down(self, nodes: str, reason: str) -> None:
        """Set nodes DOWN."""
        self._act(f"set_down {nodes}")
        for name in expand(nodes):
            node = self.state.nodes[name]
            self.state.nodes[name] = replace(node, state="DOWN", reason=reason, reason_at_s=int(self.now_s))

    def resume(self, nodes: str) -> None:
        """Bring nodes back."""
        self._act(f"resume {nodes}")
        for name in expand(nodes):
            node = self.state.nodes[name]
            back = replace(node, state="IDLE", flags=node.flags - {"DRAIN"}, reason="", reason_at_s=0)
            self.state.nodes[name] = back

    def reboot(self, node: str, reason: str) -> None:
        """Reboot a node: it is down until the test lets it boot, or Slurm gives it up."""
        self._act(f"reboot {node}")
        old = self.state.nodes[node]
        flags = old.flags | {"REBOOT_ISSUED"}
        self.state.nodes[node] = replace(old, state="DOWN", flags=flags, reason=f"{reason} : reboot issued")

    def booted(self, node: str) -> None:
        """The node has booted: still drained, as Slurm leaves it."""
        old = self.state.nodes[node]
        flags = old.flags - {"REBOOT_ISSUED"}
        self.state.nodes[node] = replace(old, state="IDLE", flags=flags, boot_at_s=int(self.now_s))

    def reboot_timed_out(self, node: str) -> None:
        """ResumeTimeout is over: DOWN without its drain."""
        old = self.state.nodes[node]
        reason = f"{old.reason} : reboot timed out"
        self.state.nodes[node] = replace(old, flags=old.flags - {"REBOOT_ISSUED", "DRAIN"}, reason=reason)

    def set_node_comment(self, nodes: str, comment: str) -> None:
        """Write the nodes' comment."""
        self._act(f"comment {nodes}")
        for name in expand(nodes):
            self.state.nodes[name] = replace(self.state.nodes[name], comment=comment)

    def set_node_extra(self, nodes: str, extra: str) -> None:
        """Write the nodes' extra text."""
        self._act(f"extra {nodes}")
        for name in expand(nodes):
            self.state.nodes[name] = replace(self.state.nodes[name], extra=extra)

    def job_gpus(self, job: JobRef) -> dict[str, frozenset[int]]:
        """What the test gave it."""
        self._ask()
        return self.gpus.get(job.job_id, {})

    def requeue(self, job: JobRef, *, without: Sequence[str] = ()) -> None:
        """End the job, and let it wait for two minutes."""
        self._act(f"requeue {job.address}" + (f" without {','.join(without)}" if without else ""))
        old = self.state.jobs[job.job_id]
        if old.state != "RUNNING":
            raise SlurmRefusedError("requeue", "Job is pending execution")
        self.state.jobs[job.job_id] = replace(
            old,
            state="COMPLETING",
            completing=True,
            restart_count=old.restart_count + 1,
        )

    def requeue_and_place(self, job: JobRef, *, start_in_s: int, **placement: Unpack[JobPlacement]) -> bool:
        """Requeue it, and place it while it ends; at its end, Slurm keeps a start time that lies ahead."""
        self.requeue(job)
        if self.refuses_placement:
            return False
        self.update_job(job, **placement)
        changed = replace(self.state.jobs[job.job_id], start_at_s=int(self.now_s) + start_in_s)
        self.state.jobs[job.job_id] = changed
        return True

    def release(self, job: JobRef) -> None:
        """End a hold; Slurm's own delay after a requeue stays."""
        self._act(f"release {job.address}")
        old = self.state.jobs[job.job_id]
        if old.state != "PENDING":
            raise SlurmRefusedError("release", "Job is no longer pending execution")
        self.state.jobs[job.job_id] = replace(old, priority=1, reason="BeginTime")

    def update_job(self, job: JobRef, **changes: Unpack[JobChanges]) -> None:
        """Change a job, with what Slurm refuses."""
        self._act(f"update {job.address}")
        old, reservation = self.state.jobs[job.job_id], changes.get("reservation")
        if old.state == "RUNNING" and changes.get("exclude") is not None:
            raise SlurmRefusedError("update", "Requested operation not supported on running job")
        if reservation and reservation not in self.state.reservations:
            raise SlurmNotFoundError("update", "Requested reservation is invalid")
        if reservation and old.user not in self.state.reservations[reservation].users:
            raise SlurmRefusedError("update", "Access denied to requested reservation")
        names = ("comment", "admin_comment", "exclude", "req_nodes", "reservation")
        values: dict[str, object] = {name: changes.get(name) for name in names}
        if limit_min := changes.get("time_limit_min"):
            values["time_limit_s"] = limit_min * 60
        if changes.get("start_now"):
            values |= {"start_at_s": int(self.now_s), "reason": ""}
        if in_s := changes.get("start_in_s"):
            values["start_at_s"] = int(self.now_s) + in_s
        given = {name: value for name, value in values.items() if value is not None}
        self.state.jobs[job.job_id] = replace(old, **given)  # type: ignore[arg-type]

    def leave_reservation(self, array: JobRef) -> None:
        """Take an array's rest out."""
        self._act(f"take {array.job_id} out")
        self.state.jobs[array.job_id] = replace(self.state.jobs[array.job_id], reservation="")

    def start_in_reservation(self, job: JobRef, user: str, open_s: float, **changes: Unpack[JobChanges]) -> None:
        """Let a user in, and change the job."""
        there = self.state.reservations.get(str(changes.get("reservation")))
        if there is None:
            raise SlurmNotFoundError("update", "Requested reservation is invalid")
        if open_s <= 0:
            raise SlurmRefusedError("update", "Requested end time is in the past")
        end_at_s = int(self.now_s + min(open_s, 365 * 86400))
        self.state.reservations[there.name] = replace(
            there, users=(user,), end_at_s=end_at_s, flags=there.flags | {"PURGE_COMP=00:03:00"}
        )
        self.update_job(job, **changes)
        if self.state.jobs[job.job_id].state == "PENDING":
            self._try_start(self.state.jobs[job.job_id])

    def create_reservation(
        self, name: str, nodes: str, users: tuple[str, ...], duration_min: int, flags: tuple[str, ...]
    ) -> None:
        """Create one that starts now."""
        self._act(f"create {name}")
        if name in self.state.reservations:
            raise SlurmRefusedError("create", "Requested reservation is invalid")
        running = {n for j in self.state.jobs.values() if j.state == "RUNNING" or j.completing for n in j.nodes}
        if "IGNORE_JOBS" not in flags and running & set(expand(nodes)):
            raise SlurmRefusedError("create", "Requested nodes are busy")
        end_at_s = int(self.now_s) + duration_min * 60
        self.state.reservations[name] = Reservation(
            name, nodes, users, frozenset(flags), int(self.now_s), end_at_s, "ACTIVE"
        )

    def update_reservation(self, name: str, *, nodes: str | None = None, duration_min: int | None = None) -> None:
        """Change one; its duration counts from its start."""
        self._act(f"change {name}")
        old = self.state.reservations[name]
        end_at_s = old.end_at_s if duration_min is None else old.start_at_s + duration_min * 60
        self.state.reservations[name] = replace(old, nodes=nodes or old.nodes, end_at_s=end_at_s)

    def expire_reservation(self, name: str, users: tuple[str, ...]) -> None:
        """Let one end soon."""
        self._act(f"expire {name}")
        old = self.state.reservations[name]
        self.state.reservations[name] = replace(
            old, users=users, end_at_s=int(self.now_s) + 60, flags=old.flags | {"FLEX"}
        )

    def delete_reservation(self, name: str) -> None:
        """Delete one that no job stands in."""
        self._act(f"delete {name}")
        if name not in self.state.reservations:
            raise SlurmNotFoundError("delete", "Requested reservation is invalid")
        stands = (j for j in self.state.jobs.values() if j.state in ("RUNNING", "PENDING") or j.completing)
        if any(j.reservation == name for j in stands):
            raise SlurmRefusedError("delete", "Requested reservation is in use")
        del self.state.reservations[name]

    def submit(self, args: list[str], script: str, *, env: dict[str, str] | None = None) -> JobRef:
        """Submit a recheck."""
        self._act("submit")
        self.submitted.append(args)
        if self.refuses_jobs:
            raise SlurmRefusedError("submit a batch script", self.refuses_jobs)
        self.scripts.append(script)
        said = dict(word.removeprefix("--").partition("=")[::2] for word in args)
        job_id = len(self.state.jobs) + 1
        job = Job(JobRef(job_id), "PENDING", "root", 0, "main", name=said["job-name"])
        job = replace(job, num_nodes=int(said["nodes"]), submit_at_s=int(self.now_s), comment=self.verdict)
        self.state.jobs[job_id] = replace(job, reservation=said["reservation"], req_nodes=said["nodelist"], exclude="")
        return JobRef(job_id)

    def cancel(self, job: JobRef) -> None:
        """Cancel a job."""
        self._act(f"cancel {job.address}")
        self._end(self.state.jobs[job.job_id], "CANCELLED")

    def signal(self, job: JobRef, signal: str, step: str | None = None) -> None:
        """Signal a job."""
        self._act(f"signal {job.address}")
