"""The command back end with commands that hang, are missing, babble or fail: no cluster is needed."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.config.site import SlurmConfig
from slurm_robust.core.model import JobRef
from slurm_robust.slurm.commands import CommandClient
from slurm_robust.slurm.errors import (
    SlurmError,
    SlurmMissingError,
    SlurmNotFoundError,
    SlurmParseError,
    SlurmRefusedError,
    SlurmTimeoutError,
    SlurmUnavailableError,
)

Make = Callable[[str], CommandClient]

READS: tuple[Callable[[CommandClient], object], ...] = (
    lambda c: c.nodes(),
    lambda c: c.jobs(),
    lambda c: c.job(JobRef(1)),
    lambda c: c.reservations(),
    lambda c: c.cluster_name(),
)
ACTS: tuple[Callable[[CommandClient], object], ...] = (
    lambda c: c.drain("n1", "srobust: x"),
    lambda c: c.resume("n1"),
    lambda c: c.requeue(JobRef(1)),
    lambda c: c.cancel(JobRef(1)),
    lambda c: c.update_job(JobRef(1), comment="x"),
    lambda c: c.signal(JobRef(1), "KILL"),
    lambda c: c.create_reservation("r", "n1", ("root",), 5, ()),
    lambda c: c.delete_reservation("r"),
    lambda c: c.submit([], "#!/bin/sh\n"),
)


@pytest.fixture
def fake(tmp_path: Path) -> Make:
    """Makes a client whose four commands are all one shell script."""

    def make(script: str) -> CommandClient:
        for name in ("scontrol", "squeue", "scancel", "sbatch"):
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        return CommandClient(SlurmConfig(bin_dir=str(tmp_path), conf="/some/slurm.conf", timeout_s=0.3))

    return make


def gone(pid: int) -> bool:
    """True if no such process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


@pytest.mark.parametrize("call", READS + ACTS)
def test_a_hung_command_ends_at_its_deadline_with_all_its_children(
    fake: Make, tmp_path: Path, call: Callable[[CommandClient], object]
) -> None:
    """A script that ignores SIGTERM and has a child of its own: a timeout, soon, and nobody left."""
    pids = tmp_path / "pids"
    client = fake(f"trap '' TERM\nsleep 300 &\necho $$ $! > {shlex.quote(str(pids))}\necho partial >&2\nwait")
    began_s = time.monotonic()
    with pytest.raises(SlurmTimeoutError, match=r"did not return within 0\.3 s.*partial"):
        call(client)
    assert time.monotonic() - began_s < 30
    for pid in pids.read_text().split():
        wait_until(lambda pid=int(pid): gone(pid), 2, f"process {pid} gone")  # type: ignore[misc]


@pytest.mark.parametrize("call", READS + ACTS)
def test_a_missing_command_says_what_to_set(tmp_path: Path, call: Callable[[CommandClient], object]) -> None:
    """Neither in the named folder nor, with none named, on PATH."""
    with pytest.raises(SlurmMissingError, match=r"slurm\.bin_dir"):
        call(CommandClient(SlurmConfig(bin_dir=str(tmp_path))))


def test_a_command_that_is_not_on_path_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, by PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmMissingError, match="scontrol is not on PATH"):
        CommandClient(SlurmConfig()).nodes()


@pytest.mark.parametrize("call", READS)
@pytest.mark.parametrize("babble", ["garbage", "<html>", "slurm 99: JobId NodeName"])
def test_garbage_is_a_parse_error(fake: Make, babble: str, call: Callable[[CommandClient], object]) -> None:
    """Never an empty list, never a verdict."""
    with pytest.raises(SlurmParseError):
        call(fake(f"echo '{babble}'"))


