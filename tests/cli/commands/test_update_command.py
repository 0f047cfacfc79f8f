"""`srobust update`: what it shows, what it refuses, and what it asks the supervisor for."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_slurm import FakeSlurm
from helpers import wait_until

from slurm_robust.cli import run_step
from slurm_robust.cli.commands import update
from slurm_robust.policy.job.code_versions import CodeState, PendingCode
from slurm_robust.supervise.launch.srun_command import UsageError
from slurm_robust.supervise.versions import code_orders
from slurm_robust.supervise.versions.code_orders import CodeOrder, receive
from slurm_robust.supervise.versions.snapshot import Limits
from slurm_robust.supervise.versions.version_folder import CodeAnswer, CodeReport, Origin, VersionFolder

LIMITS = Limits(1 << 20, 100, 30.0)


class Site:
    """A running job with version 1 of its code in force."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slurm = FakeSlurm()
        self.job = self.slurm.run_job(("n1",), uid=os.getuid(), std_out=str(tmp_path / "job.out"))
        self.name = self.job.ref.address
        self.project = tmp_path / "project"
        self.project.mkdir()
        (self.project / "train.py").write_text("x = 1\n")
        self.versions = VersionFolder(tmp_path / f"slurm-robust-{self.name}")
        self.versions.take(Origin(self.project, "alice"), LIMITS)
        self.report = CodeReport(self.name, str(self.project), CodeState(in_force=1, proven=(1,)), LIMITS)
        self.versions.write_report(self.report)
        monkeypatch.setattr(update, "connect", lambda _: self.slurm)
        self.orders: list[CodeOrder] = []

    def types(self, *words: str) -> Result:
        """`srobust update JOB …`."""
        return CliRunner().invoke(update.command, [self.name, *words])

    def answers(self, *, accepted: bool, text: str) -> None:
        """The supervisor, once."""

        def supervise() -> None:
            order = wait_until(lambda: receive(self.versions.path, os.getuid(), self.name), 30, "an order")
            assert order is not None
            self.orders.append(order)
            self.versions.write_report(replace(self.report, answer=CodeAnswer(order.at_s, accepted, text)))

        threading.Thread(target=supervise, daemon=True).start()


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A job in this folder."""
    monkeypatch.setenv("COLUMNS", "110")
    return Site(tmp_path, monkeypatch)


def test_an_update_takes_a_snapshot_and_asks(running: Site) -> None:
    """What differs is shown, then the supervisor's words."""
    (running.project / "train.py").write_text("x = 2\n")
    running.answers(accepted=True, text="version 2 waits")
    done = running.types("--within", "90m")
    assert (done.exit_code, running.versions.numbers()) == (0, [1, 2]), done.output
    assert "1 file changed (+1 -1 lines) since version 1" in done.output
    assert "version 2 waits" in done.output
    (order,) = running.orders
    assert (order.number, order.when, order.within_s, order.back) == (2, "next-checkpoint", 5400.0, False)


def test_a_refusal_is_shown(running: Site) -> None:
    """Exit code 1, and the reason."""
    (running.project / "train.py").write_text("x = 2\n")
    running.answers(accepted=False, text="observe mode")
    done = running.types("--when", "now")
    assert (done.exit_code, "refused: observe mode" in done.output) == (1, True)


def test_nothing_new_is_no_version(running: Site) -> None:
    """Nothing is asked for, and no number is used up."""
    done = running.types()
    assert (done.exit_code, running.versions.numbers()) == (1, [1])
    assert "nothing has changed" in done.output


def test_what_does_not_fit_is_refused(running: Site) -> None:
    """By the limits of the job's own supervisor."""
    (running.project / "big.py").write_bytes(b"x" * (2 << 20))
    done = running.types()
    assert (done.exit_code, "more than 1 MiB" in done.output) == (1, True)
    assert running.versions.numbers() == [1]


def test_back_goes_to_the_last_that_made_progress(running: Site) -> None:
    """At once, unless it is said otherwise; without one it is refused."""
    assert running.types("--rollback").exit_code == 1
    running.report = replace(running.report, state=CodeState(in_force=2, proven=(1,)))
    running.versions.write_report(running.report)
    running.answers(accepted=True, text="version 1 is put in force now")
    done = running.types("--rollback")
    assert done.exit_code == 0, done.output
    (order,) = running.orders
    assert (order.number, order.when, order.back) == (1, "now", True)


def test_versions_are_shown(running: Site) -> None:
    """For people, and for tools."""
    state = replace(running.report.state, pending=PendingCode(2, "next-failure", 9e9, "bob"), taken_back=(3,))
    running.versions.write_report(replace(running.report, state=state))
    shown = running.types("--show").output
    assert "runs version 1 of" in shown
    assert "Version 2 waits (next-failure)" in shown
    assert "in force, made progress" in shown
    found = json.loads(running.types("--show", "--json").output)
    assert (found["in_force"], found["pending"]["by"], found["versions"][0]["files"]) == (1, "bob", 1)


