"""Calls Slurm's own commands, the back end that works on every site: each with a deadline and a clean environment."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.config.site import SlurmConfig
from slurm_robust.core.model import JobRef
from slurm_robust.slurm import accounting, arguments, job_gpus, node_listing, parse, process, values
from slurm_robust.slurm.client import (
    Job,
    JobChanges,
    JobPlacement,
    Node,
    NodeListing,
    PastRun,
    Reservation,
    enough_without,
    same,
)
from slurm_robust.slurm.errors import (
    SlurmError,
    SlurmMissingError,
    SlurmNotFoundError,
    SlurmParseError,
    SlurmRefusedError,
    from_text,
)
from slurm_robust.slurm.in_use import BackEnd

if TYPE_CHECKING:
    from typing_extensions import Unpack


class CommandClient:
    """`SlurmClient` by `scontrol`, `sinfo`, `squeue`, `scancel` and `sbatch`."""

    def __init__(self, config: SlurmConfig) -> None:
        self._config = config
        self._cluster_name = ""
        self._last_jobs: dict[tuple[str, ...], Job] = {}
        """The last reading of all jobs, by the text of each."""
        self._last_names: dict[str, frozenset[str]] = {}
        """The nodes of each line of the last listing, by their text."""
        self.unread: dict[str, list[str]] = {}
        self.clock_ahead_s = 0

    def about(self) -> BackEnd:
        """Return the back end and the version of Slurm's commands; asks slurmctld nothing."""
        return BackEnd("commands", slurm=self.slurm_version())

    def slurm_version(self) -> str:
        """Return the version of Slurm's commands here, `22.05.8`; empty if they do not say."""
        try:
            found = re.search(r"[0-9]+(?:\.[0-9]+)+\S*", self._run("read Slurm's version", ["scontrol", "--version"]))
        except SlurmError:
            return ""
        return found[0] if found else ""

    # Reading

    def nodes(self) -> list[Node]:
        """Return all nodes, in one call."""
        text = self._run("read nodes", ["scontrol", "-d", "show", "node", "-o"])
        return parse.parse_nodes(text, self._unread_of("nodes"))

    def node(self, name: str) -> Node | None:
        """Return one node; None if Slurm does not know it."""
        try:
            text = self._run(f"read node {name}", ["scontrol", "-d", "show", "node", "-o", arguments.node_list(name)])
        except SlurmNotFoundError:
            return None
        return next((node for node in parse.parse_nodes(text) if node.name == name), None)

    def node_listing(self) -> NodeListing:
        """Return the changing fields of nodes, in one call: sinfo folds equal nodes into one line."""
        separator = process.separator()
        # sinfo has no variable for this. Users of this machine could read the separator while sinfo runs, but only
        # administrators write the texts, and the whole reading that follows corrects them.
        layout = ",".join(f"{field}:{separator}" for field in node_listing.FIELDS)
        text = self._run("list nodes", ["sinfo", "-h", "--all", "--local", "-O", layout])
        return node_listing.parse(text, separator, self._last_names)

    def nodes_named(self, names: Sequence[str]) -> list[Node]:
        """These nodes, in one call."""
        nodes = arguments.node_list(values.fold(names))
        what, argv = f"read nodes {nodes}", [self._command("scontrol"), "-d", "show", "node", "-o", nodes]
        done = process.run(argv, timeout_s=self._config.timeout_s, env=self._environment())
        last = done.out.rstrip().rpartition("\n")[2]
        if done.code and last.endswith(" not found"):  # behind the nodes that there are
            raise SlurmNotFoundError(what, last)
        return parse.parse_nodes(self._output(what, done))

    def jobs(self) -> list[Job]:
        """Return all jobs that slurmctld holds, in one call. `exclude` is None: that needs another call of squeue."""
        self._last_jobs = self._squeue("read jobs", [], self._last_jobs, self._unread_of("jobs"))
        return list(self._last_jobs.values())

    def jobs_named(self, jobs: Sequence[JobRef]) -> list[Job | None]:
        """Return each of these jobs as `job` reads it, in two calls at most."""
        if len(jobs) <= 1:
            return [self.job(job) for job in jobs]
        asked = ",".join(job.address for job in jobs)
        found = list(self._squeue("read several jobs", ["--array", "-j", asked], {}).values())
        out = self._excluded(asked, "read excluded nodes of several jobs", "--array")
        exact = [next((one for one in found if same(one.ref, job)), None) for job in jobs]
        return [
            one and replace(one, exclude=out[one.ref.job_id]) if one and one.ref.job_id in out else None
            for one in exact
        ]

    def job(self, job: JobRef) -> Job | None:
        """Return one job, exactly, `exclude` included (two calls); None if Slurm does not know it (any more)."""
        found = self._find(job)
        return found and self._with_exclude(found)

    def job_gpus(self, job: JobRef) -> dict[str, frozenset[int]]:
        """Return the GPUs that a job was given, by node; GPUs without a number in Slurm's answer are left out."""
        argv, found = ["scontrol", "-d", "-o", "show", "job", job.address], self._find(job)
        with contextlib.suppress(SlurmNotFoundError):
            if found is not None:
                return job_gpus.parse(self._run(f"read the GPUs of job {job.address}", argv), found.name, found.nodes)
        return {}

    def past_job(self, job: JobRef) -> Job | None:
        """Return a job from the site's accounting; None if the accounting does not know it."""
        return accounting.past_job(self._run, job, process.separator())

    def past_runs(self, from_s: int, to_s: int, *, timeout_s: float) -> list[PastRun]:
        """Return each run of every job at some moment of this time, from the site's accounting."""
        run = functools.partial(self._run, timeout_s=timeout_s)
        return accounting.past_runs(run, from_s, to_s, process.separator(), self._unread_of("past_runs"))

    def reservations(self) -> list[Reservation]:
        """Return all reservations, in one call."""
        text = self._run("read reservations", ["scontrol", "show", "reservation", "-o"])
        return parse.parse_reservations(text, self._unread_of("reservations"))

    def settings(self) -> dict[str, str]:
        """Return the output of `scontrol show config`, by key."""
        return parse.parse_settings(self._run("read the configuration", ["scontrol", "show", "config"]))

    def cluster_name(self) -> str:
        """Return the cluster's name; asked once."""
        if not self._cluster_name:
            self._cluster_name = parse.cluster_name(self.settings())
        return self._cluster_name

    # Nodes

    def drain(self, nodes: str, reason: str) -> None:
        """Drain nodes; `reason` must begin with `srobust:`."""
        self._update_nodes(f"drain {nodes}", nodes, "State=DRAIN", f'Reason="{arguments.reason(reason)}"')

    def set_down(self, nodes: str, reason: str) -> None:
        """Set nodes DOWN; `reason` must begin with `srobust:`."""
        self._update_nodes(f"set {nodes} down", nodes, "State=DOWN", f'Reason="{arguments.reason(reason)}"')

    def resume(self, nodes: str) -> None:
        """Bring nodes back; refused if one of them is neither drained nor down."""
        self._update_nodes(f"resume {nodes}", nodes, "State=RESUME")

    def reboot(self, node: str, reason: str) -> None:
        """Reboot a drained, empty node.

        Neither `ASAP` nor `nextstate` is used: on Slurm 22.05 a drained node that was rebooted with one of these words
        comes back without its drain.
        """
        self._run(f"reboot {node}", ["scontrol", "reboot", f"reason={arguments.reason(reason)}", arguments.node(node)])

    def set_node_comment(self, nodes: str, comment: str) -> None:
        """Write the nodes' comment, one line."""
        self._update_nodes(f"write the comment of {nodes}", nodes, f"Comment={arguments.line(comment)}")

    def set_node_extra(self, nodes: str, extra: str) -> None:
        """Write the nodes' extra text, one line."""
        self._update_nodes(f"write the extra text of {nodes}", nodes, f"Extra={arguments.line(extra)}")

    # Jobs

    def requeue(self, job: JobRef, *, without: Sequence[str] = ()) -> None:
        """Plain requeue; with `without`, these nodes are excluded from then on, if enough nodes remain for the job."""
        one = self._one(job, "requeue")
        known = self._with_exclude(one) if without else None
        out = {*without, *values.expand((known and known.exclude) or "")}
        if not without or (known is not None and not enough_without(known, self.nodes(), out)):
            self._run(f"requeue job {one.ref.address}", ["scontrol", "requeue", one.ref.address])
            return
        self._requeue_with(one, [f"ExcNodeList={arguments.node_list(values.fold(out))}"])

    def requeue_and_place(self, job: JobRef, *, start_in_s: int, **placement: Unpack[JobPlacement]) -> bool:
        """Plain requeue, and in the same call where and when the job may run again, while it still ends."""
        one = self._one(job, "requeue")
        later = f"StartTime=now+{arguments.delay_s(start_in_s)}"
        when = [later] if self.clock_ahead_s < 60 else []  # else Slurm's own delay is about as short
        return self._requeue_with(one, [*arguments.update_words(placement), *when])

    def _requeue_with(self, job: Job, changes: list[str]) -> bool:
        """Requeue a job and change it, by one scontrol; False if Slurm took the requeue alone."""
        words, both = " ".join(changes), f"requeue {job.ref.address}\nupdate JobId={job.ref.address} "
        # It ignores SIGTERM, since it may be a part of the job that it requeues.
        done = self._lines(f"{both}{words}\n", "/bin/sh", "-c", 'trap "" TERM HUP; exec "$0"')
        if done.code == 0:
            return True
        now = self._find(job.ref)
        if now is None or now.restart_count == job.restart_count:
            self._output(f"requeue job {job.ref.address} with {words}", done)
        return False

    def release(self, job: JobRef) -> None:
        """End a pending job's hold."""
        address = self._exact(job, "release")
        self._run(f"release job {address}", ["scontrol", "release", address])

    def update_job(self, job: JobRef, **changes: Unpack[JobChanges]) -> None:
        """Change a job in one call."""
        if arguments.update_words(changes):
            one = self._one(job, "update")
            written = arguments.sooner(changes, one.start_at_s, self.clock_ahead_s)
            self._run(f"update job {one.ref.address}", ["scontrol", "update", f"JobId={one.ref.address}", *written])

    def start_in_reservation(self, job: JobRef, user: str, open_s: float, **changes: Unpack[JobChanges]) -> None:
        """Let the user into the reservation and change the job, by one scontrol."""
        one = self._one(job, "update")
        address, words = one.ref.address, " ".join(arguments.sooner(changes, one.start_at_s, self.clock_ahead_s))
        opened = f"ReservationName={arguments.name(changes.get('reservation') or '')} Users={arguments.names((user,))}"
        opened += f" {arguments.reservation_end(open_s)} Flags+=PURGE_COMP=00:03:00"
        self._output(f"start job {address}", self._lines(f"update {opened}\nupdate JobId={address} {words}\n"))

    def leave_reservation(self, array: JobRef) -> None:
        """Take an array's waiting tasks out of the reservation, by number: the array's id means running tasks, too."""
        waiting = ["squeue", "-h", "--all", "-t", "PENDING", "-j", str(array.job_id), "-o", "%i"]
        text = self._run(f"read array {array.job_id}", waiting, {"SLURM_BITSTR_LEN": "0"})
        for tasks in values.array_tasks(text, array.job_id):
            rest = f"{array.job_id}_[{tasks}]"
            self._run(f"update job {rest}", ["scontrol", "update", f"JobId={rest}", "ReservationName="])

    def submit(self, args: list[str], script: str, *, env: dict[str, str] | None = None) -> JobRef:
        """Submit `script` (its text) with `args`; the job gets our environment less Slurm's variables, plus `env`."""
        environ = process.scrubbed(os.environ, self._config.conf) | (env or {})
        args = arguments.in_slurms_time(args, self.clock_ahead_s)
        argv, limit_s = [self._command("sbatch"), "--parsable", *args], self._config.timeout_s
        text = self._output("submit a batch script", process.run(argv, timeout_s=limit_s, env=environ, stdin=script))
        match = re.fullmatch(r"([0-9]{1,10})(?:;\S*)?\s*", text)
        if match is None:
            raise SlurmParseError("sbatch named no job", text[:200])
        return JobRef(int(match[1]))

    def cancel(self, job: JobRef) -> None:
        """Cancel a job; one that has ended already stays as it is."""
        address = self._exact(job, "cancel")
        self._run(f"cancel job {address}", ["scancel", address])

    def signal(self, job: JobRef, signal: str, step: str | None = None) -> None:
        """Send a signal to one step, or to each numbered one, not to the batch script; an ended step stays so."""
        name = arguments.signal(signal)
        address = self._exact(job, "signal")
        if step is not None:
            steps = [f"{address}.{arguments.step(step)}"]
        else:
            # `scancel -s KILL JOB` without a step would cancel the job itself.
            text = self._run(f"read steps of job {address}", ["squeue", "-h", "-s", "-j", address, "-o", "%i"])
            steps = [line for line in text.split() if re.fullmatch(re.escape(address) + r"\.[0-9]+", line)]
        if steps:
            self._run(f"signal {' '.join(steps)}", ["scancel", "-s", name, *steps])

    # Reservations

    def create_reservation(
        self, name: str, nodes: str, users: tuple[str, ...], duration_min: int, flags: tuple[str, ...]
    ) -> None:
        """Create a reservation that starts now."""
        argv = [
            *("scontrol", "create", "reservation", f"ReservationName={arguments.name(name)}"),
            *(f"Nodes={arguments.node_list(nodes)}", f"Users={arguments.names(users)}"),
            *("StartTime=now", f"Duration={arguments.minutes(duration_min)}"),
        ]
        self._run(f"create reservation {name}", [*argv, *([f"Flags={arguments.flags(flags)}"] if flags else [])])

    def update_reservation(self, name: str, *, nodes: str | None = None, duration_min: int | None = None) -> None:
        """Change a reservation; `nodes` is the whole new list, `duration_min` counts from its start."""
        changes = [] if nodes is None else [f"Nodes={arguments.node_list(nodes)}"]
        changes += [] if duration_min is None else [f"Duration={arguments.minutes(duration_min)}"]
        if changes:
            argv = ["scontrol", "update", f"ReservationName={arguments.name(name)}", *changes]
            self._run(f"update reservation {name}", argv)

    def expire_reservation(self, name: str, users: tuple[str, ...]) -> None:
        """End it soon; FLEX then spares the jobs in it, and would let others of a user who is still in go anywhere."""
        update = ["scontrol", "update", f"ReservationName={arguments.name(name)}", "EndTime=now+60"]
        try:
            self._run(f"expire {name}", [*update, f"Users={arguments.names(users)}", "Flags+=FLEX"])
        except SlurmRefusedError:  # as newer versions refuse it while jobs are in it
            self._run(f"expire {name}", update)

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation; refused while a job stands in it."""
        self._run(f"delete reservation {name}", ["scontrol", "delete", f"ReservationName={arguments.name(name)}"])

    # Helpers

    def _unread_of(self, call: str) -> list[str]:
        """Return the list in which this call, from now on, names the records that it cannot read."""
        self.unread[call] = new = list[str]()
        return new

    def _squeue(
        self, what: str, only: list[str], last: Mapping[tuple[str, ...], Job], unread: list[str] | None = None
    ) -> dict[tuple[str, ...], Job]:
        separator = process.separator()
        # In the environment, not on the command line: there, any user of this machine could read it while squeue
        # runs, and write it into a comment.
        layout = {"SQUEUE_FORMAT2": ",".join(f"{field}:{separator}" for field in parse.JOB_FIELDS)}
        text = self._run(what, ["squeue", "-h", "--all", "-t", "all", *only], layout)
        return parse.jobs_by_text(text, separator, last, unread)

    def _find(self, job: JobRef) -> Job | None:
        array = job.array_job_id is not None and job.array_task_id is not None
        try:
            found = self._squeue(f"read job {job.address}", ["-j", job.address, *(["--array"] if array else [])], {})
        except SlurmNotFoundError:
            return None
        return next((one for one in found.values() if same(one.ref, job)), None)

    def _with_exclude(self, job: Job) -> Job | None:
        job_id = job.ref.job_id
        try:
            out = self._excluded(str(job_id), f"read excluded nodes of job {job_id}")
        except SlurmNotFoundError:
            return None
        return replace(job, exclude=out[job_id]) if job_id in out else None

    def _excluded(self, asked: str, what: str, *more: str) -> dict[int, str]:
        """Return the excluded nodes of each of these jobs, by raw id."""
        # In Slurm 22.05 only squeue's short format has the excluded nodes; slurmctld accepts only names of nodes there.
        argv = ["squeue", "-h", "--all", "-t", "all", *more, "-j", asked, "-o", "%A %x"]
        return parse.parse_excluded(self._run(what, argv))

    def _exact(self, job: JobRef, verb: str) -> str:
        """Return the address that means this job and no other."""
        return self._one(job, verb).ref.address

    def _one(self, job: JobRef, verb: str) -> Job:
        """Return the one job that the ref means; the job's own `ref` addresses it.

        Raises:
            SlurmNotFoundError: Slurm does not know the job.
            SlurmRefusedError: the id means several: the rest of an array, or a het job.
        """
        found = self._find(job)
        if found is None:
            raise SlurmNotFoundError(f"{verb} job {job.address}", "Invalid job id specified")
        return arguments.one(found, job, verb)

    def _update_nodes(self, what: str, nodes: str, *changes: str) -> None:
        self._run(what, ["scontrol", "update", f"NodeName={arguments.node_list(nodes)}", *changes])

    def _run(
        self, what: str, argv: list[str], extra: dict[str, str] | None = None, *, timeout_s: float | None = None
    ) -> str:
        env = self._environment() | (extra or {})
        argv = [self._command(argv[0]), *arguments.in_slurms_time(argv[1:], self.clock_ahead_s)]
        return self._output(what, process.run(argv, timeout_s=timeout_s or self._config.timeout_s, env=env))

    def _environment(self) -> dict[str, str]:
        env = process.scrubbed(os.environ, self._config.conf)
        return env | {"LC_ALL": "C", "TZ": "UTC0", "SLURM_TIME_FORMAT": "%s"}

    def _output(self, what: str, done: process.Finished) -> str:
        if done.code == 0:
            return done.out
        message = " ".join(f"{done.err}\n{done.out}".split())
        if done.code < 0:
            raise SlurmError(f"{what}: the command was ended by signal {-done.code}", message[:400])
        raise from_text(what, message[:400])

    def _lines(self, lines: str, *before: str) -> process.Finished:
        argv, words = [*before, self._command("scontrol")], re.split(r"(\s)", lines)
        told = "".join(arguments.in_slurms_time(words, self.clock_ahead_s))
        return process.run(argv, timeout_s=self._config.timeout_s, env=self._environment(), stdin=told)

    def _command(self, name: str) -> str:
        if self._config.bin_dir:
            return str(Path(self._config.bin_dir) / name)
        path = shutil.which(name)
        if path is None:
            raise SlurmMissingError(
                f"{name} is not on PATH; install Slurm's commands, or set slurm.bin_dir in robust.yaml to their folder"
            )
        return path