def test_a_command_killed_by_a_signal_is_no_refusal(fake: Make) -> None:
    """A crashed scontrol says nothing about the node or the job."""
    with pytest.raises(SlurmError, match="ended by signal 9") as caught:
        fake("kill -9 $$").nodes()
    assert type(caught.value) is SlurmError


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("slurm_load_node error: Unable to contact slurm controller (connect failure)", SlurmUnavailableError),
        ("Unexpected message received for job 1", SlurmUnavailableError),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", SlurmUnavailableError),
        ("slurm_load_jobs error: Protocol authentication error", SlurmUnavailableError),
        ("scontrol: fatal: Could not establish a configuration source", SlurmUnavailableError),
        ("slurm_update error: Invalid user id", SlurmRefusedError),
        ("Access/permission denied for job 1", SlurmRefusedError),
        ("slurm_update error: Invalid node state specified", SlurmRefusedError),
        ("Error creating the reservation: Requested nodes are busy", SlurmRefusedError),
        ("words that nobody has seen before", SlurmRefusedError),
        ("slurm_update error: Invalid node name specified", SlurmNotFoundError),
        ("Requested reservation is invalid", SlurmNotFoundError),
    ],
)
def test_slurms_words_decide_the_error_and_stay_in_it(fake: Make, words: str, kind: type[SlurmError]) -> None:
    """The texts were collected on a live 22.05."""
    with pytest.raises(SlurmError) as caught:
        fake(f"echo {shlex.quote(words)} >&2; exit 1").drain("n[1-2]", "srobust: x")
    assert type(caught.value) is kind
    assert caught.value.text == words
    assert caught.value.what == "drain n[1-2]"


def test_nothing_of_a_surrounding_job_reaches_a_command(
    fake: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a job our commands speak of the whole cluster, in English, in UTC, with the configured slurm.conf."""
    for name in ("SLURM_JOB_ID", "SLURM_CLUSTERS", "SQUEUE_USERS", "SBATCH_RESERVATION", "SCONTROL_ALL", "SLURM_CONF"):
        monkeypatch.setenv(name, "leaked")
    monkeypatch.setenv("SLURM_JWT", "token")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    out = tmp_path / "env"
    with pytest.raises(SlurmParseError):
        fake(f"env > {shlex.quote(str(out))}").nodes()
    env = dict(line.split("=", 1) for line in out.read_text().splitlines() if "=" in line)
    assert "leaked" not in env.values()
    assert (env["LC_ALL"], env["TZ"], env["SLURM_TIME_FORMAT"]) == ("C", "UTC0", "%s")
    assert (env["SLURM_CONF"], env["SLURM_JWT"]) == ("/some/slurm.conf", "token")


def test_the_separator_is_new_each_time_and_not_on_the_command_line(fake: Make, tmp_path: Path) -> None:
    """Whoever can read the process list must not learn what would forge a field."""
    out = tmp_path / "seen"
    client = fake(f'echo "$SQUEUE_FORMAT2" >> {shlex.quote(str(out))}; echo "$@" >> {shlex.quote(str(out))}.argv')
    for _ in range(2):
        with contextlib.suppress(SlurmParseError):
            client.jobs()
    first, second = out.read_text().splitlines()
    separator = first.split(",")[0].removeprefix("jobid:")
    assert len(separator) == 16
    assert separator.isalpha()
    assert separator not in second
    assert separator not in Path(f"{out}.argv").read_text()


@pytest.mark.parametrize("said", ["12", "12;cluster2"])
def test_submit_returns_the_job(fake: Make, said: str) -> None:
    """With and without a cluster's name behind it."""
    assert fake(f"cat > /dev/null; echo '{said}'").submit(["-N1"], "#!/bin/sh\n") == JobRef(12)


def test_a_script_longer_than_a_pipe_that_nobody_reads_harms_nothing(fake: Make) -> None:
    """A refusal may come before everything was read."""
    with pytest.raises(SlurmRefusedError, match="no"):
        fake("echo no >&2; exit 1").submit([], "#!/bin/sh\n" + "#" * 1_000_000)