@pytest.mark.parametrize("words", [["--within", "soon"], ["--within", "0"], ["--within", "99d"], ["--json"]])
def test_wrong_usage(running: Site, words: list[str]) -> None:
    """Exit code 2."""
    assert running.types(*words).exit_code == 2


def test_a_job_without_versions_is_told_what_to_do(running: Site, tmp_path: Path) -> None:
    """Also one under SPANK or attach; and one whose snapshot was refused."""
    running.versions.write_report(replace(running.report, trouble="it has 3 GiB"))
    done = running.types()
    assert (done.exit_code, "itself: it has 3 GiB" in done.output) == (3, True)
    (running.versions.path / "state.json").unlink()
    done = running.types()
    assert (done.exit_code, "--robust-code=DIR" in done.output, "SPANK" in done.output) == (3, True, True)


def test_the_folder_is_found_by_slurms_pattern(running: Site, tmp_path: Path) -> None:
    """Some versions of Slurm leave `%j` in the name; the working directory may be another one."""
    job = replace(running.job, std_out=f"{tmp_path}/job-%j.out", work_dir="/")
    running.slurm.state.jobs[running.job.ref.job_id] = job
    assert running.types("--show").exit_code == 0


def test_a_folder_that_others_can_write_is_not_used(running: Site) -> None:
    """Somebody could choose what is copied, and where to."""
    (running.project / "train.py").write_text("x = 2\n")
    running.versions.path.chmod(0o777)
    done = running.types()
    assert (done.exit_code, "not the job user's alone" in done.output) == (3, True)
    assert running.versions.numbers() == [1]


BECOMES = """
import os
from slurm_robust.cli.commands import update
from slurm_robust.core.model import JobRef
from slurm_robust.slurm.client import Job
update._become(Job(JobRef(1), "RUNNING", "nobody", {uid}, "main"))
print(os.getuid(), os.geteuid(), os.getgid() != 0, 0 in os.getgroups(), os.environ["HOME"])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_becomes_the_jobs_user(tmp_path: Path) -> None:
    """What the job's folder says is that user's text: root's rights must not copy anything for it."""
    nobody = pwd.getpwnam("nobody")
    uid = nobody.pw_uid
    argv = [sys.executable, "-c", BECOMES.format(uid=uid)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [str(uid), str(uid), "True", "False", nobody.pw_dir]


def test_a_wrong_folder_is_a_wrong_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before anything is started; a requeued job keeps its version, whatever has become of the folder."""
    run_step._check_code("")
    run_step._check_code(str(tmp_path))
    with pytest.raises(UsageError, match="there is no such folder"):
        run_step._check_code(str(tmp_path / "missing"))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    run_step._check_code(str(tmp_path / "missing"))


def test_a_job_of_somebody_else_is_left_alone(running: Site) -> None:
    """Only its user updates it; root becomes its user, if there is one."""
    running.slurm.state.jobs[running.job.ref.job_id] = replace(running.job, uid=4_000_123)
    done = running.types()
    assert done.exit_code == 3
    assert "4000123" in done.output


def test_an_edit_that_was_undone_withdraws_the_update_that_waits(running: Site) -> None:
    """Otherwise nothing could keep it from being put in force."""
    state = replace(running.report.state, pending=PendingCode(2, "next-checkpoint", 9e9, "bob"))
    running.report = replace(running.report, state=state)
    running.versions.write_report(running.report)
    running.answers(accepted=True, text="version 2 of the code is withdrawn")
    done = running.types()
    assert (done.exit_code, "is withdrawn" in done.output) == (0, True)
    assert [order.number for order in running.orders] == [1]
    assert running.versions.numbers() == [1]


def test_a_missing_answer_says_what_became_of_the_order(running: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait, or have been taken by a supervisor that ended meanwhile."""
    monkeypatch.setattr(update, "_ANSWER_S", 0.1)
    (running.project / "train.py").write_text("x = 2\n")
    assert "the order stays in" in running.types().output
    monkeypatch.setattr(code_orders, "send", lambda *_: receive(running.versions.path, os.getuid(), running.name))
    (running.project / "train.py").write_text("x = 3\n")
    done = running.types()
    assert (done.exit_code, "the order was taken" in done.output) == (3, True)
    assert f"srobust update {running.name} --show" in done.output


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("words", [[], ["--show"]])
def test_root_reads_as_the_jobs_user(running: Site, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """Before anything of the job's folder is read, whose text the user chose."""
    running.slurm.state.jobs[running.job.ref.job_id] = replace(running.job, uid=pwd.getpwnam("nobody").pw_uid)
    steps: list[str] = []
    monkeypatch.setattr(update, "_become", lambda _: steps.append("become"))
    monkeypatch.setattr(VersionFolder, "report", lambda _: steps.append("read"))
    running.types(*words)
    assert steps[:2] == ["become", "read"]
