"""One run of the quickstart: a hang, or a lost GPU, on a real Slurm of six nodes on this machine.

Everything that it shows comes from the wrapper, the daemon, the job or Slurm, with the time that they give.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from quickstart_screen import BOLD, Screen
from quickstart_story import ACTS, ASTRAY, POLL_S, Event, Story

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.devcluster.cluster import DevCluster, DevClusterError, Spec

EXAMPLES = Path(__file__).resolve().parent
NODES, RANK = 6, 2
PATIENCE_S = 5.0
"""So long the evidence of a dead mount has to last here: nobody wants to watch a default of more than a minute."""
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=0, GPU has fallen off the bus."
STANDBY_S = 30.0
LONGEST_BASE = 40
"""Characters: Slurm's sockets lie below the cluster's folder, and their paths must be short."""


class Interrupted(BaseException):
    """A signal ended the run."""


class AstrayError(Exception):
    """The story did not continue; the message says what was awaited."""


class Quickstart:
    """One run, from the empty folder to the empty folder."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.screen = Screen()
        base = tempfile.gettempdir()
        self.base = base if len(base) <= LONGEST_BASE else "/tmp"
        self.directory: Path | None = None
        self.cluster: DevCluster | None = None
        self.story: Story | None = None

    @property
    def lost_gpu(self) -> bool:
        """The act in which a node tells that its GPU is lost."""
        return bool(self.args.act == "fault")

    def run(self) -> None:
        """Start the cluster, run the story, print the report.

        Raises:
            AstrayError: an event did not happen in time.
            DevClusterError: Slurm did not come up, or a command of it failed.
        """
        cluster = self.up()
        self.story = story = self.submit(cluster)
        checked_s = time.monotonic()
        while not story.over:
            for event in story.poll():
                self.screen.event(event)
                if event.kind in ASTRAY:
                    raise AstrayError(f"the wrapper says: {event.text}")
            if stage := story.next_stage:
                self.screen.moving(story.progress or f"waiting for {stage.awaited} …")
            if late := story.late():
                raise AstrayError(late)
            if "finished" not in story.reached and time.monotonic() - checked_s > 2:
                checked_s = time.monotonic()
                if (state := story.job_state()) not in ("", "PENDING", "RUNNING", "COMPLETING", "COMPLETED"):
                    raise AstrayError(f"job {story.job} is {state}")
            time.sleep(POLL_S)
        self.report(story)

    def up(self) -> DevCluster:
        """Start Slurm and the daemon, and wait for the standby node that the daemon reserves."""
        self.screen.moving("starting Slurm …")
        # The name is chosen before the folder is made, so an interrupted run knows what to remove.
        self.directory = Path(self.base) / f"srobust-quickstart-{secrets.token_hex(4)}"
        yaml = {"supervise": {"strong_patience_s": PATIENCE_S}}
        spec = Spec(
            nodes=NODES,
            standby=1,
            daemon=True,
            mode="act",
            directory=self.directory,
            nodewatch=self.lost_gpu,
            robust_yaml=yaml,
        )
        self.cluster = cluster = DevCluster.up(spec, timeout_s=60)
        ours = "srobustd, and srobust nodewatch on each node," if self.lost_gpu else "srobustd"
        self.screen.now("up", f"a Slurm of {NODES} nodes and {ours} run in {self.directory}")
        if not self.lost_gpu:
            usual = f"{SuperviseConfig().strong_patience_s:g} s by default"
            self.screen.now("note", f"note: strong evidence is acted on after {PATIENCE_S:g} s here ({usual})")
        for notice in cluster.notices:
            self.screen.now("note", f"note: {notice}")
        self.screen.moving("waiting for the standby node …")
        deadline_s = time.monotonic() + STANDBY_S
        while not (pools := json.loads(self.ask("srobust", "standby", "--json") or "[]")) or not pools[0]["held"]:
            if time.monotonic() > deadline_s:
                raise AstrayError(f"the standby node was not reserved in {STANDBY_S:g} s")
            time.sleep(POLL_S)
        self.screen.now(
            "standby", f"node {pools[0]['held']} is the standby, reserved by srobustd as {pools[0]['name']}"
        )
        return cluster

    def ask(self, *words: str) -> str:
        """The output of a command on the cluster; empty if it fails."""
        assert self.cluster is not None
        return self.cluster.run(words, check=False).stdout

    def submit(self, cluster: DevCluster) -> Story:
        """Submit this folder's train.sbatch, with a fault in its environment."""
        work, steps = cluster.layout.work, self.args.steps
        every = max(2, steps // 6)
        strike = 2 * every + every // 2
        hang = {"kind": "dead_mount", "rank": RANK, "step": strike, "once_file": str(work / "struck")}
        (work / "tmp").mkdir()
        env = {
            "STEPS": str(steps),
            "CHECKPOINT_DIR": str(work / "checkpoints"),
            "TRAIN_ARGS": f"--step-time-s 0.25 --checkpoint-every {every} --eval-every 0",
            **({} if self.lost_gpu else {"TRAIN_FAULT": json.dumps(hang)}),
            # Files of killed ranks are removed with the cluster.
            "TMPDIR": str(work / "tmp"),
            # Four ranks cannot share one GPU in NCCL, so this training always runs on CPUs.
            "CUDA_VISIBLE_DEVICES": "",
        }
        words = [
            "sbatch",
            "--parsable",
            f"--chdir={work}",
            f"--output={work}/gpt-%j.out",
            # A job that was given no GPU stays where a GPU is lost.
            *(("--gres=gpu:1",) if self.lost_gpu else ()),
            str(EXAMPLES / "train.sbatch"),
        ]
        job = cluster.run(words, env=env, cwd=EXAMPLES).stdout.strip().partition(";")[0]
        text = f"job {job} submitted: train.sbatch, 4 nodes, {steps} steps, a checkpoint every {every}"
        what = "its node is to lose a GPU after" if self.lost_gpu else f"rank {RANK} is to meet a dead mount at"
        self.screen.now("submitted", f"{text}; {what} step {strike}")
        return Story(cluster, job, ACTS[self.args.act], self.script_xid, strike if self.lost_gpu else 0)

    def script_xid(self, nodes: list[str]) -> Event:
        """Write the fault into the kernel log of the rank's node, where the node's checks and its service find it."""
        assert self.cluster is not None
        self.cluster.add_kmsg(nodes[RANK], XID)
        return Event(time.time(), "scripted", f"injected: the kernel log of {nodes[RANK]} now says {XID}")

    # -- the end ----------------------------------------------------------------------------------------------------

    def report(self, story: Story) -> None:
        """Print the incident's times, and where to read on."""
        times: dict[str, float] = story.incident["times"]
        ordered = sorted(times.items(), key=lambda item: item[1])
        rows, before_s = [("", "clock", "after the last", "since the fault")], ordered[0][1]
        for name, at_s in ordered:
            clock = time.strftime("%H:%M:%S", time.localtime(at_s))
            since_s, total_s = f"{at_s - before_s:.1f} s", f"{at_s - ordered[0][1]:.1f} s"
            rows.append((name.replace("_", " "), clock, since_s, total_s))
            before_s = at_s
        self.screen.table(f"Incident {story.incident['id']}", rows)
        folder = story.folder if self.args.keep else self.save(story)
        page = next(folder.glob("*/report.md"))
        self.screen.say("\nRead on", BOLD)
        for what, path in (
            ("the report", page),
            ("for tools", page.with_name("incident.json")),
            ("stacks of all ranks", page.with_name("stacks-1")),
            ("the wrapper's story", folder / "story.jsonl"),
        ):
            self.screen.say(f"  {what:<20} {path}")

    def save(self, story: Story) -> Path:
        """Copy the logs and the story out of the cluster's folder; returns the copy of the story's folder."""
        target = Path(tempfile.mkdtemp(prefix="srobust-report-", dir=self.args.report_dir or self.base))
        for path in (story.output, *story.cluster.layout.log.glob("*.log")):
            if path.is_file():
                shutil.copy(path, target)
        if story.folder.is_dir():
            shutil.copytree(story.folder, target / story.folder.name)
        return target / story.folder.name

    def explain(self, error: Exception) -> None:
        """Print why it failed: what was awaited, the ends of the logs, and where the logs are."""
        self.screen.moving("")
        print(f"\nquickstart: {error}", file=sys.stderr)
        if self.cluster is None:
            return
        log = self.cluster.layout.log
        wanted = [log / "srobustd.log", log / "slurmctld.log"]
        if self.story is not None:
            wanted.insert(0, self.story.output)
        for path in wanted:
            if path.is_file():
                print(f"\n-- the end of {path.name}", file=sys.stderr)
                print("\n".join(path.read_text(errors="replace").splitlines()[-15:]), file=sys.stderr)
        if self.story is not None and not self.args.keep:
            print(f"\nquickstart: output and logs are kept in {self.save(self.story).parent}", file=sys.stderr)

    def down(self, *, keep: bool) -> None:
        """End the cluster, or print how to use it and how to end it."""
        self.screen.moving("")
        if self.directory is None:
            return
        if keep and self.cluster is not None:
            srobust = Path(sys.executable).parent / "srobust"
            self.screen.say("\nThe cluster stays", BOLD)
            self.screen.say(f'  use it          eval "$({srobust} devcluster env --dir {self.directory})"')
            self.screen.say("  and then        sinfo; srobust status; srobust incidents 1; srobust nodes")
            self.screen.say(f"  end it          {srobust} devcluster down --dir {self.directory}")
            return
        self.screen.moving("ending the cluster …")
        DevCluster(self.directory).down()
        # An `up` that ended before it had a record leaves files, but no process.
        shutil.rmtree(self.directory, ignore_errors=True)
        self.screen.say(f"\nThe cluster is down, {time.time() - self.screen.began_s:.0f} s after the start.")


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """The first signal ends the story; later signals must not disturb the cleaning up."""

    def __init__(self) -> None:
        self.number = 0
        self._listening = True
        for number in SIGNALS:
            signal.signal(number, self._came)

    def _came(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        if self._listening:
            self._listening = False
            raise Interrupted

    def only_note(self) -> None:
        """From now on a signal only changes the exit code."""
        self._listening = False


def attempt(quickstart: Quickstart, signals: Signals) -> int:
    """Run the story; returns the exit code, once nothing can interrupt any more."""
    try:
        try:
            quickstart.run()
            code = 0
        except (AstrayError, DevClusterError, subprocess.SubprocessError, OSError) as error:
            # Ctrl-C in a terminal also ends the command that we wait for.
            if not signals.number:
                quickstart.explain(error)
            code = 1
        finally:
            signals.only_note()
    except Interrupted:
        code = 1
    return code


def run(args: argparse.Namespace) -> int:
    """Run it and clean up, whatever happens; the exit code."""
    signals = Signals()
    quickstart = Quickstart(args)
    code = 1
    try:
        code = attempt(quickstart, signals)
    finally:
        signals.only_note()
        try:
            quickstart.down(keep=args.keep and not signals.number)
        except DevClusterError as error:
            print(f"quickstart: {error}", file=sys.stderr)
            code = 1
    # While Python ends, it restores the default signal handlers: a signal must not change the exit code now.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    return 128 + signals.number if signals.number else code
