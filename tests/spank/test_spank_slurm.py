"""The plugin in a real Slurm: options, refusals, what reaches tasks, and that the launch goes on whatever is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import wait_until
from spank_jobs import command_lines, watches

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]
SRUN = ("srun", "-N1", "-n1", "--immediate=30")
SHOW = "env"


def run(cluster: DevCluster, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Type this on a login node of the cluster."""
    return cluster.run(list(words), env={**cluster.env, **(env or {})}, check=False)


def variables(text: str) -> dict[str, str]:
    """What `env` printed."""
    return dict(row.split("=", 1) for row in text.splitlines() if "=" in row)


def batch(cluster: DevCluster, script: str, *options: str, env: Mapping[str, str] | None = None) -> str:
    """Run a batch job to its end; its output."""
    output = cluster.directory / "work" / f"spank-{os.urandom(4).hex()}.out"
    words = ["sbatch", "--wait", "-N1", "-n1", f"--output={output}", *options, "--wrap", script]
    done = run(cluster, *words, env=env)
    assert done.returncode == 0, done.stderr
    return output.read_text()


@contextmanager
def plugstack(cluster: DevCluster, old: str, new: str) -> Iterator[None]:
    """Another line in plugstack.conf for a while."""
    conf = Path(
        next(
            row.split("=", 1)[1]
            for row in (cluster.directory / "etc" / "slurm.conf").read_text().splitlines()
            if row.startswith("PlugStackConfig=")
        )
    )
    before = conf.read_text()
    assert old in before
    conf.write_text(before.replace(old, new))
    try:
        yield
    finally:
        conf.write_text(before)


@pytest.mark.parametrize("command", ["srun", "sbatch", "salloc"])
def test_help_shows_the_options_under_our_name(spank_cluster: DevCluster, command: str) -> None:
    """`--help` of all three."""
    shown = run(spank_cluster, command, "--help").stdout
    for option in (
        "--robust=",
        "--robust-spares",
        "--robust-layout",
        "--robust-checkpoint-dir",
        "--robust-hang-timeout",
    ):
        assert option in shown
    assert "[slurm_robust]" in shown


@pytest.mark.parametrize("command", [("srun", "-N1"), ("sbatch", "--wrap", "true"), ("salloc", "-N1")])
@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("--robust=maybe", "expected on, observe or off"),
        ("--robust-spares=-1", "expected a number of nodes"),
        ("--robust-layout=tp=0", "expected sizes such as tp=2,pp=4"),
        ("--robust-hang-timeout=soon", "expected seconds, 1 to 604800"),
        ("--robust-checkpoint-dir=../../etc", "expected a folder"),
        ("--robust-checkpoint-dir=a\nb", "expected a folder"),
        ("--robust-checkpoint-dir=" + "x" * 10240, "at most 1023 bytes"),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, str) else value[0],
)
def test_a_wrong_value_is_refused_where_it_is_typed(
    spank_cluster: DevCluster, command: tuple[str, ...], option: str, allowed: str
) -> None:
    """Nothing is submitted, and the error says what is allowed."""
    done = run(spank_cluster, command[0], option, *command[1:], *([] if command[0] == "sbatch" else ["true"]))
    assert done.returncode != 0
    assert allowed in done.stderr
    assert run(spank_cluster, "squeue", "-h").stdout == ""


