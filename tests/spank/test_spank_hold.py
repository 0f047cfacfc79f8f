"""srun's end under `--robust=on`, where its step has failed: who is waited for, and who never is."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from helpers import wait_until
from spank_jobs import watches

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]
# Each rank says that it is there, and waits; then rank 1 is killed, and its peers die of that, as DDP's do.
DIES = "touch up-$SLURM_PROCID; until [ -e go ]; do sleep 0.1; done; [ $SLURM_PROCID = 1 ] && kill -9 $$; exit 1"
FINISHES = "touch up-$SLURM_PROCID; until [ -e go ]; do sleep 0.1; done"


class Script:
    """A batch script with two ranks behind its srun; what the script came to stands in the file `after`."""

    def __init__(self, cluster: DevCluster, name: str, script: str, *ranks: str) -> None:
        self.cluster = cluster
        self.folder = cluster.directory / "work" / name
        self.folder.mkdir()
        for n, rank in enumerate(ranks):
            (self.folder / f"rank-{n}").write_text(f"#!/bin/sh\n{rank}\n")
            (self.folder / f"rank-{n}").chmod(0o755)
        (self.folder / "job").write_text(f"#!/bin/bash\n{script}\n")
        options = ("-N2", "-n2", "--requeue", "--open-mode=append", "--robust=on")
        paths = (f"--output={self.folder}/j-%j.out", f"--chdir={self.folder}", str(self.folder / "job"))
        self.job = cluster.run(["sbatch", "--parsable", *options, *paths], env=cluster.env).stdout.strip()

    def started(self) -> int:
        """Wait for both ranks and for the watch, which must have found them; its pid."""
        wait_until(lambda: len(list(self.folder.glob("up-*"))) == 2, 60, f"both ranks: {self.text()}")
        wait_until(lambda: self.story("note") or self.agents(), 60, f"the watch's agents: {self.text()}")
        (found,) = wait_until(lambda: watches(self.cluster, self.job), 30, f"the watch: {self.text()}")
        return found

    def agents(self) -> bool:
        """Whether both agents of the watch step run."""
        lines = []
        for pid in self.cluster.processes(int(self.job)):
            with contextlib.suppress(OSError):
                lines.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        return sum(b"agent.main" in words and not words.startswith(b"srun") for words in lines) >= 2

    def go(self) -> None:
        """The ranks go on to their end."""
        (self.folder / "go").touch()

    def after(self) -> str:
        """What the script came to after its srun; empty while it waits."""
        path = self.folder / "after"
        return path.read_text() if path.exists() else ""

    def story(self, word: str) -> str:
        """The story, where this word stands in it."""
        text = "".join(path.read_text() for path in self.folder.rglob("story.jsonl"))
        return text if word in text else ""

    def comes_to(self) -> str:
        """Wait for what the script comes to after its srun; a failure shows output and story as they are then."""
        try:
            return wait_until(self.after, 60, "the script's next line")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}\n{self.story('')}") from None

    def text(self) -> str:
        """For failures: the job's output."""
        return "".join(path.read_text() for path in self.folder.glob("j-*.out"))

    def shows(self, field: str) -> str:
        """One field of squeue; empty for a job that it does not know any more."""
        return self.cluster.run(["squeue", "-h", "-j", self.job, "-o", field], env=self.cluster.env, check=False).stdout

    def steps(self) -> str:
        """The job's training steps that Slurm still knows; the watch step is none."""
        rows = self.cluster.run(["squeue", "--steps", "-h", "-o", "%i %j"], env=self.cluster.env).stdout.splitlines()
        ours = [row for row in rows if row.startswith(f"{self.job}.") and "srobust-watch" not in row]
        return "\n".join(row for row in ours if ".batch" not in row)

    def srun(self) -> list[int]:
        """Its training sruns that are there."""
        found = []
        for pid in self.cluster.processes(int(self.job)):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"srun") and b"--overlap" not in words:
                    found.append(pid)
        return found

    def over(self) -> None:
        """End it, whatever has become of it."""
        self.cluster.run(["scancel", self.job], env=self.cluster.env, check=False)
        wait_until(lambda: not self.cluster.processes(int(self.job)), 60, "the job's end")


@pytest.mark.parametrize(
    "script",
    ["srun ./rank-0; echo $? >after", "set -e; srun ./rank-0; echo $? >after", "srun ./rank-0 | cat; echo $? >after"],
    ids=["plain", "set -e", "pipeline"],
)
def test_the_script_does_not_go_on_before_the_requeue(spank_cluster: DevCluster, script: str) -> None:
    """All ranks are dead within a second: the job is requeued, and nothing of the script runs meanwhile."""
    job = Script(spank_cluster, f"requeued-{len(script)}", script, DIES)
    try:
        job.started()
        job.go()
        wait_until(lambda: job.shows("%T").strip() == "PENDING", 90, f"the requeue: {job.text()}")
        assert "Restarts=1" in spank_cluster.run(["scontrol", "show", "job", job.job], env=spank_cluster.env).stdout
        assert job.after() == ""
    finally:
        job.over()


