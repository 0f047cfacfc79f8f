"""How an engineer gets the package into the training's own environment: typed word for word, in a fresh environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import slurm_robust

PAGE = Path(__file__).resolve().parents[1] / "docs" / "engineer.md"
USES = """
import os
from slurm_robust import progress
progress.step(7)
for fd in os.listdir("/proc/self/fd")[:-1]:
    print(os.readlink(f"/proc/self/fd/{fd}"))
"""


def typed(word: str) -> str:
    """The commands of step 0 in which this word stands, with their whole block."""
    section = PAGE.read_text().split("\n## Step 0", 1)[1].split("\n## ", 1)[0]
    (block,) = [block for block in re.findall(r"```\n(.*?)```", section, re.DOTALL) if word in block]
    return block


def works(tmp_path: Path, commands: str, program: str) -> str:
    """Type the commands beside `train.py`, in an environment with nothing in it, and run that; what it prints."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True)
    site = tmp_path / "opt" / f"lib/python3.{sys.version_info.minor}/site-packages"
    site.mkdir(parents=True)
    (site / "slurm_robust").symlink_to(Path(slurm_robust.__file__).parent)
    (tmp_path / "train.py").write_text(program)
    script = commands.replace("/opt/slurm_robust", str(tmp_path / "opt")) + "\npython train.py\n"
    kept = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env = {**kept, "HOME": str(tmp_path), "PATH": f"{tmp_path}/own/bin:{os.environ['PATH']}"}
    argv = ["bash", "-e", "-c", script]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("word", ["sysconfig", "PYTHONPATH"])
def test_the_sites_copy_is_found(tmp_path: Path, word: str) -> None:
    """By a link in the environment, and by a folder on PYTHONPATH that holds nothing else."""
    assert "srobust-progress" in works(tmp_path, typed(word), USES)


def test_one_file_beside_the_program_is_enough(tmp_path: Path) -> None:
    """Where nothing can be installed: the node's agent finds the page of the copy too."""
    program = USES.replace("from slurm_robust import progress", "import robust_progress as progress")
    assert "srobust-progress" in works(tmp_path, typed("robust_progress.py"), program)


@pytest.mark.parametrize("installed", [True, False])
def test_the_check_tells_the_package_that_trains_from_a_checkout(tmp_path: Path, installed: bool) -> None:
    """Typed within a checkout it still names what is installed, and fails where nothing is."""
    checkout = tmp_path / "slurm_robust"
    checkout.mkdir()
    for name in ("__init__.py", "progress.py"):
        (checkout / name).touch()
    check = typed("print(progress.__file__)")
    if not installed:
        with pytest.raises(AssertionError, match="No module named 'slurm_robust'"):
            works(tmp_path, check, "")
        return
    path = works(tmp_path, typed("sysconfig") + check, "").strip()
    assert path.startswith(f"{tmp_path}/own/lib/")