def test_a_task_gets_the_jobs_choice_and_the_recorder(spank_cluster: DevCluster) -> None:
    """With --robust: the values, the flight recorder under both names, our sitecustomize in front."""
    done = run(spank_cluster, *SRUN, "--robust=observe", "--robust-layout=tp=2", SHOW, env={"PYTHONPATH": "/users/own"})
    assert done.returncode == 0, done.stderr
    env = variables(done.stdout)
    assert (env["SROBUST_MODE"], env["SROBUST_LAYOUT"]) == ("observe", "tp=2")
    assert env["TORCH_FR_BUFFER_SIZE"] == env["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert env["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert env["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"].startswith("/tmp/srobust-")
    ours, theirs = env["PYTHONPATH"].split(":")
    assert (Path(ours) / "sitecustomize.py").exists()
    assert theirs == "/users/own"


def test_what_the_user_set_is_never_overridden(spank_cluster: DevCluster) -> None:
    """Either name of a setting makes both the user's."""
    own = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "7", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_FR_DUMP_PIPE_FILE": "/x"}
    env = variables(run(spank_cluster, *SRUN, "--robust=observe", SHOW, env=own).stdout)
    assert {name: env[name] for name in own} == own
    assert "TORCH_FR_BUFFER_SIZE" not in env
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" not in env


def test_without_the_option_a_task_is_as_it_was(spank_cluster: DevCluster) -> None:
    """Nothing of ours in its environment; the same with off."""
    for options in ((), ("--robust=off",)):
        env = variables(run(spank_cluster, *SRUN, *options, SHOW).stdout)
        assert not {name for name in env if name.startswith("TORCH_") or name == "SROBUST_SITECUSTOMIZE"}


@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_an_option_that_watches_nothing_by_itself_is_told(spank_cluster: DevCluster, command: str) -> None:
    """Where it is typed, once, and the job runs: else it would go unwatched, and nobody know why."""
    words = {"sbatch": ("--wait", "--output=/dev/null", "--wrap", "srun true"), "srun": ("true",)}
    rest = words.get(command, ("srun", "true"))
    more = () if command == "sbatch" else ("--immediate=30",)
    done = run(spank_cluster, command, "-N2", *more, "--robust-hang-timeout=300", *rest)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("--robust-hang-timeout has no effect without --robust") == 1


@pytest.mark.parametrize("export", ["ALL", "NONE"])
def test_sbatch_options_reach_the_sruns_of_the_script(spank_cluster: DevCluster, export: str) -> None:
    """Through the script's environment; also where that is not the submitter's."""
    options = (f"--export={export}", "--robust=observe", "--robust-hang-timeout=77", "--robust-checkpoint-dir=ck pt")
    text = batch(spank_cluster, f"srun --export=ALL -N1 -n1 {SHOW}", *options)
    env = variables(text)
    assert (env["SROBUST_MODE"], env["SROBUST_HANG_TIMEOUT"]) == ("observe", "77"), text
    assert env["SROBUST_CHECKPOINT_DIR"] == "ck pt"
    assert env["TORCH_FR_BUFFER_SIZE"] == "2000"


def test_what_srun_says_comes_before_what_sbatch_said(spank_cluster: DevCluster) -> None:
    """Twice on the command line, and twice through the environment: the nearer one wins."""
    typed = batch(spank_cluster, f"srun --robust=off {SHOW}", "--robust=observe")
    assert variables(typed)["SROBUST_MODE"] == "off"
    exported = batch(spank_cluster, f"export SROBUST_MODE=off; srun {SHOW}", "--robust=observe")
    assert variables(exported)["SROBUST_MODE"] == "off"
    submitted = batch(spank_cluster, f"srun {SHOW}", "--robust=off", env={"SROBUST_MODE": "observe"})
    assert variables(submitted)["SROBUST_MODE"] == "off"


def test_salloc_options_reach_its_sruns(spank_cluster: DevCluster) -> None:
    """`salloc --robust srun …`."""
    done = run(spank_cluster, "salloc", "-N1", "--immediate=30", "--robust=observe", "srun", "-n1", SHOW)
    assert variables(done.stdout)["SROBUST_MODE"] == "observe", done.stderr
    for nearer in (f"SROBUST_MODE=off srun -n1 {SHOW}", f"srun -n1 --robust=off {SHOW}"):
        done = run(spank_cluster, "salloc", "-N1", "--immediate=30", "--robust=observe", "sh", "-c", nearer)
        assert variables(done.stdout)["SROBUST_MODE"] == "off", nearer


@pytest.mark.parametrize("command", ["sbatch", "salloc", "srun"])
@pytest.mark.parametrize(
    ("options", "env", "mode"),
    [
        (("--robust=off", "--robust=observe"), {}, "observe"),
        ((), {"SROBUST_MODE": "observe", "SROBUST_LAYOUT": "tp=2"}, "observe"),
        (("--robust=observe",), {"SROBUST_MODE": "off"}, "observe"),
        (("--robust=off",), {"SROBUST_MODE": "observe"}, "off"),
    ],
    ids=["typed twice", "environment", "typed over environment", "off over environment"],
)
def test_typed_and_in_the_environment(
    spank_cluster: DevCluster, command: str, options: tuple[str, ...], env: dict[str, str], mode: str
) -> None:
    """From all three: the last word on the command line, and that before the environment's."""
    if command == "sbatch":
        text = batch(spank_cluster, f"srun {SHOW}", *options, env=env)
    else:
        words = (SHOW,) if command == "srun" else ("srun", SHOW)
        text = run(spank_cluster, command, "-N1", "-n1", "--immediate=30", *options, *words, env=env).stdout
    said = variables(text)
    assert said["SROBUST_MODE"] == mode
    assert ("TORCH_FR_BUFFER_SIZE" in said) is (mode != "off")
    assert said.get("SROBUST_LAYOUT") == env.get("SROBUST_LAYOUT")


def test_slurms_own_environment_for_options_works(spank_cluster: DevCluster) -> None:
    """The variable that Slurm derives from plugin and option."""
    name = "SLURM_SPANK__SLURM_SPANK_OPTION_robust_robust"
    assert variables(run(spank_cluster, *SRUN, SHOW, env={name: "observe"}).stdout)["SROBUST_MODE"] == "observe"


@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_prolog_and_epilog_are_told_the_jobs_choice(plugin: Path, spank_cluster: DevCluster, command: str) -> None:
    """As validated values, from all three; typed, and beside a value of the user's own that tries to be one."""
    options = ("--robust=observe", "--robust-spares=1", "-N1", "-n1")
    show = "echo id=$SLURM_JOB_ID"
    env = {"SPANK_ROBUST_MODE": "$(reboot)", "SLURM_SPANK_ROBUST_MODE": "$(reboot)"}
    if command == "sbatch":
        text = batch(spank_cluster, show, *options, env=env)
    else:
        text = run(spank_cluster, command, "--immediate=30", *options, "sh", "-c", show, env=env).stdout
    job = text.split("id=")[1].split()[0]
    for stage in ("Prolog", "Epilog"):
        told = plugin.parent / f"{stage}.{job}.told"
        # The file grows while it is written.
        wait_until(lambda told=told: told.exists() and "SPANK_ROBUST_SPARES=1\n" in told.read_text(), 30, stage)
        said = variables(told.read_text())
        assert (said["SPANK_ROBUST_MODE"], said["SPANK_ROBUST_SPARES"]) == ("observe", "1"), stage


def test_a_wrong_variable_is_told_and_passed_over(spank_cluster: DevCluster) -> None:
    """It may have been set far away: the job runs all the same."""
    done = run(spank_cluster, *SRUN, "--robust=observe", "echo", "ran", env={"SROBUST_LAYOUT": "$(reboot)"})
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "SROBUST_LAYOUT=$(reboot): expected sizes" in done.stderr


def test_an_unknown_plugstack_argument_is_an_error_in_the_log(spank_cluster: DevCluster) -> None:
    """Told to who uses the option, and the rest works."""
    with plugstack(spank_cluster, "command=", "colour=red command="):
        done = run(spank_cluster, *SRUN, "--robust=observe", "echo", "ran")
        assert done.stdout == "ran\n"
        assert "plugstack.conf: colour=red: there is no such argument" in done.stderr
        assert run(spank_cluster, *SRUN, "echo", "ran").stderr == ""


def test_without_the_package_it_says_so_once_and_the_task_runs(spank_cluster: DevCluster) -> None:
    """No srobust where plugstack.conf says."""
    with plugstack(spank_cluster, "command=", "command=/nowhere/srobust python=/nowhere colour="):
        done = run(spank_cluster, "srun", "-N3", "-n3", "--immediate=30", "--robust=on", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n" * 3)
    assert done.stderr.count("is not supervised: there is no srobust at /nowhere/srobust") == 1


def test_a_plugin_that_is_not_there_holds_nothing(spank_cluster: DevCluster) -> None:
    """Optional: Slurm goes on without it, and no node is drained."""
    with plugstack(spank_cluster, "spank_robust.so", "gone.so"):
        assert run(spank_cluster, *SRUN, "echo", "ran").stdout == "ran\n"
    states = run(spank_cluster, "sinfo", "-h", "-N", "-o", "%T").stdout.split()
    assert not [s for s in states if s.startswith(("down", "drain"))]


def test_the_watch_comes_and_goes_with_its_step(spank_cluster: DevCluster) -> None:
    """A plain srun under sbatch --robust: a watch of that step, told of in the job's folder, gone with its srun."""
    folder = spank_cluster.directory / "work" / "watched"
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(
        "import itertools, pathlib, time\n"
        "for n in itertools.count():\n"
        "    print(f'step {n}', flush=True)\n"
        "    time.sleep(0.1)\n"
        "    if pathlib.Path('go').exists():\n"
        "        break\n"
    )
    options = (f"--output={folder}/j-%j.out", f"--chdir={folder}", "--robust=observe")
    script = f"srun -n1 python3 {program}; while [ ! -e end ]; do sleep 0.1; done"
    job = run(spank_cluster, "sbatch", "--parsable", "-N1", "-n1", *options, "--wrap", script).stdout.strip()
    story = folder / f"slurm-robust-{job}" / "story.jsonl"

    def told(kind: str) -> list[str]:
        rows = [json.loads(row) for row in story.read_text().splitlines()] if story.exists() else []
        return [row["text"] for row in rows if row["kind"] == kind]

    try:
        wait_until(lambda: told("training"), 60, f"the watch: {story}")
        assert "1 ranks on" in told("training")[0]
        for pid in watches(spank_cluster, job):
            # On the batch host srun's environment is that of rank 0: an agent would take its watch for a part of it.
            assert b"SROBUST_WATCH=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        (folder / "go").touch()
        wait_until(lambda: told("finished"), 30, "the step's end")
        wait_until(lambda: not watches(spank_cluster, job), 20, "the watch's end with its step")
        assert len(told("training")) == len(told("finished")) == 1
    finally:
        (folder / "go").touch()
        (folder / "end").touch()
    wait_until(lambda: not spank_cluster.processes(int(job)), 30, "the job's end")


def test_how_a_task_ended_is_known_without_sruns_words(plugin: Path, spank_cluster: DevCluster) -> None:
    """Srun's output goes through a pipe, where nobody reads it: slurmstepd has written the exit down, and cleans up."""
    folder = spank_cluster.directory / "work" / "exits"
    folder.mkdir()
    wait = "touch up-$SLURM_PROCID; until [ -e go ]; do sleep 0.1; done"
    rank = f"cd {folder}; {wait}; [ $SLURM_PROCID = 0 ] || exit 7; sleep 300"
    options = ("-N2", "-n2", f"--output={folder}/j-%j.out", f"--chdir={folder}", "--robust=observe")
    script = f"srun sh -c '{rank}' 2>&1 | cat >piped"
    job = run(spank_cluster, "sbatch", "--parsable", *options, "--wrap", script).stdout.strip()

    def says(word: str) -> str:
        text = "".join(path.read_text() for path in folder.rglob("story.jsonl"))
        return word if word in text else ""

    try:
        wait_until(lambda: len(list(folder.glob("up-*"))) == 2, 60, "both ranks")
        files = [str(path) for path in (plugin.parent / "exits").glob(f"{job}.0-*")]
        assert len(files) == 2
        wait_until(lambda: set(files) <= opened(spank_cluster, job), 60, "the agents, which have found the ranks")
        (folder / "go").touch()
        wait_until(lambda: says("rank 1 ended badly"), 30, f"the story: {folder}")
    finally:
        run(spank_cluster, "scancel", job)
    wait_until(lambda: not spank_cluster.processes(int(job)), 60, "the job's end")
    wait_until(lambda: not list((plugin.parent / "exits").glob(f"{job}.*")), 20, "the files gone")


def test_srobust_run_in_a_job_with_the_option_is_not_watched_twice(spank_cluster: DevCluster) -> None:
    """Its srun, and that of its watch step, are known by their environment."""
    folder = spank_cluster.directory / "work" / "twice"
    folder.mkdir()
    options = (f"--output={folder}/j-%j.out", f"--chdir={folder}", "--robust=observe")
    script = "srobust run --robust=observe sh -c 'touch up; sleep 300'"
    job = run(spank_cluster, "sbatch", "--parsable", "-N1", "-n1", *options, "--wrap", script).stdout.strip()
    try:
        wait_until((folder / "up").exists, 60, "the training")
        # The watch step is there: whatever its srun would have started was started by then, and a second later.
        wait_until(
            lambda: any(b"agent.main" in words for words in command_lines(spank_cluster, job).values()), 60, "its agent"
        )
        for _ in range(20):
            assert watches(spank_cluster, job) == []
            time.sleep(0.1)
    finally:
        run(spank_cluster, "scancel", job)
    wait_until(lambda: not spank_cluster.processes(int(job)), 60, "the job's end")


def opened(cluster: DevCluster, job: str) -> set[str]:
    """What the agents of a job have open."""
    found = set()
    for pid in cluster.processes(int(job)):
        with contextlib.suppress(OSError):
            if b"agent.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found |= {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    return found
