"""The daemon killed with -9 right after one action of its plan, and never started again: lived through to the end.

One small cluster for each point, so that several are lived through side by side. The job is a real `srobust run` whose
second rank stays in D state. Slurm's times are real but shortened (a requeue waits 21 s instead of 121); as a program,
it runs all points, and with `--true-times` with nobody's time shortened:

    scripts/dead-for-good [--true-times] [--at-once 5] [POINT ...]
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hung_rank
from daemon_scene import Scene
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.errors import SlurmError

POINTS = (
    "plan",
    "quarantine",
    "create_seat",
    "answer",
    "requeue",
    "point_job_at_seat",
    "leave_seat",
    "delete_seat",
    "recheck",
    "release_quarantine",
)
"""Every action of a recovery with a passed recheck, in its order, and the moment after the plan was written."""

NODES = 4
RANK = (
    hung_rank.SOURCE
    + """
import os, sys
from slurm_robust import progress

first = not os.environ.get("SLURM_RESTART_COUNT")
for step in range(1, 41):
    time.sleep(0.1)
    progress.step(step)
    if first and step == 20:
        if os.environ["SLURM_PROCID"] == "1":
            wait_in_the_kernel()
        all_reduce(lambda: False)
"""
)


@dataclass(frozen=True)
class Times:
    """How long things take, seconds; the defaults are shortened for tests."""

    requeue_delay: int = 21
    answer: float = 5.0
    requeue: float = 60.0
    seat_min: int = 1
    slack: float = 60.0

    @property
    def all_over(self) -> float:
        """After so long, everything that the dead daemon left must have come to its end."""
        return self.answer * 2 + self.requeue_delay + self.seat_min * 60 + self.slack


TRUE_TIMES = Times(requeue_delay=121, answer=20.0, requeue=300.0, seat_min=10)


@dataclass
class Story:
    """What was seen of one point."""

    point: str
    died_at_s: float = 0.0
    ran_again_s: float | None = None
    ours_gone_s: float | None = None
    longest_s: float = 0.0
    states: list[str] = field(default_factory=list)
    wrapper: list[str] = field(default_factory=list)
    end: str = ""
    wrong: list[str] = field(default_factory=list)

    def line(self) -> str:
        """For people."""

        def after(seconds: float | None) -> str:
            return "never" if seconds is None else f"{seconds:.0f} s"

        verdict = "; ".join(self.wrong) or "well"
        return (
            f"{self.point:20} ran again after {after(self.ran_again_s):6} nothing of ours after "
            f"{after(self.ours_gone_s):6} longest reservation {self.longest_s:.0f} s; {' > '.join(self.states)}: "
            f"{self.end}; {verdict}"
        )


def spec(directory: Path, times: Times) -> Spec:
    """A cluster whose requeues wait as long as `times` says."""
    supervise = {"suspicion_floor_s": 1.5, "corroborate_after_s": 2.2, "tick_s": 0.25, "strong_patience_s": 4.0}
    supervise |= {"answer_timeout_s": times.answer, "requeue_timeout_s": times.requeue}
    conf = f"AuthInfo=socket={directory}/munge/socket,cred_expire={times.requeue_delay - 1}\n"
    conf += "MinJobAge=3600\n"  # quarantines can outlive Slurm's memory of the job, five minutes else
    yaml = {"supervise": supervise, "ladder": {"tests": []}, "seat": {"duration_min": times.seat_min}}
    return Spec(
        nodes=NODES, gpus_per_node=0, prolog=False, kill_wait_s=2, directory=directory, slurm_conf_extra=conf,
        robust_yaml=yaml,
    )  # fmt: skip


def live_through(point: str, folder: Path, times: Times) -> Story:
    """Bring a cluster up, let the daemon die at this point, and watch until all is over."""
    directory = folder / point
    cluster = DevCluster.up(spec(directory, times), timeout_s=90)
    try:
        scene = Scene(cluster, folder / f"{point}-state")
        try:
            return _watch(point, scene, times)
        except (AssertionError, SlurmError) as error:
            return Story(point, wrong=[f"not lived through: {error}\n{scene.tail()}"])
        finally:
            scene.stop(signal.SIGKILL)
    finally:
        cluster.down()


def _watch(point: str, scene: Scene, times: Times) -> Story:
    story, work = Story(point), scene.cluster.layout.work
    (work / "rank.py").write_text(RANK)
    daemon = scene.start(crash_after=point, standby={"size": 0})
    launch = f"exec srobust run --ntasks-per-node=1 {sys.executable} {work}/rank.py"
    job_id = scene.submit("-N2", "--exclusive", "--requeue", f"--chdir={work}", script=launch)
    scene.running(job_id, timeout_s=60)
    with scene.nothing_starts() if point == "point_job_at_seat" else nullcontext():
        died = daemon.wait(120)
    story.died_at_s = time.time()
    if died != -signal.SIGKILL:
        story.wrong.append(f"the daemon ended with {died}: {scene.tail()}")
        return story
    _observe(story, scene, job_id, times)
    _judge(story, scene, job_id, times)
    path = work / f"slurm-robust-{job_id}" / "story.jsonl"
    if path.exists():
        told = [json.loads(text) for text in path.read_text().splitlines()]
        story.wrapper = [f"{line['kind']}: {line['text']}" for line in told]
    return story


def _observe(story: Story, scene: Scene, job_id: int, times: Times) -> None:
    """Look twice a second, until the job has ended and nothing of ours is left, or too much time has passed."""
    over_s = story.died_at_s + times.all_over
    while time.time() < over_s:
        try:
            job, ours = scene.job(job_id), scene.ours()
        except SlurmError:
            continue  # a busy machine: looked at again
        since_s = time.time() - story.died_at_s
        if not story.states or story.states[-1] != _state(job):
            story.states.append(_state(job))
        if job.restart_count and job.state in ("RUNNING", "COMPLETED") and story.ran_again_s is None:
            story.ran_again_s = since_s
        if job.state == "PENDING" and not job.priority:
            story.wrong.append(f"the job is held: {job.reason}")
            return
        for reservation in ours.values():
            story.longest_s = max(story.longest_s, reservation.end_at_s - story.died_at_s)
        story.ours_gone_s = None if ours else story.ours_gone_s or since_s
        if not ours and job.state not in ("PENDING", "RUNNING", "COMPLETING") and not job.completing:
            return
        time.sleep(0.5)


def _state(job: Job) -> str:
    reason = f"({job.reason})" if job.state == "PENDING" and job.reason else ""
    return f"{job.state}{reason}.{job.restart_count}"


def _judge(story: Story, scene: Scene, job_id: int, times: Times) -> None:
    job = scene.job(job_id)
    story.end = f"{job.state} {job.exit_code}"
    if (job.state, job.exit_code) != ("COMPLETED", "0:0"):
        story.wrong.append(f"the job was not finished: {job.state} {job.exit_code} {job.reason} {job.reservation}")
    if story.ours_gone_s is None:
        story.wrong.append(f"left behind: {', '.join(scene.ours())}")
    if story.longest_s > times.seat_min * 60 + 65:  # renewed, it may be a minute longer: Slurm counts whole ones
        story.wrong.append(f"a reservation ends {story.longest_s:.0f} s after the daemon's death")
    queue = scene.cluster.run(["squeue", "-h", "-a", "-o", "%i %j %T %r"]).stdout.strip()
    if queue:
        story.wrong.append(f"left in the queue: {queue}")
    if out := [n.name for n in scene.client.nodes() if n.drained]:
        story.wrong.append(f"out of service: {', '.join(out)}")
    if not story.wrong:
        # The proof that nothing is kept from anybody: a job for the whole cluster starts.
        whole = scene.submit(f"-N{NODES}", "--exclusive", script="sleep 60")
        wait_until(lambda: scene.job(whole).state == "RUNNING", 20, "a job on all nodes")
        scene.cluster.run(["scancel", str(whole)])


def campaign(points: tuple[str, ...], folder: Path, times: Times, at_once: int) -> list[Story]:
    """All these points, so many side by side."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda point: live_through(point, folder, times), points))


def main() -> int:
    """All points, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="*", choices=[*POINTS, []], metavar="POINT", help=", ".join(POINTS))
    parser.add_argument("--true-times", action="store_true", help="Slurm's 121 s, seats of 3 min, quarantines of 10")
    parser.add_argument("--at-once", type=int, default=5, help="clusters side by side (default: 5)")
    args: Any = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="srobust-dead-") as folder:
        Path(folder).chmod(0o755)
        chosen = TRUE_TIMES if args.true_times else Times()
        stories = campaign(tuple(args.points) or POINTS, Path(folder), chosen, args.at_once)
    for story in stories:
        print(story.line())
        if story.wrong:
            print("\n".join(f"    {line}" for line in story.wrapper))
    return 1 if any(story.wrong for story in stories) else 0


if __name__ == "__main__":
    sys.exit(main())
