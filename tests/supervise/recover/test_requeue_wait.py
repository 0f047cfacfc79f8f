"""The wait for a requeue: what is decided at each look, and the tiny process that waits in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from helpers import wait_until
from supervised import World

from slurm_robust.config.site import SlurmConfig
from slurm_robust.core.model import EXIT_REQUEUE_WANTED, JobRef, Mode
from slurm_robust.marks.claim import ClaimAnswer
from slurm_robust.slurm.client import Job
from slurm_robust.supervise.clock import Clock
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.launch import waiting_shell
from slurm_robust.supervise.recover.requeue_wait import ENDED_WITH_JOB, RequeueWait, WaitPhase, next_step, poll
from slurm_robust.supervise.recover.step_control import _wait

ASKED = RequeueWait(
    JobRef(7),
    0,
    "i-1",
    ("n3",),
    "/tmp/x",
    SlurmConfig(),
    WaitPhase.ASKED,
    until_s=100.0,
    answer_timeout_s=20.0,
    requeue_timeout_s=300.0,
    heard_at_s=95.0,
)


def heard_until(wait: RequeueWait, now_s: float) -> RequeueWait:
    """Slurm was there all the time, and nothing else came of it."""
    return replace(wait, heard_at_s=now_s)


def test_it_waits_for_the_answer() -> None:
    """Nothing is done before the time is over."""
    assert next_step(ASKED, None, 99.0, ending=False).wait == heard_until(ASKED, 99.0)


def test_an_accepted_claim_waits_for_the_requeue() -> None:
    """The daemon's words go into the story; a daemon that comes no more costs a plain requeue, not the job."""
    step = next_step(ASKED, ClaimAnswer("accepted", "i-1", "seat made"), 50.0, ending=False)
    assert (step.kind, step.text, step.requeue) == (
        "accepted",
        "the daemon has accepted, and its requeue is waited for: seat made",
        False,
    )
    assert step.wait is not None
    assert (step.wait.phase, step.wait.until_s) == (WaitPhase.ACCEPTED, 70.0)
    late = next_step(heard_until(step.wait, 69.0), None, 71.0, ending=False)
    assert (late.kind, late.requeue) == ("unanswered", True)
    assert late.wait is not None
    last = next_step(heard_until(late.wait, 370.0), None, 372.0, ending=False)
    assert (last.kind, last.wait, last.code) == ("gave-up", None, EXIT_REQUEUE_WANTED)


def test_a_daemon_that_takes_its_yes_back_is_not_waited_for() -> None:
    """Accepted, and then Slurm refused the daemon's requeue: our own follows at once, and its words are told."""
    wait = replace(ASKED, phase=WaitPhase.ACCEPTED)
    assert next_step(wait, ClaimAnswer("accepted", "i-1"), 99.0, ending=False).wait == heard_until(wait, 99.0)
    step = next_step(wait, ClaimAnswer("refused", "i-1", "not requeueable"), 99.0, ending=False)
    assert (step.kind, step.requeue) == ("unanswered", True)
    assert step.text.startswith("the daemon: refused: not requeueable; ")


@pytest.mark.parametrize(("answer", "now_s"), [(ClaimAnswer("refused", "i-1", "no seat"), 50.0), (None, 100.0)])
def test_without_the_daemon_the_job_requeues_itself(answer: ClaimAnswer | None, now_s: float) -> None:
    """Refused, or no answer in time: a plain requeue, once."""
    step = next_step(ASKED, answer, now_s, ending=False)
    assert (step.kind, step.requeue) == ("unanswered", True)
    assert step.wait is not None
    assert step.wait.phase is WaitPhase.REQUEUED
    assert not next_step(step.wait, answer, now_s + 1, ending=False).requeue


