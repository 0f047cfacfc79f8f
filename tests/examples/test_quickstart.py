from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import EXAMPLES  # type: ignore[import-not-found]
from helpers import wait_until

STEPS = "24"
STORY = (
    r"a Slurm of 6 nodes",
    r"strong evidence is acted on after 5 s here \(75 s by default\)",
    r"node n\d is the standby",
    r"job \d+ submitted",
    r"training at step \d+, 4 ranks",
    r"the fault strikes: dead_mount at step 10",
    r"silence suspected",
    r"stacks of 4 ranks taken",
    r"still, and why: rank 2 on n3",
    r"suspect: rank 2 on n3, confidence 0\.\d\d",
    r"node n3 is in quarantine",
    r"seat \S+ is reserved: n1,n2,n4 with the standby n6",
    r"job \d+ is requeued",
    r"step 8 is verified",
    r"resumed from step 8 \(verified checkpoint\)",
    r"finished at step 24",
    r"Incident \S+",
    r"first (new )?step",
    r"The cluster is down",
)

FAULT_STORY = (
    r"a Slurm of 6 nodes and srobustd, and srobust nodewatch on each node",
    r"its node is to lose a GPU after step 10",
    r"training at step \d+, 4 ranks",
    r"injected: the kernel log of n3 now says NVRM: Xid",
    r"node n3 reports XID 79 .*\(urgent\)",
    r"stacks of 4 ranks taken",
    r"suspect: rank 2 on n3",
    r"node n3 is in quarantine",
    r"seat \S+ is reserved: n1,n2,n4 with the standby n6",
    r"job \d+ is requeued",
    r"resumed from step \d+ \(verified checkpoint\)",
    r"finished at step 24",
    r"The cluster is down",
)


