"""The scripts as slurmd runs them: root's files, no PATH, a few SLURM_* variables and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
PROLOG = HOME / "prolog/srobust-prolog"
EPILOG = HOME / "epilog/srobust-epilog"
HEALTH = HOME / "prolog/srobust-healthcheck"
XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n"


class Node:
    """A node whose kernel log and whose `scontrol` a test writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls = folder / "calls"
        self.kmsg = folder / "n1.kmsg"
        self.kmsg.write_text("Linux version 6.1.0\n")
        self.configure("act")
        self.scontrol()

    def configure(self, mode: str, more: str = "") -> None:
        """Write robust.yaml."""
        (self.folder / "robust.yaml").write_text(
            f"mode: {mode}\nslurm: {{bin_dir: {self.bin}}}\n"
            f"nodecheck: {{kmsg: {self.folder}/%n.kmsg, cache_dir: {self.folder}/cache/%n, permit_timeout_s: 2"
            f", deadline_s: 15, disable: [ethernet, filesystem]{more}}}\n"
        )

    def scontrol(
        self, comment: str = "", *, state: str = "IDLE", reason: str = "", show: str = "", update: str = ":"
    ) -> None:
        """A scontrol that shows this node and notes what it is asked for."""
        said = f"NodeName=n1 Arch=x86_64 State={state} Partitions=main BootTime=1763680000"
        said += f" Reason={reason} [root@1763680000]" if reason else ""
        said += f" Comment={comment}" if comment else ""
        script = f"""#!/bin/sh
echo "$*" >>{self.calls}
[ "$1" != -d ] || shift
case $1 in
    show) {show or f"echo '{said}'"} ;;
    update) {update} ;;
esac
"""
        path = self.bin / "scontrol"
        path.write_text(script)
        path.chmod(0o755)

    def run(self, script: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a script with slurmd's bare environment; `SROBUST_*` goes into the file of settings."""
        bare = {
            "SLURM_JOB_ID": "42",
            "SLURM_JOB_UID": "1000",
            "SLURM_JOB_USER": "alice",
            "SLURMD_NODENAME": "n1",
            "SLURM_SCRIPT_CONTEXT": f"{'epilog' if script == EPILOG else 'prolog'}_slurmd",
        } | {key: value for key, value in env.items() if not key.startswith("SROBUST_")}
        told = {
            "SROBUST_PYTHON": sys.executable,
            "SROBUST_CODE": str(HOME),
            "SROBUST_CONFIG": str(self.folder / "robust.yaml"),
        } | {key: value for key, value in env.items() if key.startswith("SROBUST_")}
        settings = self.folder / "env"
        settings.write_text("".join(f"{key}={value}\n" for key, value in told.items()))
        return subprocess.run(
            [script, settings], env=bare, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )

    @property
    def asked(self) -> list[str]:
        """What scontrol was asked for."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    @property
    def drains(self) -> list[str]:
        """Those calls that change a node."""
        return [call for call in self.asked if call.startswith("update")]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A healthy node in act mode, with a scontrol that shows it without a permit."""
    return Node(tmp_path)


@pytest.fixture
def broken(node: Node) -> Node:
    """The same node with an XID 79."""
    with node.kmsg.open("a") as log:
        log.write(XID_79)
    return node


def permit(seconds: int = 60) -> str:
    """The daemon's marker, beside an admin's words."""
    return f"rack 12 [[srobust-drain-permit until={int(time.time()) + seconds}]]"


@pytest.mark.parametrize("script", [PROLOG, EPILOG, HEALTH])
def test_a_fit_node_costs_no_call_to_slurm_and_no_word(node: Node, script: Path) -> None:
    """Exit 0, nothing said, scontrol not run."""
    node.scontrol(permit())
    done = node.run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert node.asked == []


@pytest.mark.parametrize(("script", "code"), [(PROLOG, 1), (EPILOG, 1), (HEALTH, 0)])
def test_with_a_permit_an_unfit_node_is_drained_with_our_reason(broken: Node, script: Path, code: int) -> None:
    """One read, one drain, then exit 1; the health check, whose code nobody reads, exits 0."""
    broken.scontrol(permit())
    done = broken.run(script)
    assert done.returncode == code, done.stderr
    assert len(broken.asked) == 2
    assert len(broken.drains) == 1
    assert "NodeName=n1 State=DRAIN" in broken.drains[0]
    assert "srobust: XID 79 (GPU has fallen off the bus) on GPU 0000:9b:00" in broken.drains[0]
    assert "draining n1" in done.stderr


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("", "no drain permit"),
        ("rack 12", "no drain permit"),
        ("[[srobust-drain-permit until=1763680000]]", "no drain permit"),
    ],
)
def test_without_a_permit_the_job_starts(broken: Node, comment: str, words: str) -> None:
    """No marker, or one that is over: exit 0, a line in the log, the node as it was."""
    broken.scontrol(comment)
    done = broken.run(PROLOG)
    assert done.returncode == 0
    assert words in done.stderr
    assert "XID 79" in done.stderr
    assert broken.drains == []


