"""What a launch of the training is given, as far as it depends on the program: names that its PyTorch knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.checkpoint import save
from slurm_robust.supervise.launch import attempt_settings, resume_points
from slurm_robust.supervise.launch.srun_command import parse

OLD_NAMES = {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}
NEW_NAMES = {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}
USE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


def given(words: list[str], path: Path | str, tmp_path: Path, **more: str) -> dict[str, str]:
    """The variables that the ranks of `srobust run WORD…` get, with this PATH."""
    base = {"PATH": str(path), "HOME": str(tmp_path / "home"), **more}
    return attempt_settings.environment(
        base, "1.0.1", "abc", attempt_settings.ResumePoint(), tmp_path, command=parse(words)
    )


def python_with_torch(folder: Path, version: str) -> Path:
    """A Python environment that has this PyTorch, as far as its files tell; its folder of programs."""
    programs, packages = folder / "bin", folder / "lib" / "python3.11" / "site-packages" / "torch"
    programs.mkdir(parents=True)
    packages.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").touch()
    (programs / "torchrun").write_text(f"#!{programs}/python\nimport torch\n")
    (programs / "torchrun").chmod(0o755)
    (packages / "version.py").write_text(f"__all__ = ['__version__']\n__version__ = '{version}'\n")
    return programs


@pytest.mark.parametrize("program", ["python", "torchrun"])
def test_the_trainings_own_pytorch_decides_which_names_are_set(program: str, tmp_path: Path) -> None:
    """It is seldom the one beside this package: an old one knows the old names alone, a new one warns about them."""
    old = python_with_torch(tmp_path / "old", "2.4.1+cu121")
    new = python_with_torch(tmp_path / "new", "2.13.0")
    assert given([program, "train.py"], old, tmp_path).keys() >= OLD_NAMES
    # The Python of these tests is behind the link, and may have a PyTorch of its own, which is new, too.
    variables = given([program, "train.py"], new, tmp_path).keys()
    assert variables >= NEW_NAMES
    assert not variables & OLD_NAMES


@pytest.mark.parametrize(
    "text",
    [
        "RANK=$SLURM_PROCID exec python train.py",
        "[ -f ckpt.pt ] && A=--resume; exec python train.py $A",
        "torchrun --nproc_per_node=8 train.py",
    ],
)
def test_a_shell_starts_the_pythons_that_it_names(text: str, tmp_path: Path) -> None:
    """`bash -c '…'`, and a script, are the usual ways to give a rank its own words."""
    new, old = python_with_torch(tmp_path / "new", "2.13.0"), python_with_torch(tmp_path / "old", "2.4.1")
    (tmp_path / "train.sh").write_text(f"#!/bin/bash\nset -e\n{text}\n")
    for words in (["bash", "-c", text], ["bash", "-e", str(tmp_path / "train.sh")]):
        assert not given(words, new, tmp_path).keys() & OLD_NAMES
        assert given(words, old, tmp_path).keys() >= OLD_NAMES


@pytest.mark.parametrize("around", ["timeout 40", "unshare --pid --fork", "nsys profile -o out", "env -u X numactl -l"])
def test_a_program_around_it_starts_the_python_that_it_names(around: str, tmp_path: Path) -> None:
    """Its options come first; a Python in its own first word would not be the ranks'."""
    new, old = python_with_torch(tmp_path / "new", "2.13.0"), python_with_torch(tmp_path / "old", "2.4.1")
    words = [*around.split(), "python", "train.py"]
    assert not given(words, new, tmp_path).keys() & OLD_NAMES
    assert given(words, old, tmp_path).keys() >= OLD_NAMES
    script = tmp_path / "bind.sh"
    script.write_text('#!/usr/bin/env bash\nexport NCCL_IB_HCA=mlx5_$SLURM_LOCALID\nexec "$@"\n')
    assert not given([str(script), *words], new, tmp_path).keys() & OLD_NAMES
    changed = ["env", "PATH=/elsewhere", "python", "train.py"]
    assert given(changed, new, tmp_path).keys() >= OLD_NAMES


@pytest.mark.parametrize(
    "text",
    ["source venv/bin/activate; python t.py", "module load torch; python t.py", "PATH=/x:$PATH python t.py", "./train"],
)
def test_a_shell_that_may_choose_another_python_is_not_believed(text: str, tmp_path: Path) -> None:
    """Then both names are set."""
    new = python_with_torch(tmp_path / "new", "2.13.0")
    assert given(["bash", "-c", text], new, tmp_path).keys() >= OLD_NAMES