def test_a_watch_that_dies_holds_nothing(spank_cluster: DevCluster) -> None:
    """Frozen, it is waited for; killed, srun ends at once with its own exit code, and the script goes on."""
    job = Script(spank_cluster, "watch-dies", "srun ./rank-0; echo $? >after", DIES)
    try:
        watch = job.started()
        os.kill(watch, signal.SIGSTOP)
        job.go()
        wait_until(lambda: not job.steps(), 60, f"the step's end: {job.text()}")
        assert job.srun()
        assert job.after() == ""
        os.kill(watch, signal.SIGKILL)
        wait_until(job.after, 30, f"the script's next line: {job.text()}")
        assert job.after() == "137\n"
        assert job.story("claimed") == ""
    finally:
        job.over()


def test_a_step_that_succeeds_is_never_held(spank_cluster: DevCluster) -> None:
    """Even where the watch is frozen."""
    job = Script(spank_cluster, "succeeds", "srun ./rank-0; echo $? >after", FINISHES)
    try:
        watch = job.started()
        os.kill(watch, signal.SIGSTOP)
        job.go()
        wait_until(job.after, 30, f"the script's next line: {job.text()}")
        assert job.after() == "0\n"
        os.kill(watch, signal.SIGKILL)
    finally:
        job.over()


def test_a_cancelled_job_ends_although_its_watch_is_frozen(spank_cluster: DevCluster) -> None:
    """`scancel` while srun waits: nothing of the job is left after a moment, long before Slurm's KillWait is over."""
    job = Script(spank_cluster, "cancelled", "trap 'echo trap $? >>after' TERM\nsrun ./rank-0\necho $? >>after", DIES)
    try:
        watch = job.started()
        os.kill(watch, signal.SIGSTOP)
        job.go()
        wait_until(lambda: not job.steps(), 60, f"the step's end: {job.text()}")
        (srun,) = job.srun()
        os.kill(srun, signal.SIGTERM)
        # In bash's order: what `srun` came to, then the trap, then the next line, where the shell still lives.
        wait_until(job.after, 30, f"srun's end: {job.text()}")
        assert "137" in job.after()
        os.kill(watch, signal.SIGKILL)
    finally:
        job.over()


def test_a_step_that_somebody_cancels_is_not_requeued(spank_cluster: DevCluster) -> None:
    """`scancel JOB.STEP` is a person's wish: the script goes on."""
    job = Script(spank_cluster, "step-cancelled", "srun ./rank-0; echo $? >after; sleep 300", FINISHES)
    try:
        job.started()
        spank_cluster.run(["scancel", f"{job.job}.0"], env=spank_cluster.env)
        job.comes_to()
        assert job.shows("%T").strip() == "RUNNING"
        assert job.story("claimed") == ""
    finally:
        job.over()


def test_an_exit_code_of_a_step_that_never_trained_is_the_scripts(spank_cluster: DevCluster) -> None:
    """A preparing step ends with 3, for which the script has its own next line: no requeue."""
    waits = "touch up-$SLURM_PROCID; until [ -e go ]; do sleep 0.1; done; exit 3"
    job = Script(spank_cluster, "prepares", "srun ./rank-0; echo $? >after; sleep 300", waits)
    try:
        job.started()
        job.go()
        job.comes_to()
        assert job.after() == "3\n"
        assert job.shows("%T").strip() == "RUNNING"
        assert job.story("claimed") == ""
    finally:
        job.over()


def test_of_two_steps_at_once_neither_is_held_for_a_requeue(spank_cluster: DevCluster) -> None:
    """A requeue for one would end the other: both watch and report."""
    one = "srun -N1 -n1 --exact --mem=100 -c1"
    both = f"({one} ./rank-0; echo $? >after) & {one} ./rank-1 & wait $!; echo other $? >>after; sleep 300"
    dies = "touch up-0; until [ -e go ]; do sleep 0.1; done; kill -9 $$"
    lives = "touch up-1; until [ -e go ] && [ -e after ]; do sleep 0.1; done"
    job = Script(spank_cluster, "two-steps", both, dies, lives)
    try:
        wait_until(lambda: len(list(job.folder.glob("up-*"))) == 2, 60, f"both steps: {job.text()}")
        wait_until(lambda: len(watches(spank_cluster, job.job)) == 2, 60, f"both watches: {job.text()}")
        job.go()
        wait_until(lambda: "other 0" in job.after(), 60, f"both steps' ends: {job.text()}")
        assert job.after().startswith("137\n")
        assert job.shows("%T").strip() == "RUNNING"
    finally:
        job.over()