def test_observe_never_asks(broken: Node) -> None:
    """The same plan in the log, and nothing done."""
    broken.configure("observe")
    broken.scontrol(permit())
    done = broken.run(PROLOG)
    assert done.returncode == 0
    assert "observe: would drain n1: XID 79" in done.stderr
    assert broken.asked == []


def test_a_hung_scontrol_is_no_permit(broken: Node) -> None:
    """nhc#161: within permit_timeout_s it is given up, and the job starts."""
    broken.scontrol(show="exec sleep 60")
    started_s = time.monotonic()
    done = broken.run(PROLOG)
    assert done.returncode == 0
    assert time.monotonic() - started_s < 10
    assert "did not return" in done.stderr


def test_a_drain_that_hangs_or_fails_lets_the_job_start(broken: Node) -> None:
    """Leave was there, the drain was not: an exit 1 would have Slurm drain in its own words."""
    for update in ("exec sleep 60", "echo 'Invalid user id' >&2; exit 1"):
        broken.scontrol(permit(), update=update)
        assert broken.run(PROLOG).returncode == 0


def test_a_missing_or_failing_scontrol_is_no_permit(broken: Node) -> None:
    """A slurmctld that is down, scontrol not installed, an answer that is none: the job starts."""
    for show in ("exit 1", "echo 'slurm_load_node: Unable to contact slurm controller' >&2; exit 1", "echo what"):
        broken.scontrol(show=show)
        assert broken.run(PROLOG).returncode == 0
    (broken.bin / "scontrol").unlink()
    done = broken.run(PROLOG)
    assert done.returncode == 0
    assert "scontrol" in done.stderr
    assert broken.drains == []


@pytest.mark.parametrize(
    ("script", "state", "reason", "code"),
    [
        (PROLOG, "IDLE+DRAIN", "bad fan", 1),
        (EPILOG, "IDLE+DRAIN", "bad fan", 0),
        (PROLOG, "IDLE+DRAIN", "srobust: earlier", 1),
    ],
)
def test_a_reason_that_stands_is_never_changed(broken: Node, script: Path, state: str, reason: str, code: int) -> None:
    """A foreign drain stays a person's; a job on its way to a drained node is sent elsewhere by the prolog's exit 1."""
    broken.scontrol(permit(), state=state, reason=reason)
    done = broken.run(script)
    assert (done.returncode, broken.drains) == (code, []), done.stderr


def test_a_reason_on_a_node_in_service_says_nothing(broken: Node) -> None:
    """Slurm 24.11 leaves the text of the last drain there when a node is resumed."""
    broken.scontrol(permit(), state="IDLE", reason="bad fan, replaced")
    done = broken.run(PROLOG)
    assert done.returncode == 1, done.stderr
    assert len(broken.drains) == 1


