"""`srobust diagnose` of a hang: the incident names the culprit, and the output holds warnings at most."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest
from diagnosis_material import AT_S, run, save_incident, slurm_of_scripts

from slurm_robust.localize.evidence import RankExit

SOCKET = (
    "[W1127 07:00:01.1 socket.cpp:759] [c10d] The IPv6 network addresses of (n1, 29500) cannot be retrieved "
    "(gai error: -2 - Name or service not known)."
)
STEPS = "step 1 loss 2.0\nstep 2 loss 1.9\nstep 3 loss 1.8\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site whose Slurm knows job 1234; its incident is a hang: no rank has ended, and none has said anything."""
    monkeypatch.chdir(tmp_path)
    folder = save_incident(tmp_path / "slurm-robust-1234", [], ends=(RankExit(0, "n1", AT_S, 0, 0, ()),))
    (folder / "circumstances.json").unlink()
    return slurm_of_scripts(tmp_path, {"jobid": "1234", "stdout": f"{tmp_path}/%j.out", "stderr": f"{tmp_path}/%j.out"})


@pytest.mark.parametrize("output", [f"{SOCKET}\n{STEPS}", "step 1\n", f"{SOCKET}\n"])
@pytest.mark.parametrize("word", ["1234", "1234-r0-1795228470"])
def test_the_incident_that_names_the_culprit_comes_first(site: Path, tmp_path: Path, word: str, output: str) -> None:
    """A warning is no root beside it, whether training is seen to go on or not."""
    (tmp_path / "1234.out").write_text(output)
    done = run(word, "--config", site)
    first, *rest = done.output.splitlines()
    assert first == "culprit: rank 3 on n2 ended first"
    assert "getent" not in done.output
    assert any(line.startswith("done:") and "spare in allocation: n2 is at fault" in line for line in rest)
    assert done.exit_code == 0
    told = json.loads(run(word, "--json", "--config", site).stdout)
    assert (told["leads"], told["root"]) == ("1234-r0-1795228470", None)
    assert [one["category"] for one in told["also"]] == ["name_service"] * (SOCKET in output)


def test_errors_of_earlier_attempts_come_after_a_live_hang(site: Path, tmp_path: Path) -> None:
    """They are shown all the same: nobody knows which attempt wrote them."""
    (tmp_path / "1234.out").write_text("KeyError: 'x'\n")
    lines = run("1234", "--config", site).output.splitlines()
    assert lines[0] == "culprit: rank 3 on n2 ended first"
    assert "key: A key is missing." in lines
    assert json.loads(run("1234", "--json", "--config", site).stdout)["category"] == "key"


def test_a_warning_that_training_survived_is_no_root(tmp_path: Path) -> None:
    """Steps came after it. Without them it may be all that a log says."""
    log = tmp_path / "log"
    log.write_text(f"{SOCKET}\n{STEPS}")
    done = run(log, "--json")
    assert (done.exit_code, json.loads(done.stdout)["root"]) == (1, None)
    assert [one["category"] for one in json.loads(done.stdout)["also"]] == ["name_service"]
    assert f"name_service: {SOCKET}" in run(log).output
    log.write_text(SOCKET)
    assert json.loads(run(log, "--json").stdout)["category"] == "name_service"


def test_a_client_without_a_name_is_no_finding(tmp_path: Path) -> None:
    """PyTorch says it of each connection where the network has no reverse DNS, uses the address, and goes on."""
    log = tmp_path / "log"
    log.write_text(
        "[W1127 12:03:00.720178624 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
    )
    told = json.loads(run(log, "--json").stdout)
    assert (told["root"], told["also"]) == (None, [])


@pytest.mark.parametrize("state", ["RUNNING", "FAILED"])
def test_a_job_that_runs_is_said_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """And for how long it has been silent, and how to see where its ranks stand; of one that has ended, nothing."""
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "1234.out"
    output.write_text("step 1\n")
    silent_since_s = time.time() - 720
    os.utime(output, (silent_since_s, silent_since_s))
    site = slurm_of_scripts(tmp_path, {"jobid": "1234", "state": state, "stdout": str(output), "stderr": str(output)})
    done = run("1234", "--config", site)
    first, second, third, *_ = done.output.splitlines()
    told = json.loads(run("1234", "--json", "--config", site).stdout)
    assert first == "Nothing in the log says what happened."
    if state == "FAILED":
        assert "srobust stacks" not in done.output
        assert told["silent_since_s"] is None
        return
    assert re.match(r"now: +job 1234 runs; its last line or step is 12 min( \d+ s)? old \(", second)
    assert third.split() == ["where", "its", "ranks", "stand:", "srobust", "stacks", "1234"]
    assert told["silent_since_s"] == pytest.approx(silent_since_s)


@pytest.mark.parametrize(
    ("ours", "silent_s"),
    [
        (["srobust: 23:50:00 silence suspected", "srobust: 00:49:59 note", "srobust: 00:50:00 note"], 3600),
        (["srobust: 09:00:01 note", "srobust: 09:00:00 note", '{"at_s": 1.5, "kind": "note"}'], 0),
        (["srobust: 08:00:00 note", "step 2", "srobust: 09:00:00 note"], 0),
        (["srobust run: a word without a time"], 0),
    ],
)
def test_our_own_lines_are_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: list[str], silent_s: float
) -> None:
    """What we write at the end of the output of a job that hangs is not its last line: that is older."""
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "1234.out"
    output.write_text("\n".join(["step 1", *ours]) + "\n")
    site = slurm_of_scripts(tmp_path, {"jobid": "1234", "state": "RUNNING", "stdout": str(output), "stderr": "/no"})
    told = json.loads(run("1234", "--json", "--config", site).stdout)
    assert told["silent_since_s"] == pytest.approx(time.time() - silent_s, abs=60)
