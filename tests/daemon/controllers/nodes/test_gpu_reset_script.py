"""The lines of shell with which a check's job resets the node's GPUs first."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.config.repair import RepairConfig
from slurm_robust.core.model import Action, ActionKind
from slurm_robust.daemon.controllers.nodes.full_check import after
from slurm_robust.daemon.controllers.nodes.gpu_reset import STOPPED_FILE, prelude
from slurm_robust.marks.remedy import Remedy
from slurm_robust.policy.cluster.repair import RepairTry

CHECK = "#!/bin/sh\nexec echo checked\n"
UNITS = ("srobust-nodewatch", "nvidia-dcgm")
CLEAR = re.compile(r"\S+ -m slurm_robust\.cli\.main check --clear-xid all")


def script(remedy: Remedy, folder: Path, **config: object) -> str:
    """The whole script of the job; clearing the XIDs only says so."""
    chosen = RepairConfig(stop_services=UNITS, **config)  # type: ignore[arg-type]
    before = prelude(RepairTry(1, "n1", remedy, 1, "", 0.0), chosen)
    before = before.replace(STOPPED_FILE, f"{folder}/run/stopped")
    whole = str(after(before, Action(ActionKind.RECHECK, "n1", "", {"script": CHECK})).args["script"])
    assert len(CLEAR.findall(whole)) == (remedy is Remedy.GPU_RESET)
    return CLEAR.sub(f"echo cleared >> {folder}/said", whole)


def machine(folder: Path, nvidia_smi: str = "exit 0") -> dict[str, str]:
    """A PATH on which systemctl knows one unit that runs, and nvidia-smi does this."""
    programs = {
        "systemctl": f'[ "$1" = is-active ] && exec [ "$3" = {UNITS[0]} ]\necho "$1 $2" >> {folder}/said',
        "nvidia-smi": f'echo "smi $*" >> {folder}/said\n{nvidia_smi}',
        "logger": f'echo "logged $3" >> {folder}/said',
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("nvidia_smi", "then"),
    [("exit 0", "cleared"), ("echo in use; exit 255", "logged nvidia-smi --gpu-reset failed: in use")],
)
def test_who_holds_the_gpus_is_stopped_meanwhile(tmp_path: Path, nvidia_smi: str, then: str) -> None:
    """Units that run are stopped and started again; after a reset that failed the fault stays for the check."""
    env = machine(tmp_path, nvidia_smi)
    done = subprocess.run(["sh", "-c", script(Remedy.GPU_RESET, tmp_path)], env=env, capture_output=True, check=True)
    said = (tmp_path / "said").read_text().splitlines()
    assert said == [f"stop {UNITS[0]}", "smi --gpu-reset", then, f"start {UNITS[0]}"]
    assert done.stdout == b"checked\n"


def test_a_job_that_is_ended_starts_them_again(tmp_path: Path) -> None:
    """The time limit ends it while nvidia-smi hangs."""
    env = machine(tmp_path, f"touch {tmp_path}/begun; exec sleep 60")
    argv = ["sh", "-c", script(Remedy.GPU_RESET, tmp_path)]
    job = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, start_new_session=True)
    wait_until((tmp_path / "begun").exists, 20, "nvidia-smi was started")
    os.killpg(job.pid, signal.SIGTERM)
    out, _ = job.communicate(timeout=20)
    assert (tmp_path / "said").read_text().splitlines()[-1] == f"start {UNITS[0]}"
    assert out == b""


def test_what_a_killed_job_left_stopped_is_started_by_the_next_one(tmp_path: Path) -> None:
    """SIGKILL runs no trap: the list of what it had stopped is on the node, and goes once they are started."""
    env = machine(tmp_path, f"touch {tmp_path}/begun; exec sleep 5")
    argv = ["sh", "-c", script(Remedy.GPU_RESET, tmp_path)]
    job = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    wait_until((tmp_path / "begun").exists, 20, "nvidia-smi was started")
    os.killpg(job.pid, signal.SIGKILL)
    job.wait(20)
    assert (tmp_path / "run/stopped").read_text().split() == [UNITS[0]]
    machine(tmp_path)
    (tmp_path / "systemctl").write_text(f'#!/bin/sh\n[ "$1" = is-active ] && exit 3\necho "$1 $2" >> {tmp_path}/said\n')
    (tmp_path / "said").unlink()
    subprocess.run(argv, env=env, capture_output=True, check=True)
    assert (tmp_path / "said").read_text().splitlines() == ["smi --gpu-reset", "cleared", f"start {UNITS[0]}"]
    assert not (tmp_path / "run/stopped").exists()


def test_a_list_that_somebody_else_could_have_written_starts_nothing(tmp_path: Path) -> None:
    """A link, for example."""
    (tmp_path / "run").mkdir()
    (tmp_path / "theirs").write_text("evil.service\n")
    (tmp_path / "run/stopped").symlink_to(tmp_path / "theirs")
    env = machine(tmp_path)
    subprocess.run(["sh", "-c", script(Remedy.GPU_RESET, tmp_path)], env=env, capture_output=True, check=True)
    assert "evil" not in (tmp_path / "said").read_text()
    assert (tmp_path / "theirs").read_text() == "evil.service\n"


def test_a_reset_that_ignores_its_end_is_killed(tmp_path: Path) -> None:
    """Else the job would wait for it, and the services with it."""
    assert "timeout -k 10 300 nvidia-smi" in script(Remedy.GPU_RESET, tmp_path)


def test_other_remedies_reset_nothing(tmp_path: Path) -> None:
    """After the site's own reset the latched XIDs are cleared; after a boot they are gone."""
    assert "nvidia-smi" not in script(Remedy.GPU_RESET, tmp_path, command=("power",))
    assert script(Remedy.REBOOT, tmp_path) == CHECK
