"""Help, errors and completion: what a newcomer meets first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from slurm_robust.cli.main import COMMANDS, cli
from slurm_robust.cli.teaching import lesson, not_running, slurm_words
from slurm_robust.slurm.errors import SlurmRefusedError, SlurmUnavailableError

ROOT = Path(__file__).resolve().parents[2]


def commands() -> Iterator[tuple[str, ...]]:
    """The words of every command and every group's command."""
    for name in COMMANDS:
        yield (name,)
        command = cli.get_command(click.Context(cli), name)
        if isinstance(command, click.Group):
            yield from ((name, inner) for inner in command.commands)


def typed(*words: str) -> tuple[int, str]:
    """Exit code and everything that is said."""
    done = CliRunner().invoke(cli, list(words), prog_name="srobust")
    return done.exit_code, done.output


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_help_teaches(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that types this very command, its exit codes, and no line wider than 110 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    code, text = typed(*words, "--help")
    assert code == 0
    _, examples, rest = text.partition("Examples:")
    assert examples, text
    shown, exits, codes = rest.partition("Exit codes:")
    assert " ".join(("srobust", *words)) in shown, shown
    assert exits, text
    assert codes.split()[0] in ("0", "srun's"), codes
    assert max(map(len, text.splitlines())) <= 110, max(text.splitlines(), key=len)


def test_a_lesson_lines_up() -> None:
    """Examples and codes stand in columns, as click must not wrap them."""
    text = lesson([("a", "one"), ("long", "two")], [(0, "done"), (64, "wrong")])
    assert text == "\b\nExamples:\n  a     one\n  long  two\n\n\b\nExit codes:\n  0   done\n  64  wrong"


@pytest.mark.parametrize(
    ("words", "code", "wanted"),
    [
        (("stauts",), 2, "Did you mean 'status'?"),
        (("xyzzy",), 2, "See: srobust --help"),
        (("status", "--jsn"), 2, "--json"),
        (("check", "--stge", "full"), 2, "did you mean --stage? See: srobust check --help"),
        (("check", "--stge=full"), 2, "did you mean --stage?"),
        (("run", "--robust-folde=x", "true"), 64, "did you mean --robust-folder?"),
        (("nodes", "--state", "foo"), 2, "'quarantine'"),
        (("ckpt", "latset", "x"), 2, "latest"),
    ],
)
def test_a_typing_error_is_told_with_what_was_meant(words: tuple[str, ...], code: int, wanted: str) -> None:
    """A wrong word is named, and the nearest right one beside it."""
    assert typed(*words)[0] == code
    assert wanted in typed(*words)[1]


def test_no_daemon_says_where_to_look(tmp_path: Path) -> None:
    """Nothing to read: what was tried, and what to type on which machine; a reset makes no journal of its own."""
    site = tmp_path / "robust.yaml"
    site.write_text(f"daemon: {{state_dir: {tmp_path}/state, http: {{port: 1}}}}\n")
    code, said = typed("status", "--config", str(site))
    assert code == 1
    assert "systemctl status srobustd" in said
    assert "srobust devcluster env" in said
    assert max(map(len, said.splitlines())) < 200
    code, said = typed("breaker", "reset", "--config", str(site))
    assert code == 1
    assert "no daemon ever ran here" in said
    assert not (tmp_path / "state").exists()


def test_slurm_that_is_away_says_what_to_type() -> None:
    """The line that ended Slurm's command, and what to look at; a refusal stays in Slurm's own words."""
    text = "squeue: error: fetch_config: failed\nsqueue: fatal: Could not establish a configuration source"
    said = slurm_words(SlurmUnavailableError("read job 9", text))
    assert said.startswith("Slurm cannot be reached (read job 9): Could not establish a configuration source\n")
    assert "scontrol ping" in said
    assert slurm_words(SlurmRefusedError("requeue job 9", "Access denied")) == "requeue job 9: Access denied"


def test_a_job_that_has_ended_says_where_its_story_is() -> None:
    """Squeue knows ended jobs no more; a waiting one it does."""
    assert "srobust incidents 9, and the folder slurm-robust-9" in not_running("9", "COMPLETED")
    assert "squeue -j 9" in not_running("9", "PENDING")
    assert "not known" in not_running("9", None)


def test_run_without_srun_is_told_and_no_traceback(tmp_path: Path) -> None:
    """Outside of an allocation the command goes to srun; where there is none, that is said."""
    done = subprocess.run(
        [sys.executable, "-m", "slurm_robust.cli.main", "run", "true"],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 127
    assert "Traceback" not in done.stderr
    assert "install Slurm's commands" in done.stderr


def srun_of(tmp_path: Path, *words: str, site: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`srobust run` in a job on a site with this file, where srun is a script that tells its words."""
    (tmp_path / "srun").write_text('#!/bin/sh\necho "srun $*${SROBUST_MODE:+ ($SROBUST_MODE)}"\n')
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "robust.yaml").write_text(site)
    start = f"import slurm_robust.config.file as c; c.DEFAULT_PATH = c.Path({str(tmp_path / 'robust.yaml')!r})"
    start += "; from slurm_robust.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", start, "run", *words],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "7", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_launcher_that_leaves_the_step_is_not_supervised(tmp_path: Path) -> None:
    """DeepSpeed's over ssh: refused with a sentence that says what to type, and no launch is held."""
    done = srun_of(tmp_path, "-n2", "deepspeed", "--hostfile=hosts", "train.py", site="mode: act\n")
    assert (done.returncode, done.stdout) == (0, "srun -n2 -- deepspeed --hostfile=hosts train.py\n")
    assert "over ssh" in done.stderr
    assert "--launcher=slurm" in done.stderr
    assert "under plain srun" in done.stderr


def test_a_wrong_file_of_the_site_holds_no_launch(tmp_path: Path) -> None:
    """An admin's slip must not stop every job of the cluster; a file that the user named is the user's to mend."""
    done = srun_of(tmp_path, "-n2", "python", "train.py", site="mode: atc\n")
    assert (done.returncode, done.stdout) == (0, "srun -n2 -- python train.py\n")
    assert "robust.yaml:1: mode: " in done.stderr
    assert "unsupervised" in done.stderr
    file = f"{tmp_path}/robust.yaml"
    named = srun_of(tmp_path, f"--robust-config={file}", "python", "train.py", site="mode: atc\n")
    assert (named.returncode, named.stdout) == (64, "")
    named = srun_of(tmp_path, "python", "train.py", site="mode: atc\n", SROBUST_CONFIG=file)
    assert (named.returncode, named.stdout) == (64, "")


def test_off_is_off_also_under_sbatch_robust(tmp_path: Path) -> None:
    """What was typed here comes before what sbatch was given, also for the plugin in the plain srun."""
    done = srun_of(tmp_path, "--robust=off", "train", site="mode: act\n", SROBUST_MODE="on")
    assert done.stdout == "srun -- train (off)\n"
    given = srun_of(tmp_path, "train", site="mode: act\n", SROBUST_MODE="off")
    assert (given.returncode, given.stdout, given.stderr) == (0, "srun -- train (off)\n", "")


def test_a_heterogeneous_job_runs_unsupervised(tmp_path: Path) -> None:
    """Its watch step could not start beside it, and would see one component's nodes alone."""
    done = srun_of(tmp_path, "-n2", "train", site="mode: act\n", SLURM_HET_SIZE="2")
    assert (done.returncode, done.stdout) == (0, "srun -n2 -- train\n")
    assert "heterogeneous jobs are not supervised" in done.stderr


def test_a_wrong_variable_holds_no_launch(tmp_path: Path) -> None:
    """It is told, and the command runs."""
    done = srun_of(tmp_path, "--robust=off", "train", site="mode: act\n", SROBUST_LAYOUT="$(reboot)")
    assert (done.returncode, done.stdout) == (0, "srun -- train (off)\n")
    assert "srobust: SROBUST_LAYOUT=$(reboot): layout: not understood" in done.stderr


def test_listing_checks_refuses_options_that_a_run_would_refuse(tmp_path: Path) -> None:
    """`srobust check --list` is how an admin learns that robust.yaml is right."""
    path = tmp_path / "robust.yaml"
    for text, wanted in (
        ("nodecheck: {options: {gpu_count: {expcted: 8}}}\n", "expcted"),
        ("nodecheck: {options: {gpus: {expected: 8}}}\n", "gpus"),
        ("nodecheck: {disable: [gpus]}\n", "gpus"),
    ):
        path.write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "slurm_robust.cli.main", "check", "--list", "--config", str(path)],
            capture_output=True,
            text=True,
            check=False,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 2, done.stdout
        assert wanted in done.stderr


@pytest.mark.parametrize(
    ("args", "incomplete", "wanted"),
    [
        ([], "st", {"stacks", "status", "standby"}),
        (["check"], "--st", {"--stage"}),
        (["nodes", "--state"], "d", {"drained"}),
        (["run"], "--robust-f", {"--robust-folder="}),
        (["ckpt"], "l", {"latest", "list"}),
    ],
)
def test_completion_knows_the_words(args: list[str], incomplete: str, wanted: set[str]) -> None:
    """A Tab offers commands, options and values."""
    found = BashComplete(cli, {}, "srobust", "_SROBUST_COMPLETE").get_completions(args, incomplete)
    assert {item.value for item in found} == wanted


def test_completion_of_a_training_command_is_files() -> None:
    """Behind `srobust run`, as behind srun, files are meant."""
    found = BashComplete(cli, {}, "srobust", "_SROBUST_COMPLETE").get_completions(["run", "python"], "tr")
    assert [(item.type, item.value) for item in found] == [("file", "tr")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_what_the_shell_reads(shell: str) -> None:
    """The script names our command, and bash finds no fault with its own."""
    code, text = typed("completion", shell)
    assert code == 0
    assert "_SROBUST_COMPLETE" in text
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
