"""What the launcher gives the first srun of a run by itself, and what it leaves to the supervisor."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.checkpoint import save
from slurm_robust.checkpoint.base import rollback_log
from slurm_robust.cli import run_step
from slurm_robust.config.site import Config, SuperviseConfig
from slurm_robust.core import model
from slurm_robust.core.mode import Mode
from slurm_robust.supervise import job_ref
from slurm_robust.supervise.job import ref_from_environment
from slurm_robust.supervise.launch import attempt_settings, early_launch, options, resume_points, srun_process
from slurm_robust.supervise.launch.early_launch import EarlyLaunch
from slurm_robust.supervise.launch.srun_command import first_launch, parse
from slurm_robust.supervise.launch.supervisor_lock import SupervisorLock


class Typed:
    """`srobust run --robust-folder=FOLDER WORD…` in job 5 of a cluster that no other test has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "5"}
        self.env["SLURM_CLUSTER_NAME"] = f"test-{os.getpid()}-{secrets.token_hex(4)}"
        self.lock = early_launch.lock_of(self.env)

    @property
    def job_folder(self) -> Path:
        """The job's incident folder."""
        return self.folder / "slurm-robust-5"

    def prepare(self, *words: str, config: Config | None = None, **env: str) -> EarlyLaunch | None:
        """The early launch of this command line."""
        parsed = parse((f"--robust-folder={self.folder}", *words))
        values = {**self.env, **env}
        return early_launch.prepare(parsed, options.read(parsed.own, values), values, config, self.lock)

    def remember(self, **memory: object) -> None:
        """Have an earlier run of the job left this."""
        self.job_folder.mkdir(parents=True, exist_ok=True)
        (self.job_folder / "lineage.json").write_text(json.dumps(memory))


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[Typed]:
    """A command line, with the job's lock."""
    made = Typed(tmp_path)
    yield made
    if made.lock is not None:
        made.lock.release()


def test_the_ranks_are_given_what_a_supervisor_would_give_them(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, lineage, and a folder for dumps; srun's options are the user's."""
    monkeypatch.setattr(os, "urandom", bytes)
    launch = typed.prepare("-n2", "python", "train.py", TORCH_FR_BUFFER_SIZE="5")
    assert launch is not None
    name = attempt_settings.attempt_name("5", 0, os.getpid(), 1)
    assert launch.attempt == name
    assert len(launch.lineage) == 12
    base = {**typed.env, "TORCH_FR_BUFFER_SIZE": "5"}
    dumps, command = typed.job_folder / "fr", parse(["-n2", "python", "train.py"])
    assert launch.env == attempt_settings.environment(
        base, name, launch.lineage, attempt_settings.ResumePoint(), dumps, command=command
    )
    assert dumps.is_dir()
    assert launch.argv == tuple(first_launch(command, keep_evidence=False))
    assert launch.alone


def test_a_rank_that_dies_ends_the_step_unless_we_act(typed: Typed) -> None:
    """By the option, by the site's file, and not where another supervisor of the job runs."""
    act = Config(mode=Mode.ACT)
    for words, config in ((("--robust=on",), None), ((), act)):
        launch = typed.prepare(*words, "true", config=config)
        assert launch is not None
        assert "--kill-on-bad-exit=0" in launch.argv
    observed = typed.prepare("--robust=observe", "true", config=act)
    assert observed is not None
    assert "--kill-on-bad-exit=0" not in observed.argv
    second = early_launch.lock_of(typed.env)
    for lock in (typed.lock, second):
        typed.lock, other = lock, typed.lock
        launch = typed.prepare("true", config=act)
        assert launch is not None
        assert launch.argv == ("srun", "--", "true")
        typed.lock = other
    assert second is not None
    second.release()


def test_the_newest_verified_checkpoint_is_given(typed: Typed, tmp_path: Path) -> None:
    """An empty folder, or none, means a start from the beginning."""
    folder = tmp_path / "ck"
    for _ in range(2):
        launch = typed.prepare(f"--robust-checkpoint-dir={folder}", "true")
        assert launch is not None
        assert launch.resume_point == resume_points.look_up(str(folder))
        assert (launch.env["SROBUST_RESUME_PATH"], launch.env["SROBUST_RESUME_STEP"]) == ("", "-1")
        folder.mkdir(exist_ok=True)
    save(folder, 7, {"x": 1})
    (folder / "step-00000009").mkdir()
    launch = typed.prepare(f"--robust-checkpoint-dir={folder}", "true")
    assert launch is not None
    assert launch.env["SROBUST_RESUME_STEP"] == "7"
    assert launch.resume_point == resume_points.look_up(str(folder))
    assert launch.resume_point.notes


def signals_taken(thread: int) -> int:
    """The mask of the launcher's signals that a thread of ours would take."""
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
    return sum(1 << (number - 1) for number in srun_process.WATCHED) & ~blocked


@pytest.mark.parametrize("what", ["look_up", "_is_empty", "place"])
def test_a_file_server_that_does_not_answer_is_left_to_the_supervisor(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The launch is not held; and whoever still waits takes none of the launcher's signals: WAKE would end us."""
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "x").touch()
    monkeypatch.setattr(early_launch, "_LOOK_UP_S", 0.2)
    waiting, answers = [], threading.Event()

    def hangs(*_: object) -> None:
        waiting.append(threading.get_native_id())
        answers.wait(20)

    monkeypatch.setattr(resume_points if what == "look_up" else early_launch, what, hangs)
    parsed = parse([f"--robust-folder={typed.folder}", f"--robust-checkpoint-dir={tmp_path / 'ck'}", "true"])
    calls: list[EarlyLaunch | None] = []
    launching = threading.Thread(
        target=lambda: calls.append(
            early_launch.try_prepare(parsed, options.read(parsed.own, {}), typed.env, None, typed.lock)
        )
    )
    launching.start()
    launching.join(10)
    try:
        assert calls == [None]
        assert [signals_taken(thread) for thread in waiting] == [0]
    finally:
        answers.set()
        launching.join()


def test_a_requeued_job_goes_on_with_its_lineage(typed: Typed) -> None:
    """By what the folder remembers; without a memory the job's Comment decides, which the supervisor reads."""
    assert typed.prepare("true", SLURM_RESTART_COUNT="1") is None
    typed.remember(speaks="run 1", runs={"run 1": {"id": "abc"}}, tally={"since_s": 0.0, "count": 0})
    launch = typed.prepare("true", SLURM_RESTART_COUNT="1")
    assert launch is not None
    assert launch.lineage == "abc"
    assert not launch.alone, "a claim of the attempt before may wait for its end"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"runs": {"run 1": {}}}', '{"tally": 5}'])
