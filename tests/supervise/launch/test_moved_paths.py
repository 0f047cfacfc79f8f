"""Which words of a command lead to the snapshot, and which stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.supervise.launch.moved_paths import MovedPaths, why_not_movable
from slurm_robust.supervise.launch.srun_command import first_launch, parse, relaunch


@pytest.fixture
def moved(tmp_path: Path) -> MovedPaths:
    """Version 3 of PROJECT, which is also known by a link; the command starts in it."""
    project, snapshot = tmp_path / "project", tmp_path / "job" / "code" / "3"
    for root in (project, snapshot):
        (root / "pkg").mkdir(parents=True)
        for name in ("train.py", "pkg/a.py", "with space.py"):
            (root / name).write_text("")
    (project / "data").mkdir()
    (snapshot / "data").symlink_to(project / "data")
    return MovedPaths(3, (str(project), "/home/me/project"), snapshot, str(project))


def words(moved: MovedPaths, *command: str, work_dir: str = "") -> tuple[str, ...]:
    """The command as it is launched, with P for the project and S for the snapshot."""
    project, snapshot = moved.source[0], str(moved.snapshot)
    if work_dir:
        moved = MovedPaths(moved.number, moved.source, moved.snapshot, work_dir.replace("P", project))
    found = moved.command(parse([word.replace("P", project) for word in command]))
    parent = str(Path(project).parent)
    return tuple(
        word.replace(snapshot, "S").replace(project, "P").replace(parent, "T")
        for word in (*found.options, *found.command)
    )


@pytest.mark.parametrize(
    ("typed", "launched"),
    [
        ("python train.py --lr 1", "--chdir=S python train.py --lr 1"),
        ("python P/train.py", "--chdir=S python S/train.py"),
        ("python /home/me/project/pkg/a.py", "--chdir=S python S/pkg/a.py"),
        ("python train.py --config=P/pkg --out=P/new", "--chdir=S python train.py --config=S/pkg --out=P/new"),
        ("python train.py --data P/data", "--chdir=S python train.py --data P/data"),
        ("-D P/pkg python a.py", "-D P/pkg --chdir=S/pkg python a.py"),
        ("-D P/data python ../train.py P/data/x", "-D P/data python S/train.py P/data/x"),
        ("--chdir=/tmp python P/train.py", "--chdir=/tmp python S/train.py"),
        ("python P-old/train.py PP/train.py xP/train.py", "--chdir=S python P-old/train.py PP/train.py xP/train.py"),
        ("python train.py --data ../sets/a --out=../out", "--chdir=S python train.py --data T/sets/a --out=T/out"),
        ("-D P/pkg python ../train.py ..", "-D P/pkg --chdir=S/pkg python ../train.py .."),
        ("python P/../project/train.py", "--chdir=S python S/train.py"),
    ],
)
def test_paths_that_the_version_has_are_moved(moved: MovedPaths, typed: str, launched: str) -> None:
    """What it has not, or has as a link to the folder, stays: data, outputs, other folders."""
    assert " ".join(words(moved, *typed.split())) == launched


def test_the_text_of_a_shell_is_searched(moved: MovedPaths) -> None:
    """Absolute paths in it, each up to where a shell ends a word."""
    text = "cd P && exec python 'P/train.py' --data=P/data:P/pkg; ls P/missing"
    assert words(moved, "bash", "-c", text)[-1] == "cd S && exec python 'S/train.py' --data=P/data:S/pkg; ls P/missing"


def test_a_path_with_a_space_is_one_word(moved: MovedPaths) -> None:
    """As the shell has given it to us."""
    assert words(moved, "python", "P/with space.py")[-1] == "S/with space.py"


def test_from_elsewhere_a_relative_file_is_named_whole(moved: MovedPaths) -> None:
    """The working directory stays, so the word alone leads to the snapshot; a folder may be data."""
    found = words(moved, "python", "project/train.py", "project/pkg", "-x", work_dir=str(Path(moved.source[0]).parent))
    assert found == ("python", "S/train.py", "project/pkg", "-x")


def test_the_options_reach_srun_and_a_list_of_exports_is_extended(moved: MovedPaths) -> None:
    """Behind the user's own, where the last one counts; also at a relaunch."""
    command = moved.command(parse(["--export=HOME,PATH", "-n2", "python", "train.py"]))
    for argv in (first_launch(command), relaunch(command, ["n1"], 1)):
        exports = [word for word in argv if word.startswith("--export=")]
        assert exports[-1].startswith("--export=HOME,PATH,PYTHONPATH,SROBUST_CODE_DIR,SROBUST_CODE_VERSION,SROBUST_ATT")
        assert argv.index(f"--chdir={moved.snapshot}") < argv.index("--")


def test_modules_come_from_the_version_first(moved: MovedPaths) -> None:
    """Its root, its `src`, then the user's own list with its paths moved; other folders stay."""
    (moved.snapshot / "src").mkdir()
    given = f"{moved.source[0]}/pkg:/opt/lib:{moved.source[0]}/data"
    found = moved.environment({"PYTHONPATH": given})
    snapshot = moved.snapshot
    assert found["PYTHONPATH"] == f"{snapshot}:{snapshot}/src:{snapshot}/pkg:/opt/lib:{moved.source[0]}/data"
    assert "SROBUST_RESUME_PATH" not in found
    assert (
        moved.environment({"SROBUST_RESUME_PATH": "ck/step-5"})["SROBUST_RESUME_PATH"] == f"{moved.source[0]}/ck/step-5"
    )
    assert moved.environment({"SROBUST_RESUME_PATH": "/ck/5"})["SROBUST_RESUME_PATH"] == "/ck/5"
    assert (found["SROBUST_CODE_DIR"], found["SROBUST_CODE_VERSION"]) == (str(snapshot), "3")


def test_what_is_moved_is_said(moved: MovedPaths) -> None:
    """The story names each word."""
    text = moved.text(parse(["python", f"{moved.source[0]}/train.py"]))
    assert f"working directory {moved.snapshot}" in text
    assert f"'{moved.source[0]}/train.py' becomes '{moved.snapshot}/train.py'" in text
    assert "no word is changed" in moved.text(parse(["python", "train.py"]))


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("--container-image=x python train.py", "container"),
        ("apptainer exec x python train.py", "container"),
        ("/usr/bin/singularity exec x python train.py", "container"),
        ("--multi-prog conf", "multi-prog"),
        ("python train.py docker", ""),
        ("python dockerize.py", ""),
    ],
)
def test_commands_for_which_a_snapshot_means_nothing(typed: str, why: str) -> None:
    """Another file system, or another file with the programs."""
    assert (why in why_not_movable(parse(typed.split()))) if why else not why_not_movable(parse(typed.split()))