def misconfigure(text: str) -> Callable[[Node], dict[str, str]]:
    """A robust.yaml with this text."""

    def do(node: Node) -> dict[str, str]:
        (node.folder / "robust.yaml").write_text(text)
        return {}

    return do


def hang(node: Node) -> dict[str, str]:
    """A Python that does not come back."""
    python = node.folder / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    return {"SROBUST_PYTHON": str(python), "SROBUST_TIMEOUT_S": "1"}


def everyones(node: Node) -> dict[str, str]:
    """A robust.yaml that anybody may write, which root does not believe."""
    (node.folder / "robust.yaml").chmod(0o666)
    if os.geteuid() != 0:
        return {"SROBUST_PYTHON": "/nonexistent"}
    return {}


@pytest.mark.parametrize("script", [PROLOG, EPILOG, HEALTH])
@pytest.mark.parametrize(
    "fault",
    [
        lambda node: {"SROBUST_PYTHON": "/nonexistent/python"},
        lambda node: {"SROBUST_PYTHON": "/bin/false"},
        lambda node: {"SROBUST_CODE": "/nonexistent", "SROBUST_PYTHON": "/usr/bin/python3"},
        lambda node: {"SROBUST_CONFIG": "/nonexistent.yaml"},
        lambda node: {"SROBUST_TIMEOUT_S": "soon"},
        misconfigure("mode: [act\n"),
        misconfigure("mode: act\nnodecheck: {deadline_s: -3}\n"),
        misconfigure("nodecheck: {options: {xid: {fial: [79]}}}\n"),
        misconfigure("nodecheck: {disable: [xd]}\n"),
        hang,
        everyones,
    ],
)
def test_a_fault_of_ours_lets_the_job_start_and_says_so(
    broken: Node, script: Path, fault: Callable[[Node], dict[str, str]]
) -> None:
    """No Python, a broken package or configuration, no answer: exit 0, words in slurmd's log, no call to Slurm."""
    broken.scontrol(permit())
    done = broken.run(script, **fault(broken))
    assert done.returncode == 0
    assert "not checked" in done.stderr
    assert broken.asked == []


@pytest.mark.parametrize("script", [PROLOG, EPILOG, HEALTH])
def test_a_python_without_the_package_is_told_in_a_sentence(node: Node, script: Path) -> None:
    """No traceback: which Python, what it lacks, what to do."""
    done = node.run(script, SROBUST_CODE="/nonexistent", SROBUST_PYTHON="/usr/bin/python3")
    assert "Traceback" not in done.stderr
    assert "/usr/bin/python3: No module named 'slurm_robust'; install slurm_robust there, or set SROBUST_CODE" in (
        done.stderr
    )


def test_checks_that_are_switched_off_say_nothing(broken: Node) -> None:
    """`nodecheck.enabled: false` is a fit node."""
    broken.configure("act", ", enabled: false")
    broken.scontrol(permit())
    assert broken.run(PROLOG).returncode == 0
    assert broken.asked == []


def test_what_slurm_s_environment_says_is_not_executed(broken: Node) -> None:
    """Hostile values in SLURM_* reach no shell and no path."""
    broken.scontrol(permit())
    mark = broken.folder / "mark"
    evil = f"$(touch {mark}) `touch {mark}`; touch {mark} #"
    done = broken.run(PROLOG, SLURM_JOB_ID=evil, SLURMD_NODENAME=f"../n1;touch {mark}", SLURM_JOB_GPUS=evil)
    assert done.returncode == 0
    assert not mark.exists()


@pytest.mark.parametrize("script", [PROLOG, EPILOG, HEALTH])
def test_the_scripts_can_be_run(script: Path) -> None:
    """Executable, and nobody but the owner may write them."""
    assert os.access(script, os.X_OK)
    assert not script.stat().st_mode & 0o002