def test_a_memory_that_cannot_be_read_is_left_to_the_supervisor(typed: Typed, text: str) -> None:
    """It was damaged by a full disk, say."""
    typed.remember()
    (typed.job_folder / "lineage.json").write_text(text)
    assert typed.prepare("--robust=on", "true") is None


def test_too_many_launches_are_left_to_the_supervisor(typed: Typed) -> None:
    """It refuses them; an hour later they count no more."""
    typed.remember(tally={"since_s": time.time() - 60, "count": 30})
    assert typed.prepare("--robust=on", "true") is None
    assert typed.prepare("--robust=observe", "true") is not None
    typed.remember(tally={"since_s": time.time() - 60, "count": 29})
    assert typed.prepare("--robust=on", "true") is not None
    typed.remember(tally={"since_s": time.time() - 4000, "count": 30})
    assert typed.prepare("--robust=on", "true") is not None


def test_versions_of_the_code_and_jobs_without_a_lock_are_left_to_the_supervisor(typed: Typed, tmp_path: Path) -> None:
    """A snapshot takes its time; without the cluster's name there is no lock."""
    assert typed.prepare(f"--robust-code={tmp_path}", "true") is None
    assert early_launch.lock_of({"SLURM_JOB_ID": "5"}) is None
    assert early_launch.lock_of({"SLURM_CLUSTER_NAME": "x"}) is None
    assert typed.lock is not None
    typed.lock.release()
    assert typed.prepare("true") is None


def test_warm_restarts_are_left_to_the_supervisor(typed: Typed) -> None:
    """The ranks are to record what they import; what the site asks for, a user can refuse."""
    site = Config(supervise=SuperviseConfig(warm_restarts=True))
    assert typed.prepare("--robust-warm", "true") is None
    assert typed.prepare("true", config=site) is None
    assert typed.prepare("--robust-warm=off", "true", config=site) is not None


def test_a_fault_of_ours_is_said_and_the_supervisor_launches(
    typed: Typed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is."""
    monkeypatch.setattr(early_launch, "place", lambda *_: 1 / 0)
    parsed = parse([f"--robust-folder={typed.folder}", "true"])
    own = options.read(parsed.own, {})
    assert early_launch.try_prepare(parsed, own, typed.env, None, typed.lock) is None
    assert "waits for the supervisor: ZeroDivisionError" in capsys.readouterr().err


def test_constants_that_are_written_twice_agree() -> None:
    """A launch loads neither the configuration nor the nouns for them."""
    defaults = Config()
    assert early_launch.DEFAULT_MODE is defaults.mode
    assert defaults.supervise.fruitless_launches_per_hour == early_launch.DEFAULT_LAUNCHES_PER_HOUR
    assert attempt_settings.SKIP_VARIABLE == rollback_log.SKIP_VARIABLE
    assert run_step._EXIT_USAGE == model.EXIT_USAGE


@pytest.mark.parametrize(
    "env",
    [
        {"SLURM_JOB_ID": "12"},
        {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "0"},
        {"SLURM_JOB_ID": "12", "SLURM_HET_SIZE": "2"},
    ],
)
def test_a_job_is_named_as_by_its_supervisor(env: dict[str, str]) -> None:
    """Its folder, its lock and its attempts are."""
    assert job_ref.ids_from_environment(env).address == ref_from_environment(env).address


def test_a_supervisor_takes_its_launchers_lock_over(typed: Typed) -> None:
    """The descriptor of another name is closed, and the supervisor takes a name itself."""
    first = typed.lock
    assert first is not None
    cluster = typed.env["SLURM_CLUSTER_NAME"]
    same, other = SupervisorLock(cluster, "5"), SupervisorLock(cluster, "6")
    same.take_over(os.dup(first.fd))
    assert same.claim()
    assert not same.shared
    other.take_over(os.dup(first.fd))
    assert other.claim()
    assert other.fd >= 0
    other.take_over(-1)
    first.release()
    assert SupervisorLock(cluster, "5").taken, "the supervisor still holds it"
    same.release()
    other.release()
    assert not SupervisorLock(cluster, "5").taken