@pytest.mark.parametrize("phase", [WaitPhase.ASKED, WaitPhase.ACCEPTED, WaitPhase.REQUEUED])
def test_the_time_that_slurm_is_away_does_not_count(phase: WaitPhase) -> None:
    """Hours without a slurmctld, then it is back: the wait goes on where it was. After a day nobody waits any more."""
    wait = replace(ASKED, phase=phase, until_s=110.0, called_at_s=85.0)
    for now_s in (120.0, 7200.0):
        away = next_step(wait, None, now_s, ending=False, heard=False, running=False)
        assert (away.wait, away.requeue) == (wait, False)
    back = next_step(wait, None, 7290.0, ending=False, running=False)
    assert back.wait == replace(wait, heard_at_s=7290.0, until_s=110.0 + (7290.0 - 95.0 - 6.0))
    gone = next_step(wait, None, 95.0 + 86400.0, ending=False, heard=False, running=False)
    assert (gone.kind, gone.wait, gone.code) == ("gave-up", None, EXIT_REQUEUE_WANTED)


def test_an_unheard_requeue_is_called_as_long_as_slurm_is_away() -> None:
    """It may hear the call before it hears the question."""
    wait = replace(ASKED, phase=WaitPhase.PLAIN, tried=True)
    assert next_step(wait, None, 7200.0, ending=False, heard=False).requeue


def test_a_requeue_that_slurm_forgot_is_called_again() -> None:
    """A slurmctld that is killed may lose the call: the job runs on, and it is called again, as often as it takes."""
    called = next_step(replace(ASKED, phase=WaitPhase.PLAIN), None, 91.0, ending=False).wait
    assert called is not None
    assert not next_step(called, None, 99.0, ending=False).requeue
    assert not next_step(called, None, 102.0, ending=False, running=False).requeue
    assert not next_step(called, None, 102.0, ending=False, heard=False, running=False).requeue
    again = next_step(called, None, 102.0, ending=False)
    assert (again.kind, again.requeue) == ("note", True)
    assert again.wait is not None
    assert not next_step(again.wait, None, 106.0, ending=False).requeue
    third = next_step(again.wait, None, 112.0, ending=False)
    assert (third.kind, third.requeue) == ("", True)


def test_a_daemon_that_only_observes_is_not_called_absent() -> None:
    """It runs, and answers nobody: the story says so, and the plain requeue follows all the same."""
    late_s = ASKED.until_s + 1
    silent, observing = (replace(ASKED, heard_at_s=late_s, site_observes=one) for one in (False, True))
    step = next_step(observing, None, late_s, ending=False)
    assert (step.kind, step.requeue) == ("unanswered", True)
    assert step.text.startswith("the daemon only observes (the site's mode); a plain requeue follows")
    assert next_step(silent, None, late_s, ending=False).text.startswith("no daemon answered; ")


@pytest.mark.parametrize("mode", [None, *Mode])
def test_the_sites_mode_is_what_counts(tmp_path: Path, mode: Mode | None) -> None:
    """The job acts, because its user has chosen so."""
    world = World(tmp_path, command="python train.py", site_mode=mode)
    assert _wait(world.session, world.job.claim, WaitPhase.ASKED).site_observes is (mode is Mode.OBSERVE)


class OneJob:
    """A Slurm that knows job 7, and counts what is asked of it."""

    def __init__(self) -> None:
        self.requeues = 0

    def job(self, ref: JobRef) -> Job:
        """It runs, and nobody has answered."""
        return Job(ref, user="ann", name="t", state="RUNNING", uid=1000, partition="main", nodes=("n1",))

    def requeue(self, _: JobRef, *, without: tuple[str, ...]) -> None:
        """Note it."""
        assert without == ("n3",)
        self.requeues += 1


