"""The pyslurm back end with modules that do not fit, or fail in a call; no cluster is needed."""

from __future__ import annotations

import re

import pytest
from pyslurm_world import NEW, SHAPES, World

from slurm_robust.config.site import Config, SlurmConfig
from slurm_robust.core.model import JobRef
from slurm_robust.slurm.errors import SlurmUnavailableError
from slurm_robust.supervise.__main__ import read_job

UNFIT = {
    "another Slurm's": (NEW, "26.05.0", "pyslurm 25.11.2 is made for Slurm 25.11, and this is 26.05"),
    "one that does not load": ("raise ImportError('libslurm.so.41: no such file')", "25.11.8", r"libslurm\.so\.41"),
    "one that is no pyslurm": ("", "25.11.8", r"has no Jobs\.load and Nodes\.load"),
    "one whose libslurm ends the process": (
        "import os\nos.write(2, b'fatal: Could not establish a configuration source')\nos._exit(1)\n",
        "25.11.8",
        "configuration source",
    ),
}


@pytest.mark.parametrize("unfit", UNFIT)
def test_a_pyslurm_that_does_not_fit_is_one_sentence_and_the_commands_are_used(
    world: World, caplog: pytest.LogCaptureFixture, unfit: str
) -> None:
    """Which one, why, and what to do; never an error of the call, and nothing is asked of that pyslurm."""
    module, slurm, why = UNFIT[unfit]
    client = world.client(module, slurm)
    assert client.cluster_name() == "by_command"
    client.drain("n1", "srobust: x")
    assert world.commands() == ["scontrol show config", 'scontrol update NodeName=n1 State=DRAIN Reason="srobust: x"']
    assert world.asked() == []
    (record,) = caplog.records
    message = record.getMessage()
    assert "slurm.backend is pyslurm, which does not fit here" in message
    assert "install the pyslurm that matches this Slurm's major.minor, or set slurm.backend: commands" in message
    assert re.search(why, client.about().problem)


def test_a_pyslurm_that_is_not_installed_is_the_same_sentence(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is started for it."""
    client = world.client()
    monkeypatch.setattr("slurm_robust.slurm.pyslurm_backend._here", lambda: False)
    assert client.cluster_name() == "by_command"
    assert client.about().problem == "it is not installed here"
    assert len(caplog.records) == 1


def test_a_name_that_is_missing_costs_that_call_alone(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Named at the start, once; the calls that do not need it are pyslurm's."""
    source = (SHAPES / NEW).read_text() + "\ndel Reservation.create\ndel slurmctld\n"
    client = world.client(source)
    assert client.cluster_name() == "by_command"
    assert client.reservations()[0].name == "seat"
    client.create_reservation("r", "n1", ("ann",), 10, ())
    assert {detour.call: detour.why for detour in client.about().lacking} == {
        "create_reservation": "pyslurm 25.11.2 has no Reservation.create",
        "cluster_name": "pyslurm 25.11.2 has no slurmctld.Config.load",
    }
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "pyslurm 25.11.2 has no Reservation.create, slurmctld.Config.load"
    ]


BROKEN = {
    "a name": ("del Job.state_reason", "AttributeError"),
    "a value of another kind": ("Job.constraints = 7", "TypeError"),
    "a word that is not Slurm's": ("Jobs.load = lambda: int('x')", "ValueError"),
    "its process": ("Jobs.load = lambda: os._exit(7)", "read jobs"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_call_in_which_pyslurm_fails_goes_by_the_command_from_then_on(
    world: World, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """Said once, with what it raised, and shown; the other calls go on."""
    line, raised = BROKEN[broken]
    client = world.client(f"{(SHAPES / NEW).read_text()}\n{line}\n")
    assert client.jobs() == []
    assert client.jobs() == []
    assert len([call for call in world.commands() if call.startswith("squeue")]) == 2
    (record,) = caplog.records
    assert "from now on Slurm's command does it" in record.getMessage()
    (detour,) = client.about().lacking
    assert detour.call == "jobs"
    assert raised in detour.why
    assert client.cluster_name() == "devil"


def test_slurms_own_refusal_and_silence_stay_errors(world: World) -> None:
    """An RPCError is Slurm's answer: the command would get the same."""
    source = (SHAPES / NEW).read_text() + "\n@staticmethod\ndef load(): raise RPCError('Unable to contact slurm "
    source += "controller (connect failure)')\nNodes.load = load\n"
    client = world.client(source)
    with pytest.raises(SlurmUnavailableError):
        client.nodes()
    assert (client.about().lacking, world.commands()) == ((), [])


# The start of a job


def squeue_with_job_7(world: World) -> None:
    """The commands know job 7, too."""
    jobs = (
        "i=1; for v in 7 0 N/A N/A RUNNING 1 1 0 root main 1 n1 n1 None '' '' 0 10 5 5 20 UNLIMITED 0 7 '' '' 0 train"
    )
    jobs += " '' '' /o /e /w; do printf '%s%s' \"$v\" \"$sep\"; done"
    sep = "sep=${SQUEUE_FORMAT2#*:}; sep=${sep%%,*}"
    (world.folder / "squeue").write_text(f"#!/bin/sh\ncase \"$*\" in *%x*) echo '7 '; exit;; esac\n{sep}\n{jobs}\n")


STARTS = {
    "cannot read the cluster's name": f"{(SHAPES / NEW).read_text()}\ndel _Config.cluster_name\n",
    "has no name of those needed": "",
    "does not load": "raise OSError('libslurmfull.so')",
    "is refused by Slurm": f"{(SHAPES / NEW).read_text()}\nos.environ['STUB_TROUBLE'] = 'refused'\n",
    "hangs as it is loaded": "import time\ntime.sleep(60)\n",
    "hangs in a call": f"import time\n{(SHAPES / NEW).read_text()}\nJob.load = lambda job_id: time.sleep(60)\n",
}


@pytest.mark.parametrize("trouble", STARTS)
def test_a_job_is_supervised_whatever_pyslurm_does(
    world: World, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], trouble: str
) -> None:
    """The supervisor reads its job, and says in one sentence what did not work."""
    config = Config(slurm=world.config(STARTS[trouble], "25.11.8"))
    squeue_with_job_7(world)
    quick = SlurmConfig(backend="pyslurm", bin_dir=config.slurm.bin_dir, timeout_s=4.0)
    supervised, _ = read_job(Config(slurm=quick), JobRef(7))
    assert (supervised.cluster, supervised.name) == ("by_command", "7")
    said = [record.getMessage() for record in caplog.records] + capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "pyslurm" in said[0]
    assert "Slurm's command" in said[0]
