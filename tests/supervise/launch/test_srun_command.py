"""Reading the user's own srun options."""

from __future__ import annotations

import math

import pytest

from slurm_robust.supervise.launch.srun_command import (
    UsageError,
    death_patience_s,
    first_launch,
    labels_lines,
    named_hosts,
    parse,
    relaunch,
)


@pytest.mark.parametrize(
    ("words", "options", "command"),
    [
        (["python", "train.py", "-N4"], [], ["python", "train.py", "-N4"]),
        (["-N4", "-n", "32", "python", "x"], ["-N4", "-n", "32"], ["python", "x"]),
        (["--nodes=4", "--", "--odd", "x"], ["--nodes=4"], ["--odd", "x"]),
        (["--nodes", "4", "--exclusive", "python"], ["--nodes", "4", "--exclusive"], ["python"]),
        (["-K", "-l", "-u", "python"], ["-K", "-l", "-u"], ["python"]),
        (["-K0", "--exclusive=user", "python"], ["-K0", "--exclusive=user"], ["python"]),
        (
            ["--gres=gpu:8", "--cpu-bind=none", "sh", "-c", "a -- b"],
            ["--gres=gpu:8", "--cpu-bind=none"],
            ["sh", "-c", "a -- b"],
        ),
        (["--robust-checkpoint-dir", "/ck", "-N2", "python"], ["-N2"], ["python"]),
        (["-ln4", "python"], ["-ln4"], ["python"]),
        (["-ln", "4", "python"], ["-ln", "4"], ["python"]),
        (
            ["--no-container-mount-home", "torchrun", "--nnodes=2"],
            ["--no-container-mount-home"],
            ["torchrun", "--nnodes=2"],
        ),
        (
            ["--container-image=x", "--container-writable", "python"],
            ["--container-image=x", "--container-writable"],
            ["python"],
        ),
    ],
)
def test_the_command_begins_where_srun_would_begin_it(words: list[str], options: list[str], command: list[str]) -> None:
    """Options with and without values, long and short, `--` or none."""
    got = parse(words)
    assert list(got.options) == options
    assert list(got.command) == command


def test_own_options_are_taken_out() -> None:
    """`--robust…` never reaches srun."""
    got = parse(["--robust=observe", "--robust-layout=tp=2,pp=4", "-N2", "python"])
    assert got.own == {"mode": "observe", "layout": "tp=2,pp=4"}
    assert "robust" not in " ".join(first_launch(got))


@pytest.mark.parametrize("words", [[], ["-N4"], ["--"], ["--nodes"], ["-n"], ["--unheard-of", "--", "python"]])
def test_a_line_without_command_or_value_is_refused(words: list[str]) -> None:
    """The message says which word."""
    with pytest.raises(UsageError):
        parse(words)


def test_one_ranks_death_does_not_end_the_step_unless_the_user_wants_it() -> None:
    """`-K0 -W0` are added, the user's own are kept."""
    assert first_launch(parse(["python"])) == ["srun", "--kill-on-bad-exit=0", "--wait=0", "--", "python"]
    assert first_launch(parse(["-K1", "-W", "30", "python"])) == ["srun", "-K1", "-W", "30", "--", "python"]


def test_whoever_only_observes_runs_the_users_srun_as_typed() -> None:
    """Nobody would end the step in its place."""
    assert first_launch(parse(["-N2", "python"]), keep_evidence=False) == ["srun", "-N2", "--", "python"]


def test_a_list_of_exported_variables_is_widened() -> None:
    """Ours must reach the ranks; NONE stays NONE."""
    assert any(w.startswith("--export=A,B,SROBUST_ATTEMPT") for w in first_launch(parse(["--export=A,B", "python"])))
    assert first_launch(parse(["--export=NONE", "python"])).count("--export=NONE") == 1


def test_a_relaunch_excludes_on_the_command_line() -> None:
    """Srun ignores a swapped host file; the exclusion stands in its arguments, with the user's own."""
    argv = relaunch(parse(["-N4", "-x", "n[7-8],n9", "python", "x"]), {"n3"}, 4)
    assert "--exclude=n3,n9,n[7-8]" in argv
    assert "--overlap" in argv
    assert "--nodes=4" in argv
    assert argv[argv.index("--") + 1 :] == ["python", "x"]
    assert argv.index("--nodes=4") > argv.index("-N4")


@pytest.mark.parametrize(
    ("words", "env", "found"),
    [
        (["python", "x", "--rdzv_endpoint=n3:29500"], {}, "command names n3"),
        (["python", "x", "--rdzv_endpoint=n33:29500"], {}, ""),
        (["python", "x"], {"MASTER_ADDR": "n3", "SLURM_JOB_NODELIST": "n3"}, ""),
        (["python", "x"], {"HEAD_NODE": "n3.cluster"}, ""),
        (["python", "x"], {"HEAD_NODE": "n3"}, "environment names n3"),
        (["-w", "n1,n2", "python"], {}, "chooses its nodes"),
        (["python"], {}, ""),
    ],
)
def test_a_named_host_is_seen(words: list[str], env: dict[str, str], found: str) -> None:
    """Such a command cannot be relaunched without the node in place: it takes the requeue road."""
    sentence = named_hosts(parse(words), env, ["n3"])
    assert (found in sentence) if found else sentence == ""


@pytest.mark.parametrize(
    ("words", "env", "labelled"),
    [
        (["-l", "x"], {}, True),
        (["-ul", "x"], {}, True),
        (["--label", "x"], {}, True),
        (["-n2", "x", "-l"], {}, False),
        (["x"], {"SLURM_LABELIO": "1"}, True),
        (["x"], {"SLURM_LABELIO": "0"}, False),
    ],
)
def test_whether_lines_are_labelled(words: list[str], env: dict[str, str], labelled: bool) -> None:
    """By option, bundled or not, or by environment."""
    assert labels_lines(parse(words), env) is labelled


@pytest.mark.parametrize(
    ("options", "environment", "settings", "patience_s"),
    [
        ([], {}, {}, math.inf),
        ([], {}, {"KillOnBadExit": "0", "WaitTime": "0 sec"}, math.inf),
        ([], {}, {"KillOnBadExit": "1"}, 0.0),
        ([], {"SLURM_KILL_BAD_EXIT": "0"}, {"KillOnBadExit": "1"}, math.inf),
        ([], {"SLURM_KILL_BAD_EXIT": "1"}, {}, 0.0),
        (["-K0"], {"SLURM_KILL_BAD_EXIT": "1"}, {"KillOnBadExit": "1"}, math.inf),
        ([], {}, {"WaitTime": "30 sec"}, 30.0),
        ([], {"SLURM_WAIT": "5"}, {"WaitTime": "30 sec"}, 5.0),
        (["-W0"], {}, {"WaitTime": "30 sec"}, math.inf),
        ([], {"SLURM_WAIT": "soon"}, {}, math.inf),
    ],
)
def test_how_long_srun_would_wait_after_a_death(
    options: list[str], environment: dict[str, str], settings: dict[str, str], patience_s: float
) -> None:
    """The option counts, then the variable, then the site; an option that the user gave is left to srun."""
    assert death_patience_s(parse([*options, "train"]), environment, settings) == patience_s
