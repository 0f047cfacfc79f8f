"""Versions of the code in one supervisor: first snapshot, updates, rollbacks, requeues. The clock is the test's."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from supervised import World

from slurm_robust import checkpoint
from slurm_robust.config.site import Config
from slurm_robust.core.model import Mode
from slurm_robust.policy.job.code_versions import TRIAL_S, CodeState
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.supervisor import Supervisor
from slurm_robust.supervise.versions.code_orders import CodeOrder, send
from slurm_robust.supervise.versions.snapshot import Limits
from slurm_robust.supervise.versions.version_folder import Origin, VersionFolder

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    import modle
ModuleNotFoundError: No module named 'modle'
srun: error: n1: task 0: Exited with exit code 1
"""


class Job:
    """A training on n1 and n2 from a snapshot of a folder.

    `events` are done once, when the launch of this number has reached this step.
    """

    def __init__(self, folder: Path, events: dict[tuple[int, int], Callable[[], None]], **changes: Any) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.output = folder / "slurm-1.out"
        if not self.project.exists():
            self.project.mkdir()
            (self.project / "train.py").write_text("print(1)\n")
            self.output.write_text("")
            checkpoint.save(folder / "ck", 10, {"x": 1})
        given = {"checkpoint_dir": str(folder / "ck"), "code_dir": str(self.project), "output_files": (self.output,)}
        given["command"] = f"-N2 python {self.project}/train.py"
        self.world = World(folder / "job", **{**given, **changes})
        self.versions = VersionFolder(self.world.session.folder.path)
        self.events = dict(events)
        self.launches = self.step = 0
        self.last_step = 40
        self.world.clock.on_sleep = self.goes_on

    @property
    def launched(self) -> list[str]:
        """The version of each launch."""
        assert self.world.channel is not None
        return [env.get("SROBUST_CODE_VERSION", "") for _, env, _ in self.world.channel.launched]

    def goes_on(self) -> None:
        """What the ranks do while the supervisor sleeps."""
        world, channel = self.world, self.world.channel
        assert channel is not None
        if len(channel.launched) > self.launches and channel.ended is None:
            self.launches = len(channel.launched)
            world.finds_ranks()
            self.step = 0 if self.launches == 1 else 11
        if channel.ended is not None or not self.launches:
            return
        event = self.events.pop((self.launches, self.step), None)
        if event is not None:
            event()
            if channel.ended is not None:
                return
        if self.step >= self.last_step:
            channel.ended = 0
            return
        self.step += 1
        world.steps(self.step)

    def orders(self, text: str, **changes: Any) -> Callable[[], None]:
        """What `srobust update` does after somebody has written this into train.py."""

        def order() -> None:
            (self.project / "train.py").write_text(text)
            keeper_limits = self.versions.report()
            assert keeper_limits is not None
            origin = Origin(self.project, "alice", (), keeper_limits.state.in_force)
            version = self.versions.take(origin, keeper_limits.limits)
            wanted = CodeOrder(self.world.job.name, version.number, "now", 3600.0, self.world.clock.at_s, "alice")
            send(self.versions.path, replace(wanted, **changes))

        return order

    def fails(self) -> None:
        """The program ends by its own error."""
        assert self.world.channel is not None
        with self.output.open("a") as f:
            f.write(TRACEBACK)
        self.world.channel.ended = 1

    def runs(self) -> int:
        """Supervise it to its end."""
        return asyncio.run(Supervisor(self.world.session).run())

    def text(self, kind: str) -> str:
        """All lines of the story of this kind."""
        return "\n".join(line["text"] for line in self.world.story if line["kind"] == kind)