def test_what_a_small_process_says_is_printed_before_the_requeue_ends_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The shell prints the words of a look when that is over: so the requeue is called at the next one."""
    slurm, folder, clock = OneJob(), IncidentFolder(tmp_path / "f"), Clock()
    wait = replace(ASKED, folder=str(tmp_path / "f"), until_s=clock.now_s() - 1, heard_at_s=clock.now_s())
    told = poll(wait, slurm, folder, clock, tells_first=True)  # type: ignore[arg-type]
    assert isinstance(told, RequeueWait)
    assert (slurm.requeues, told.phase) == (0, WaitPhase.PLAIN)
    assert "no daemon answered" in capfd.readouterr().err
    after = poll(told, slurm, folder, clock, tells_first=True)  # type: ignore[arg-type]
    assert isinstance(after, RequeueWait)
    assert (slurm.requeues, after.phase) == (1, WaitPhase.REQUEUED)
    poll(wait, slurm, folder, clock)  # type: ignore[arg-type]
    assert slurm.requeues == 2, "where the words are printed at once, it is called at once"


@pytest.mark.parametrize("phase", list(WaitPhase))
def test_a_job_that_is_being_requeued_is_left_alone(phase: WaitPhase) -> None:
    """Whatever was waited for: it has come, and nothing more is called."""
    step = next_step(replace(ASKED, phase=phase), None, 1e9, ending=True)
    assert (step.wait, step.requeue, step.code) == (None, False, ENDED_WITH_JOB)


def test_the_wait_travels_as_text() -> None:
    """From one process into the next."""
    assert msgspec.json.decode(ASKED.argv[-1], type=RequeueWait) == ASKED


NAP = (
    "import sys; from slurm_robust.supervise.launch import waiting_shell as w; "
    "sys.exit(w.become(float(sys.argv[1]), sys.argv[2:]))"
)


def napping(seconds: float, *argv: str, before: str = "") -> subprocess.Popen[str]:
    """A process that naps."""
    command = [sys.executable, "-c", f"{before}\n{NAP}", str(seconds), *argv]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def is_napping(pid: int) -> bool:
    """True once it has become the small shell."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"srobust-waits")
    except OSError:
        return False