@pytest.mark.parametrize(
    "words", [["bash", "train.sh"], ["--container-image=x.sqsh", "python", "train.py"], ["nowhere", "train.py"]]
)
def test_where_nobody_can_tell_both_names_are_set(words: list[str], tmp_path: Path) -> None:
    """A script may choose any Python, and a container has its own: a warning is better than no flight recorder."""
    programs = python_with_torch(tmp_path / "new", "2.13.0")
    found = given(words, f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin", tmp_path)
    assert found.keys() >= OLD_NAMES | NEW_NAMES


@pytest.mark.timeout(20)
def test_a_pipe_in_the_command_holds_no_launch(tmp_path: Path) -> None:
    """Only plain files are read: nobody writes into this pipe."""
    os.mkfifo(tmp_path / "pipe")
    programs = python_with_torch(tmp_path / "new", "2.13.0")
    for words in ([str(tmp_path / "pipe")], ["bash", str(tmp_path / "pipe")]):
        assert given(words, programs, tmp_path).keys() >= OLD_NAMES


def test_an_old_pytorch_in_front_counts(tmp_path: Path) -> None:
    """PYTHONPATH, and a user's own packages, come before those of the environment."""
    programs = python_with_torch(tmp_path / "new", "2.13.0")
    python_with_torch(tmp_path / "home" / ".local", "2.4.1")
    assert given(["python", "train.py"], programs, tmp_path).keys() >= OLD_NAMES


def test_the_real_pytorch_does_not_warn(tmp_path: Path) -> None:
    """The PyTorch that is installed here says nothing of old names where its version is known, else it does."""
    pytest.importorskip("torch")
    words = [sys.executable, "train.py"]
    new = given(words, os.environ["PATH"], tmp_path)
    both = given(["bash"], os.environ["PATH"], tmp_path)

    def said(variables: dict[str, str]) -> str:
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("TORCH_")}, **variables}
        return subprocess.run([sys.executable, "-c", USE], env=env, capture_output=True, text=True, check=True).stderr

    assert "deprecated" in said(both)
    assert "deprecated" not in said(new)


def test_ranks_are_given_the_checkpoint_and_the_users_variables_stay(tmp_path: Path) -> None:
    """SROBUST_RESUME_*; flight-recorder settings only where the user has none of his own."""
    save(tmp_path, 7, {"x": 1})
    start = resume_points.look_up(str(tmp_path))
    assert start.step == 7
    env = attempt_settings.environment({"TORCH_FR_BUFFER_SIZE": "5"}, "1.0.1", "abc", start, tmp_path)
    assert env["SROBUST_RESUME_STEP"] == "7"
    assert env["SROBUST_RESUME_PATH"].endswith("step-00000007")
    assert "TORCH_FR_BUFFER_SIZE" not in env
    assert env["TORCH_INCLUDE_STACK_TRACE"] == "0", "it would need the GIL, which a hung rank may hold"


def test_no_checkpoint_folder_says_nothing_and_an_empty_one_says_start_anew(tmp_path: Path) -> None:
    """Without a folder the program decides; with an empty one every rank is told that there is none."""
    assert "SROBUST_RESUME_PATH" not in attempt_settings.environment({}, "a", "b", resume_points.look_up(""), tmp_path)
    assert (
        attempt_settings.environment({}, "a", "b", resume_points.look_up(str(tmp_path)), tmp_path)[
            "SROBUST_RESUME_PATH"
        ]
        == ""
    )


def test_a_relaunch_has_fresh_rendezvous_values() -> None:
    """The first surviving node, another port for each attempt; an address of the script's own stays."""
    first = attempt_settings.fresh_rendezvous({"MASTER_ADDR": "n3", "MASTER_PORT": "29500"}, "1.0.2", ["n3", "n4"])
    second = attempt_settings.fresh_rendezvous({"MASTER_ADDR": "n3", "MASTER_PORT": "29500"}, "1.0.3", ["n4", "n5"])
    assert first["MASTER_PORT"] != second["MASTER_PORT"]
    assert first["MASTER_ADDR"] == "n3"
    assert attempt_settings.fresh_rendezvous({"MASTER_ADDR": "10.0.0.7"}, "1.0.2", ["n4"]) == {}
    assert attempt_settings.fresh_rendezvous({}, "1.0.2", ["n4"]) == {}