def test_the_ranks_run_from_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Working directory, PYTHONPATH and the paths in the command; the story names what is moved."""
    job = Job(tmp_path, {})
    monkeypatch.chdir(job.project)
    assert job.runs() == 0
    assert job.world.channel is not None
    ((argv, env, _),) = job.world.channel.launched
    snapshot = job.versions.snapshot(1)
    assert argv[-2:] == ["python", f"{snapshot}/train.py"]
    assert f"--chdir={snapshot}" in argv
    assert env["PYTHONPATH"].split(":")[0] == str(snapshot)
    assert job.world.channel.orders[0] == "prepare", "the launcher waits"
    assert "version 1 of the code was taken from" in job.text("code")
    assert f"becomes '{snapshot}/train.py'" in job.text("code")


def test_an_update_is_put_in_force_on_the_same_nodes(tmp_path: Path) -> None:
    """A page of its own that blames nobody; no failure is counted, and the version is proven by its first step."""
    job = Job(tmp_path, {})
    job.events[1, 20] = job.orders("print(2)\n")
    assert job.runs() == 0
    assert job.launched == ["1", "2"]
    assert job.world.channel is not None
    argv = job.world.channel.launched[1][0]
    assert not any("exclude" in word for word in argv)
    assert argv[-1] == f"{job.versions.snapshot(2)}/train.py"
    assert (job.versions.snapshot(2) / "train.py").read_text() == "print(2)\n"
    kinds = [kind for kind in job.world.kinds if kind not in ("note", "checkpoint", "code")]
    assert kinds == ["training", "update", "relaunched", "training", "resumed", "finished"]
    (incident,) = job.world.incidents
    assert (incident["plan"]["code"], incident["verdict"]["conclusion"], incident["plan"]["evict"]) == (2, "none", [])
    assert "asked for by alice" in incident["plan"]["reason"]
    assert "after the update began" in incident["outcome"]
    assert {"decided", "stopped", "running", "first_new_step"} <= set(incident["times"])
    report = job.versions.report()
    assert report is not None
    assert (report.state.in_force, report.state.pending) == (2, None)
    assert report.answer is not None
    assert report.answer.accepted
    assert (job.world.job.claim.suspected_at_s, job.world.job.claim.failed_since_s) == (0.0, 0.0)


def test_the_report_follows_the_first_new_step(tmp_path: Path) -> None:
    """`srobust update --rollback` reads there what it may go back to."""
    job = Job(tmp_path, {})
    seen = []

    def look() -> None:
        report = job.versions.report()
        assert report is not None
        seen.append(report.state.proven)

    job.events = {(1, 0): look, (1, 30): look}
    assert job.runs() == 0
    assert seen == [(), (1,)]


def test_a_bad_update_is_taken_back_and_nobody_is_blamed(tmp_path: Path) -> None:
    """It ends by its own error before its first new step: the older one runs again, and the failure is not counted."""
    job = Job(tmp_path, {})
    job.events = {(1, 20): job.orders("import modle\n"), (2, 11): job.fails}
    assert job.runs() == 0
    assert job.launched == ["1", "2", "1"]
    assert job.world.channel is not None
    assert not any("exclude" in word for argv, _, _ in job.world.channel.launched for word in argv)
    assert "VERSION 2 OF THE CODE IS TAKEN BACK: version 1" in job.text("decided")
    assert "No node is blamed" in job.text("decided")
    assert "suspect" not in job.world.kinds
    page = next(job.world.session.folder.path.glob("*/report.md"))
    reports = "".join(path.read_text() for path in page.parent.parent.glob("*/report.md"))
    assert "VERSION 2 OF THE CODE IS TAKEN BACK" in reports
    report = job.versions.report()
    assert report is not None
    assert (report.state.in_force, report.state.taken_back, report.state.proven) == (1, (2,), (1,))
    assert job.world.job.claim.why == "" or "VERSION 2" in job.world.job.claim.why
    assert (job.world.job.claim.failed, job.world.job.claim.failed_since_s) == (0, 0.0)


def test_two_pages_of_one_second_are_two(tmp_path: Path) -> None:
    """The new version may fail at once."""
    log = IncidentLog(World(tmp_path).session)

    async def opened() -> set[str]:
        return {log.open("", 1.0, "x").id for _ in range(3)}

    assert len(asyncio.run(opened())) == 3


def test_a_rollback_that_fails_too_ends_as_without_versions(tmp_path: Path) -> None:
    """Once: the older version's own error stops the job with its exit code."""
    job = Job(tmp_path, {})
    job.events = {(1, 20): job.orders("import modle\n"), (2, 11): job.fails, (3, 11): job.fails}
    assert job.runs() == 1
    assert job.launched == ["1", "2", "1"]
    assert "stop" in job.text("decided").splitlines()[-1]


def test_the_first_version_has_none_to_go_back_to(tmp_path: Path) -> None:
    """Its own error is what it was before there were versions."""
    job = Job(tmp_path, {})
    job.events = {(1, 5): job.fails}
    assert job.runs() == 1
    assert job.launched == ["1"]


def test_after_the_next_checkpoint(tmp_path: Path) -> None:
    """It waits for one that is newer than the order."""
    job = Job(tmp_path, {})
    saved = {}

    def saves() -> None:
        saved["at_s"] = job.world.clock.at_s
        checkpoint.save(tmp_path / "ck", 30, {"x": 1})

    job.last_step = 200
    job.events = {(1, 20): job.orders("print(2)\n", when="next-checkpoint"), (1, 90): saves}
    assert job.runs() == 0
    assert job.launched == ["1", "2"]
    (update,) = [line for line in job.world.story if line["kind"] == "update"]
    assert update["at_s"] >= saved["at_s"]
    assert "the checkpoint of step 30 is verified" in update["text"]