SHELLS = {
    "small": "",
    "larger": "nap._SMALL = '/nonexistent'",
    "none": "nap._SMALL = nap._LARGER = '/nonexistent'",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_nap_looks_now_and_then_until_a_look_ends_it(shell: str, tmp_path: Path) -> None:
    """With the small shell, the larger one and none: argument for argument, the same pid, whatever a look comes to.

    The first look fails, the second is killed, the third hands on a state that has all that a shell could misread.
    """
    before = f"from slurm_robust.supervise.launch import waiting_shell as nap; {SHELLS[shell]}"
    look = """
import os, pathlib, signal, sys
fds = sorted(os.listdir("/proc/self/fd"))[:-1]
told = pathlib.Path(sys.argv[1])
with told.open("a") as f:
    f.write(repr((os.getppid(), fds, sys.argv[2:])) + "\\n")
n = len(told.read_text().splitlines())
if n == 1:
    print("a fault"); sys.exit(1)
if n == 2:
    os.kill(os.getpid(), signal.SIGTERM)
print('next {"a": "$x  *`"}' if n == 3 else "exit 143")
"""
    told = tmp_path / "told"
    process = napping(0.5, sys.executable, "-S", "-c", look, str(told), "two  words", "first", before=before)
    err = process.communicate(timeout=20)[1]
    assert process.returncode == 143
    (line,) = err.replace("Terminated\n", "").splitlines()
    assert "(a fault); trying again" in line
    lines = [eval(line) for line in told.read_text().splitlines()]
    assert [words for _, _, words in lines] == [["two  words", "first"]] * 3 + [["two  words", '{"a": "$x  *`"}']]
    assert {pid for pid, _, _ in lines} == {process.pid}
    assert all(len(fds) == 3 for _, fds, _ in lines), "nothing but the standard three is inherited"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_look_that_can_never_be_had_is_not_waited_for_for_ever(shell: str) -> None:
    """The command is gone, and stays gone: some looks later it is 75, as where nobody came."""
    before = f"from slurm_robust.supervise.launch import waiting_shell as nap; nap._MAX_FAILED = 2; {SHELLS[shell]}"
    process = napping(0.5, "/nonexistent/python", "state", before=before)
    process.communicate(timeout=10)
    assert process.returncode == EXIT_REQUEUE_WANTED


@pytest.mark.parametrize("shell", SHELLS)
def test_a_package_that_vanishes_leaves_one_line(shell: str) -> None:
    """Somebody removes it while a requeue waits: said once, with the reason, and not at each look."""
    before = f"from slurm_robust.supervise.launch import waiting_shell as nap; nap._MAX_FAILED = 3; {SHELLS[shell]}"
    process = napping(0.5, sys.executable, "-S", "-m", "slurm_robust.not_there", "state", before=before)
    err = process.communicate(timeout=30)[1]
    assert process.returncode == EXIT_REQUEUE_WANTED
    (line,) = err.splitlines()
    assert line.startswith("srobust: ")
    assert "not_there" in line
    assert "requeue" in line


@pytest.mark.parametrize("shell", SHELLS)
def test_what_a_look_tells_is_passed_on(shell: str) -> None:
    """The story's lines, of a look that goes on and of the last one; a closed stderr ends nothing."""
    look = """
import sys
sys.stderr.write(f"srobust: {sys.argv[1]} \\\\n %s\\nand more\\n")
print("next b" if sys.argv[1] == "a" else "exit 7")
"""
    before = f"from slurm_robust.supervise.launch import waiting_shell as nap; {SHELLS[shell]}"
    process = napping(0.5, sys.executable, "-S", "-c", look, "a", before=before)
    err = process.communicate(timeout=30)[1]
    assert process.returncode == 7
    assert err.splitlines() == [r"srobust: a \n %s", "and more", r"srobust: b \n %s", "and more"]
    with napping(0.5, sys.executable, "-S", "-c", look, "a", before=before) as process:
        assert process.stderr is not None
        process.stderr.close()
        assert process.wait(30) == 7


def test_while_it_naps_it_is_one_process(tmp_path: Path) -> None:
    """A process with children is never gone in time."""
    told = tmp_path / "told"
    process = napping(1.0, "/bin/sh", "-c", f"echo >> {told}; echo next", "x")
    wait_until(told.exists, timeout_s=10, what="a look")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: not children.read_text(), timeout_s=0.9, what="the look's end")
    assert Path(f"/proc/{process.pid}/exe").readlink().name == "dash"
    process.kill()
    process.communicate(timeout=10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_nap_is_ended_by_what_ends_a_process(number: signal.Signals) -> None:
    """`scancel` and Ctrl-C arrive."""
    process = napping(60.0, "/bin/true")
    wait_until(lambda: is_napping(process.pid), timeout_s=10, what="the nap")
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode != 0


def test_a_blocked_or_ignored_alarm_wakes_it_all_the_same() -> None:
    """Whatever was inherited: a nap that never ends would hold the job."""
    before = "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN); signal.pthread_sigmask(0, [14])"
    process = napping(0.6, "/bin/echo", "exit 7", before=before)
    process.communicate(timeout=10)
    assert process.returncode == 7


def test_it_dies_with_its_parent_only_where_it_is_told() -> None:
    """Killed with the script's shell; a process of this test is no batch script."""
    assert not waiting_shell.is_batch_script(os.getpid())
    inner = (
        "import os; from slurm_robust.supervise.launch import waiting_shell as w; "
        f"w.die_with_parent(os.getppid())\n{NAP}"
    )
    shell = subprocess.Popen(
        ["/bin/sh", "-c", '"$0" -c "$1" 60 /bin/true & echo $!; wait; true', sys.executable, inner],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    wait_until(lambda: is_napping(pid), timeout_s=10, what="the nap")
    shell.kill()
    shell.wait()
    wait_until(lambda: not is_napping(pid), timeout_s=2, what="its end")
    shell.stdout.close()