@pytest.fixture
def base() -> Iterator[Path]:
    """A temporary directory of its own for the quickstart, short enough for Slurm's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="qs-", dir="/tmp"))
    folder.chmod(0o755)  # munged wants a way to its socket that is open to all
    yield folder
    shutil.rmtree(folder)


def processes_of(base: Path) -> list[str]:
    """What runs in, or was started with, anything below a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            where = [process.cwd(), *process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if any(str(base) in word for word in where):
            found.append(f"{process.pid} {process.name()}")
    return found


def start(base: Path, *options: str) -> subprocess.Popen[str]:
    """The driver, as the shell script starts it, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / "quickstart.py"), "--steps", STEPS, *options],
        env={**os.environ, "TMPDIR": str(base)},
        cwd=base,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.begin_early
@pytest.mark.e2e
@pytest.mark.slurm
def test_the_story_is_told_in_order_and_nothing_is_left(base: Path, tmp_path: Path) -> None:
    """Every line of the story in its order, the report at the paths it names, exit 0, and no process or folder.

    Its ranks start the whole of torch, as a user's do; those of the other stories need no torch.compile.
    """
    with start(base, "--report-dir", str(tmp_path)) as quickstart:
        said, _ = quickstart.communicate(timeout=170)
    assert quickstart.returncode == 0, said
    at = 0
    for line in STORY:
        found = re.compile(line).search(said, at)
        assert found, f"{line!r} is missing, or out of order:\n{said}"
        at = found.end()
    # The node is checked beside the requeue, so the line of its drain has no fixed place.
    assert re.search(r"node n3 is drained: srobust: .*79", said), said
    clocks = re.findall(r"^\d\d:\d\d:\d\d +(\d+\.\d) s  ", said, re.MULTILINE)
    assert [float(c) for c in clocks] == sorted(map(float, clocks)), "the lines are not in the order of their times"
    assert "\033" not in said, "colours are for terminals"
    paths = re.findall(rf"{re.escape(str(tmp_path))}/\S+", said)
    assert len(paths) == 4
    assert all(Path(path).exists() for path in paths)
    assert "n3" in Path(paths[0]).read_text()
    assert list(base.iterdir()) == []
    assert processes_of(base) == []


@pytest.mark.variant
@pytest.mark.e2e
@pytest.mark.slurm
def test_the_second_act_tells_of_a_gpu_that_is_lost(base: Path, tmp_path: Path) -> None:
    """The node says it, and the job leaves it: nobody suspects a hang, and nothing is left."""
    with start(base, "--act", "fault", "--report-dir", str(tmp_path)) as quickstart:
        said, _ = quickstart.communicate(timeout=170)
    assert quickstart.returncode == 0, said
    at = 0
    for line in FAULT_STORY:
        found = re.compile(line).search(said, at)
        assert found, f"{line!r} is missing, or out of order:\n{said}"
        at = found.end()
    assert re.search(r"node n3 is drained: srobust: .*79", said), said
    assert "silence" not in said, said
    assert list(base.iterdir()) == []
    assert processes_of(base) == []


@pytest.mark.slurm
@pytest.mark.parametrize("moment", ["while Slurm starts", "while the job starts"])
def test_ctrl_c_cleans_up(base: Path, moment: str) -> None:
    """Interrupted at any moment, once by the terminal's whole group and once alone: exit 130, and nothing is left."""
    with start(base) as quickstart:
        if moment == "while Slurm starts":
            wait_until(lambda: list(base.glob("*/cluster.json")), 30, "the cluster's record")
            os.killpg(quickstart.pid, signal.SIGINT)
        else:
            wait_until(
                lambda: list(base.glob("*/work/slurm-robust-*/*")) or list(base.glob("*/work/*.out")), 90, "a job"
            )
            os.kill(quickstart.pid, signal.SIGINT)
        said, _ = quickstart.communicate(timeout=60)
    assert quickstart.returncode == 130, said
    assert "Traceback" not in said
    assert list(base.iterdir()) == []
    assert processes_of(base) == []


@pytest.mark.slurm
def test_what_fails_is_explained(base: Path, tmp_path: Path) -> None:
    """A training that cannot start: exit 1, what was awaited, the end of the job's output, logs kept, nothing left."""
    examples = tmp_path / "examples"
    shutil.copytree(EXAMPLES, examples, ignore=shutil.ignore_patterns("__pycache__"))
    (examples / "train.py").write_text("raise SystemExit('no such weather')\n")
    reports = tmp_path / "reports"
    reports.mkdir()
    done = subprocess.run(
        [sys.executable, str(examples / "quickstart.py"), "--steps", STEPS, "--report-dir", str(reports)],
        env={**os.environ, "TMPDIR": str(base)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done
    assert "quickstart: " in done.stderr
    assert "no such weather" in done.stderr
    assert "srobustd.log" in done.stderr
    assert list(reports.glob("*/slurmctld.log"))
    left = [str(path) for path in base.rglob("*")], processes_of(base)
    assert left == ([], []), done.stderr


def shell(*options: str) -> subprocess.CompletedProcess[str]:
    """quickstart.sh, called from another folder."""
    words = [str(EXAMPLES / "quickstart.sh"), *options]
    return subprocess.run(words, cwd="/", capture_output=True, text=True, timeout=20, check=False)


def test_help_teaches_and_installs_nothing() -> None:
    """--help says what it will do, what it touches and how it ends, at once."""
    done = shell("--help")
    assert done.returncode == 0
    for word in ("--keep", "six slurmds", "touches no other Slurm", "Ctrl-C", "130", ".venv"):
        assert word in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    "options",
    [
        ("--kep",),
        ("--steps",),
        ("--steps", "many"),
        ("--steps", "9"),
        ("--act", "flood"),
        ("--report-dir", "/no/such/folder"),
        ("now",),
    ],
)
def test_wrong_usage_is_said_before_anything_is_installed(options: tuple[str, ...]) -> None:
    """Exit 64, what is wrong with which option, and the usage."""
    done = shell(*options)
    assert done.returncode == 64
    assert options[0] in done.stderr.splitlines()[0]
    assert "usage:" in done.stderr
    assert "setup:" not in done.stderr
