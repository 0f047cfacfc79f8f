"""Which commands can have warm processes, and when they fit into memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from slurm_robust.supervise.launch import srun_command
from slurm_robust.supervise.warm import fitness

ENV = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}


def refusal(*words: str, **env: str) -> str:
    """Of this command line."""
    return fitness.refusal(srun_command.parse(words), {**ENV, **env})


@pytest.mark.parametrize(
    "words",
    [
        ("-N2", "-n2", "--gres=gpu:8", "python3", "train.py", "--output", "x"),
        ("--label", "--", sys.executable, "-u", "-X", "dev", "-Wignore", "-m", "train"),
        ("--export=ALL", "python3", "-c", "print(1)"),
    ],
)
def test_a_python_is_fit(words: tuple[str, ...]) -> None:
    """With srun's options that do nothing twice."""
    assert refusal(*words) == ""


@pytest.mark.parametrize(
    ("words", "env", "why"),
    [
        (("--container-image=x", "python3", "t.py"), {}, "container"),
        (("python3", "t.py"), {"PYXIS_CONTAINER_IMAGE": "x"}, "container"),
        (("-o", "rank-%t.out", "python3", "t.py"), {}, "given files"),
        (("python3", "t.py"), {"SLURM_STDOUTMODE": "x.out"}, "given files"),
        (("--task-prolog=x", "python3", "t.py"), {}, "twice"),
        (("--pty", "python3", "t.py"), {}, "twice"),
        (("--time=1:00:00", "python3", "t.py"), {}, "counts from its own start"),
        (("-t60", "python3", "t.py"), {}, "counts from its own start"),
        (("python3", "t.py"), {"SLURM_TIMELIMIT": "60"}, "counts from its own start"),
        (("--export=NONE", "python3", "t.py"), {}, "--export"),
        (("--export=A,B", "python3", "t.py"), {}, "--export"),
        (("torchrun", "t.py"), {}, "workers of its own"),
        (("python3", "-m", "torch.distributed.run", "t.py"), {}, "workers of its own"),
        (("accelerate", "launch", "t.py"), {}, "workers of its own"),
        (("bash", "-c", "python3 t.py"), {}, "no Python (bash)"),
        (("./train", "t.py"), {}, "no Python (train)"),
        (("python9", "t.py"), {}, "not found"),
        (("python3", "-I", "t.py"), {}, "options leave out"),
        (("python3", "-sE", "t.py"), {}, "options leave out"),
        (("python3", "-S", "t.py"), {}, "options leave out"),
        (("python3", "-"), {}, "options leave out"),
        (("python3", "t.py"), {"PYTHONHOME": "/x"}, "PYTHONHOME"),
    ],
)
def test_what_is_not_fit_has_a_reason(words: tuple[str, ...], env: dict[str, str], why: str) -> None:
    """In words for the engineer."""
    assert why in refusal(*words, **env)


def test_a_script_that_chooses_a_python_is_not_fit(tmp_path: Path) -> None:
    """As pyenv's: which Python it starts, and with which options, is its own decision."""
    shim = tmp_path / "python3"
    shim.write_text('#!/bin/sh\nexec /usr/bin/python3 -I "$@"\n')
    shim.chmod(0o755)
    assert "script" in refusal("python3", "t.py", PATH=str(tmp_path))


def test_input_that_somebody_reads_is_not_shared(tmp_path: Path) -> None:
    """/dev/null and a closed input can be read twice."""
    (tmp_path / "file").touch()
    assert fitness.reads_input(str(tmp_path / "file"))
    assert not fitness.reads_input(os.devnull)
    assert not fitness.reads_input(str(tmp_path / "none"))


def test_memory_is_left_for_the_training() -> None:
    """Half of what is free on each node, and nothing if that is not known."""
    gib = 1 << 30
    assert fitness.memory_refusal({"n1": 20 * gib, "n2": 10 * gib}, {"n1": 8, "n2": 8}, 600) == ""
    why = fitness.memory_refusal({"n1": 20 * gib, "n2": 9 * gib}, {"n1": 8, "n2": 8}, 600)
    assert why == "8 processes of 600 MiB need more than half of the 9216 MiB that are free on n2"
    assert "n2 is not known" in fitness.memory_refusal({"n1": 20 * gib}, {"n1": 8, "n2": 8}, 600)
    assert "n2 is not known" in fitness.memory_refusal({"n1": 20 * gib, "n2": -1}, {"n1": 8, "n2": 8}, 600)


def test_the_users_own_path_comes_behind_ours() -> None:
    """And where there is none, nothing is behind it: an empty entry would be the working folder."""
    assert fitness.environment("wait", {})["PYTHONPATH"] == fitness.HOOK
    assert fitness.environment("wait", {"PYTHONPATH": "/x"})["PYTHONPATH"] == f"{fitness.HOOK}:/x"