def test_at_the_end_of_its_window(tmp_path: Path) -> None:
    """No checkpoint and no failure comes."""
    job = Job(tmp_path, {})
    job.last_step = 200
    job.events = {(1, 20): job.orders("print(2)\n", when="next-failure", within_s=10.0)}
    assert job.runs() == 0
    assert job.launched == ["1", "2"]
    assert "its time is over" in job.text("update")


def test_with_the_next_failure(tmp_path: Path) -> None:
    """Also where the program's own error would have ended the job."""
    job = Job(tmp_path, {})
    job.events = {(1, 20): job.orders("print(2)\n", when="next-failure"), (1, 30): job.fails}
    assert job.runs() == 0
    assert job.launched == ["1", "2"]
    assert "version 2 of the code, which alice has prepared, replaces version 1" in job.text("decided")


def test_back_by_hand(tmp_path: Path) -> None:
    """An order for an older version: the newer one counts as taken back."""
    job = Job(tmp_path, {})

    def back() -> None:
        order = CodeOrder(job.world.job.name, 1, "now", 60.0, job.world.clock.at_s, "alice", back=True)
        send(job.versions.path, order)

    job.events = {(1, 20): job.orders("print(2)\n"), (2, 20): back}
    assert job.runs() == 0
    assert job.launched == ["1", "2", "1"]
    report = job.versions.report()
    assert report is not None
    assert report.state.taken_back == (2,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"number": 1}, "version 1 is in force already"),
        ({"number": 77}, "version 77 is not whole"),
        ({"job": "999"}, "it is for job '999'"),
    ],
)
def test_wrong_orders_are_refused_and_training_goes_on(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """The reason stands in the story and in the answer."""
    job = Job(tmp_path, {})
    job.events[1, 20] = job.orders("print(2)\n", **changes)
    assert job.runs() == 0
    assert job.launched == ["1"]
    assert f"refused: {words}" in job.text("code")
    report = job.versions.report()
    assert report is not None
    assert report.answer is not None
    assert (report.answer.accepted, words in report.answer.text) == (False, True)


def test_an_update_that_could_lose_progress_is_refused(tmp_path: Path) -> None:
    """Nothing shows that the command resumes; with the next failure it is possible."""
    job = Job(tmp_path, {}, checkpoint_dir="")
    job.events = {(1, 20): job.orders("print(2)\n"), (1, 30): job.orders("print(3)\n", when="next-checkpoint")}
    job.last_step = 60
    assert job.runs() == 0
    assert job.launched == ["1"]
    assert "nothing shows that the command alone resumes" in job.text("code")
    assert "no checkpoint folder is known" in job.text("code")


def test_an_order_that_cannot_be_taken_away_is_told_once(tmp_path: Path) -> None:
    """A folder in its place."""
    job = Job(tmp_path, {})
    job.events[1, 10] = lambda: (job.versions.path / "order.json").mkdir(mode=0o700)
    assert job.runs() == 0
    assert job.text("code").count("refused: it cannot be opened: it is not a plain file") == 1


def test_observe_mode_takes_snapshots_and_restarts_nothing(tmp_path: Path) -> None:
    """An order is refused."""
    job = Job(tmp_path, {}, config=Config(mode=Mode.OBSERVE))
    job.events[1, 20] = job.orders("print(2)\n")
    assert job.runs() == 0
    assert job.launched == ["1"]
    assert "observe mode: nothing is restarted" in job.text("code")


def test_observe_mode_only_says_that_a_version_would_be_taken_back(tmp_path: Path) -> None:
    """The plan is in the story; nothing is launched, and the version stays in force."""
    job = Job(tmp_path, {}, config=Config(mode=Mode.OBSERVE))
    job.events[1, 0] = job.fails
    for text in ("print(1)\n", "import modle\n"):
        (job.project / "train.py").write_text(text)
        job.versions.take(Origin(job.project, "alice"), Limits(1 << 20, 10, 30.0))
    supervisor = Supervisor(job.world.session)
    supervisor._store.code_changed(CodeState(in_force=2, proven=(1,)))
    assert asyncio.run(supervisor.run()) == 1
    assert job.launched == ["2"]
    assert "would take restart in place: VERSION 2 OF THE CODE IS TAKEN BACK: version 1" in job.text("observed")
    report = job.versions.report()
    assert report is not None
    assert report.state.in_force == 2


def test_a_step_that_is_not_ours_has_no_versions(tmp_path: Path) -> None:
    """A watch from outside takes no snapshot, and reads no order."""
    (tmp_path / "project").mkdir()
    world = World(tmp_path / "job", code_dir=str(tmp_path / "project"))
    asyncio.run(Supervisor(world.session)._code.prepare())
    assert world.session.code is None
    assert not (world.session.folder.path / "code").exists()


def test_a_requeued_job_runs_the_version_in_force(tmp_path: Path) -> None:
    """Not what a colleague has written into the folder since."""
    first = Job(tmp_path, {})
    supervisor = Supervisor(first.world.session)
    asyncio.run(supervisor._code.prepare())
    (first.project / "train.py").write_text("a colleague's edit\n")
    second = Job(tmp_path, {}, job={"restart_count": 1})
    assert second.runs() == 0
    assert second.launched == ["1"]
    assert second.versions.numbers() == [1]
    assert (second.versions.snapshot(1) / "train.py").read_text() == "print(1)\n"


def test_a_damaged_version_is_not_run(tmp_path: Path) -> None:
    """Told loudly; where there is no older one, a new snapshot is taken."""
    first = Job(tmp_path, {})
    asyncio.run(Supervisor(first.world.session)._code.prepare())
    (first.versions.snapshot(1) / "train.py").unlink()
    second = Job(tmp_path, {}, job={"restart_count": 1})
    assert second.runs() == 0
    assert second.launched == ["2"]
    assert "VERSION 1 OF THE CODE CANNOT BE USED" in second.text("code")


def test_what_does_not_fit_runs_from_the_folder_itself(tmp_path: Path) -> None:
    """Refused before the training starts, and told; the job has waited for its nodes, so it trains."""
    job = Job(tmp_path, {}, supervise={"code_max_mib": 0.000001})
    assert job.runs() == 0
    assert job.launched == [""]
    assert job.world.channel is not None
    assert job.world.channel.launched[0][0][-1] == f"{job.project}/train.py"
    assert "NO SNAPSHOT OF THE CODE" in job.text("code")
    report = job.versions.report()
    assert report is not None
    assert "supervise.code_max_mib" in report.trouble


def test_a_restarted_supervisor_knows_the_version(tmp_path: Path) -> None:
    """The training is not touched, and the next launch runs the same version."""
    first = Job(tmp_path, {})
    asyncio.run(Supervisor(first.world.session)._code.prepare())
    second = Job(tmp_path, {})
    assert second.world.channel is not None
    second.world.channel.running_attempt = "1.0.1.1"
    asyncio.run(Supervisor(second.world.session)._code.prepare())
    assert second.world.session.code is not None
    assert second.world.session.code.number == 1
    assert second.versions.numbers() == [1]


def test_checkpoints_in_the_folder_stay_in_one_place(tmp_path: Path) -> None:
    """A relative name leads there from every version."""
    job = Job(tmp_path, {}, checkpoint_dir=str(tmp_path / "project" / "ckpt"))
    asyncio.run(Supervisor(job.world.session)._code.prepare())
    assert (job.versions.snapshot(1) / "ckpt").resolve() == (job.project / "ckpt").resolve()


@pytest.mark.parametrize("trial", [True, False])
def test_an_update_that_breaks_soon_after_its_first_step_is_taken_back(tmp_path: Path, trial: bool) -> None:
    """At its first evaluation, say. After its trial the program's own error stops the job, as before."""
    job = Job(tmp_path, {})

    def fails() -> None:
        if not trial:
            job.world.clock.at_s += TRIAL_S
            job.events[2, 31] = job.fails
        else:
            job.fails()

    job.events = {(1, 20): job.orders("print(2)\n"), (2, 30): fails}
    assert job.runs() == (0 if trial else 1)
    assert job.launched == (["1", "2", "1"] if trial else ["1", "2"])
    assert ("VERSION 2 OF THE CODE IS TAKEN BACK: version 1" in job.text("decided")) is trial
    assert ("within 60 minutes of its update" in job.text("decided")) is trial
    assert "suspect" not in job.world.kinds


def test_a_damaged_version_is_not_gone_back_to(tmp_path: Path) -> None:
    """The job ends by the program's own error, as without versions, and not by a missing folder, nor without end."""
    job = Job(tmp_path, {})

    def fails() -> None:
        shutil.rmtree(job.versions.snapshot(1), ignore_errors=True)
        job.fails()

    job.events = {(1, 20): job.orders("import modle\n"), (2, 11): fails, (3, 11): fails}
    assert job.runs() == 1
    assert job.launched == ["1", "2", "2"]
    assert "VERSION 1 OF THE CODE CANNOT BE USED" in job.text("code")
    assert "stop" in job.text("decided").splitlines()[-1]


def test_a_version_that_somebody_has_removed_is_taken_anew(tmp_path: Path) -> None:
    """A restart in place does not start the ranks in a folder that is gone."""
    job = Job(tmp_path, {})

    def hangs() -> None:
        shutil.rmtree(job.versions.snapshot(1))
        assert job.world.channel is not None
        job.world.channel.ended = 137

    job.events = {(1, 20): hangs}
    assert job.runs() == 0
    assert job.launched == ["1", "2"]
    assert "VERSION 1 OF THE CODE CANNOT BE USED" in job.text("code")


def test_an_update_that_waits_is_withdrawn(tmp_path: Path) -> None:
    """By asking for the version in force: `srobust update` does so once the edit is undone."""
    job = Job(tmp_path, {})

    def withdraws() -> None:
        wanted = CodeOrder(job.world.job.name, 1, "next-checkpoint", 3600.0, job.world.clock.at_s, "bob")
        send(job.versions.path, wanted)

    job.last_step = 100
    job.events = {(1, 20): job.orders("print(2)\n", when="next-failure", within_s=4.0), (1, 30): withdraws}
    assert job.runs() == 0
    assert job.launched == ["1"]
    assert "version 2 of the code is withdrawn by bob: version 1 stays in force" in job.text("code")
    report = job.versions.report()
    assert report is not None
    assert report.answer is not None
    assert (report.answer.accepted, report.state.pending) == (True, None)


def test_a_folder_that_has_the_checkpoints_itself_is_not_moved(tmp_path: Path) -> None:
    """They would be saved in the snapshot by a relative name, and looked up in the folder: all progress lost."""
    job = Job(tmp_path, {}, checkpoint_dir=str(tmp_path / "project"))
    assert job.runs() == 0
    assert job.launched == [""]
    assert "NO SNAPSHOT OF THE CODE: the checkpoints are saved in the folder itself" in job.text("code")


def test_the_jobs_own_output_is_no_code(tmp_path: Path) -> None:
    """It grows all the while: otherwise each update would find that it has changed."""
    (tmp_path / "project" / "logs").mkdir(parents=True)
    (tmp_path / "project" / "train.py").write_text("print(1)\n")
    log = tmp_path / "project" / "logs" / "train.log"
    log.write_text("step 1\n")
    job = Job(tmp_path, {}, output_files=(log,), checkpoint_dir="")
    asyncio.run(Supervisor(job.world.session)._code.prepare())
    assert set(job.versions.digests(1)) == {"train.py"}
    report = job.versions.report()
    assert report is not None
    assert report.own_shared == ("logs/train.log",)
    assert (job.versions.snapshot(1) / "logs" / "train.log").samefile(log)


def test_a_package_that_is_imported_from_beside_it_is_not_moved(tmp_path: Path) -> None:
    """Python looks in the working directory first: the ranks would run the folder's code, whatever is in force."""
    job = Job(tmp_path, {}, command="-N2 python -m project.train")
    job.world.session.environment = {**job.world.session.environment, "SLURM_WORKING_DIR": str(tmp_path)}
    assert job.runs() == 0
    assert job.launched == [""]
    assert f"give --robust-code={tmp_path}" in job.text("code")


def test_what_the_program_has_written_into_its_version_is_its_own(tmp_path: Path) -> None:
    """A requeue runs the same version: a new snapshot would have what a colleague has written since."""
    (tmp_path / "project").mkdir()
    for name, text in {"train.py": "print(1)\n", "state.json": "{}", "old.txt": ""}.items():
        (tmp_path / "project" / name).write_text(text)
    first = Job(tmp_path, {}, checkpoint_dir="", output_files=())
    asyncio.run(Supervisor(first.world.session)._code.prepare())
    new = first.versions.snapshot(1) / "new"
    new.write_text("{1: 2}")
    new.replace(first.versions.snapshot(1) / "state.json")
    (first.versions.snapshot(1) / "old.txt").unlink()
    (first.project / "train.py").write_text("a colleague's edit\n")
    second = Job(tmp_path, {}, checkpoint_dir="", output_files=(), job={"restart_count": 1})
    assert second.runs() == 0
    assert second.launched == ["1"]
