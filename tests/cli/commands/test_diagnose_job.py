"""`srobust diagnose JOBID` and `INCIDENT`: from a job's traces to what broke."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from diagnosis_material import AT_S, CUDA, LOST, run, save_incident, slurm_of_scripts

from slurm_robust.cli.commands.diagnose import _completed
from slurm_robust.diagnose.findings import findings
from slurm_robust.diagnose.signature import signature
from slurm_robust.localize.evidence import RaisedException, RankExit


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site whose Slurm knows job 1234, which writes into `out/`; nothing of it is where one types."""
    (tmp_path / "out").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return slurm_of_scripts(
        tmp_path,
        {"jobid": "1234", "stdout": f"{tmp_path}/out/%x-%j.out", "stderr": f"{tmp_path}/out/e-%j.err", "name": "train"},
    )


def test_a_job_is_diagnosed_by_its_own_output(site: Path, tmp_path: Path) -> None:
    """Slurm's patterns are filled in; both files are read, and said."""
    out, err = tmp_path / "out" / "train-1234.out", tmp_path / "out" / "e-1234.err"
    out.write_text("step 1\n")
    err.write_text("Traceback (most recent call last):\nKeyError: 'x'\n")
    done = run("1234", "--config", site)
    assert done.exit_code == 0, done.output
    assert "key: A key is missing." in done.output
    assert f"{err}:2" in done.output
    assert f"read:       {out}, 2 lines" in done.output
    told = json.loads(run("1234", "--json", "--config", site).stdout)
    assert (told["job"], told["read"], told["incidents"]) == ("1234", [str(out), str(err)], [])


KILLED = "srun: error: k2: task 1: Killed"
RELAUNCHED = "srobust: 09:20:05 srun was started anew for the training step; it may use k1,k2"


def test_of_several_attempts_the_last_ones_error_is_the_root(site: Path, tmp_path: Path) -> None:
    """An earlier attempt's is told as that, with its place; of two files, one may not tell them apart."""
    out, err = tmp_path / "out" / "train-1234.out", tmp_path / "out" / "e-1234.err"
    vague = "Traceback (most recent call last):\nRuntimeError: half of it\n"
    err.write_text(f"{KILLED}\n{RELAUNCHED}\n{vague}")
    done = run("1234", "--config", site).output
    assert f"RuntimeError: half of it\n            {err}:4, attempt 2" in done
    assert f"earlier:    killed: {KILLED} ({err}:1, attempt 1)" in done
    told = json.loads(run("1234", "--json", "--config", site).stdout)
    assert (told["root"]["attempt"], [one["attempt"] for one in told["earlier"]]) == (2, [1])
    out.write_text(vague)
    err.write_text(f"{KILLED}\n{RELAUNCHED}\nsrun: error: k2: task 1: Exited with exit code 1\n")
    told = json.loads(run("1234", "--json", "--config", site).stdout)
    assert (told["root"]["file"], told["root"]["attempt"]) == (str(out), 2)


def test_a_job_without_output_is_diagnosed_by_its_last_incident(site: Path, tmp_path: Path) -> None:
    """The last words of its ranks; what is missing is said, and so is what its incident came to."""
    save_incident(tmp_path / "out" / "slurm-robust-1234", ["Traceback (most recent call last):", "KeyError: 'x'"])
    done = run("1234", "--config", site)
    assert done.exit_code == 0, done.output
    assert "rank 3 on n2, line 2 of its last ones" in done.output
    assert "2 ranks ended, first rank 3 on n2 (exit code 1)" in done.output
    assert "spare in allocation: n2 is at fault" in done.output
    assert f"{tmp_path}/out/train-1234.out: the job's output by Slurm, not there" in done.output


def test_an_incident_is_found_by_its_id_and_by_its_folder(site: Path, tmp_path: Path) -> None:
    """Its own last words count; the output holds other attempts' errors too, and is named."""
    folder = save_incident(tmp_path / "out" / "slurm-robust-1234", ["KeyError: 'x'"])
    out = tmp_path / "out" / "train-1234.out"
    out.write_text("ImportError: no module named y\n")
    told = json.loads(run(folder.name, "--json", "--config", site).stdout)
    assert (told["category"], told["root"]["rank"], told["root"]["node"]) == ("key", 3, "n2")
    assert told["incidents"][0]["ended"][0] == {"rank": 3, "node": "n2", "at_s": AT_S, "exit_code": 1, "signal": 0}
    assert f"srobust diagnose {out}" in run(folder.name, "--config", site).output
    by_folder = json.loads(run(folder, "--json", "--config", site).stdout)
    assert by_folder["root"] == told["root"]
    assert json.loads(run(folder.parent, "--json", "--config", site).stdout)["root"] == told["root"]


def test_an_incident_that_says_nothing_is_completed_by_the_output(site: Path, tmp_path: Path) -> None:
    """Last words that are only consequences are not the end."""
    folder = save_incident(tmp_path / "out" / "slurm-robust-1234", ["Watchdog caught collective operation timeout"])
    (tmp_path / "out" / "train-1234.out").write_text("KeyError: 'x'\n")
    told = json.loads(run(folder.name, "--json", "--config", site).stdout)
    assert (told["category"], told["root"]["rank"]) == ("key", None)
    assert [finding["category"] for finding in told["followed"]] == ["comm_timeout"]


@pytest.mark.parametrize(("faults", "blame"), [({"n2": LOST}, "node"), ({"n1": LOST}, "either"), ({}, "either")])
def test_a_cuda_error_beside_an_xid_is_the_nodes(
    site: Path, tmp_path: Path, faults: dict[str, str], blame: str
) -> None:
    """On the same node only; the category stays, and the reason is said. So by the incident and by the output."""
    folder = save_incident(tmp_path / "out" / "slurm-robust-1234", [CUDA], faults=faults)
    (tmp_path / "out" / "train-1234.out").write_text(f"step 1\n[rank3]: {CUDA}\n")
    for word in (folder.name, "1234"):
        told = json.loads(run(word, "--json", "--config", site).stdout)
        assert (told["category"], told["blame"]) == ("cuda_error", blame)
        assert ("fallen off the bus" in told["blame_why"]) == (blame == "node")


def test_what_it_resembles(site: Path, tmp_path: Path) -> None:
    """An incident of another job with the same signature: what was done there, and that it helped."""
    (found,) = findings([CUDA])
    cause = {"category": "cuda_error", "signature": signature(found), "line": CUDA}
    before = "99-r0-1795000000"
    save_incident(tmp_path / "out" / "slurm-robust-99", ["x"], name=before, cause=cause, helped=True)
    folder = save_incident(tmp_path / "out" / "slurm-robust-1234", [CUDA], cause=cause)
    (one,) = json.loads(run(folder.name, "--json", "--config", site).stdout)["resembles"]
    assert (one["incident"], one["helped"], one["nodes"]) == (before, True, ["n2"])
    assert one["done"] == "spare in allocation without n2"
    assert "it helped: spare in allocation without n2; training went on" in run(folder.name, "--config", site).output


def test_a_file_goes_first(site: Path, tmp_path: Path) -> None:
    """Also one that has the name of a job."""
    Path("1234").write_text("KeyError: 'x'\n")
    (tmp_path / "out" / "train-1234.out").write_text("ImportError: no module named y\n")
    assert json.loads(run("1234", "--json", "--config", site).stdout)["category"] == "key"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nonsense"], 2, "no file of that name, no job id (123, 123_4, 123+0) and no incident's id"),
        (["."], 2, "a folder without an incident in it"),
        (["1234", "a.out"], 2, "1234: no such file. Type files of one job, or one JOBID, or one INCIDENT alone"),
        (["x" * 300], 2, "cannot be read: File name too long"),
        (["1234"], 3, "job 1234: neither its output nor a folder slurm-robust-1234 was found"),
        (["77"], 3, "accounting storage is disabled"),
        (["77"], 3, "srobust diagnose FILE"),
        (["77-r0-1795228470"], 3, "incident 77-r0-1795228470: its folder was not found"),
        (["1234-r5-1795228470"], 3, "srobust diagnose slurm-robust-1234/1234-r5-1795228470"),
    ],
)
def test_a_wrong_word_says_what_to_type_next(site: Path, words: list[str], code: int, says: str) -> None:
    """What happened, to which thing, and what to type."""
    done = run(*words, "--config", site)
    assert done.exit_code == code, done.output
    assert says in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("private", "uid", "says"), [("jobs,usage", 1000, True), ("none", 1000, False), ("jobs", 0, False)]
)
def test_a_job_that_slurm_hides_may_be_anothers(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: str, uid: int, *, says: bool
) -> None:
    """With PrivateData=jobs Slurm answers others as if it did not know the job; root sees all."""
    monkeypatch.setattr("os.geteuid", lambda: uid)
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho 'PrivateData             = {private}'\n")
    scontrol.chmod(0o755)
    told = " ".join(run("77", "--config", site).stderr.split())
    assert ("or it is another user's" in told) is says
    assert ("its owner types srobust diagnose 77, or root with sudo" in told) is says


def test_the_names_of_the_jobs_nodes_do_not_leave_the_machine(site: Path, tmp_path: Path) -> None:
    """Also those that do not look like names of machines."""
    folder = save_incident(tmp_path / "out" / "slurm-robust-1234", ["FluxError: n2 lost n1"])
    shown = run(folder.name, "--hint-page", "--config", site).stdout
    assert "FluxError: <name> lost <name>" in shown


def test_without_slurm_the_folders_here_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is said."""
    monkeypatch.chdir(tmp_path)
    save_incident(tmp_path / "slurm-robust-1234", ["KeyError: 'x'"])
    config = tmp_path / "robust.yaml"
    config.write_text(f"slurm: {{bin_dir: {tmp_path}/none}}\n")
    done = run("1234", "--config", config)
    assert done.exit_code == 0, done.output
    assert "key: A key is missing." in done.output
    assert "none/squeue" in done.output


def test_a_job_that_slurm_has_forgotten_names_its_output_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its story says where its output went; a file of another user's is not read for it."""
    monkeypatch.chdir(tmp_path)
    out, lines = tmp_path / "gpt-1234.out", "Traceback (most recent call last):\nKeyError: 'x'\n"
    out.write_text(lines)
    folder = tmp_path / "slurm-robust-1234"
    folder.mkdir()
    told = {"at_s": 1.0, "kind": "training", "text": "training at step 1", "output": [str(out), "/none"]}
    (folder / "story.jsonl").write_text(f"no JSON\n{json.dumps(told)}\n")
    config = tmp_path / "robust.yaml"
    config.write_text(f"slurm: {{bin_dir: {tmp_path}/none}}\n")
    done = run("1234", "--config", config)
    assert done.exit_code == 0, done.output
    assert f"{out}:2" in done.output
    if os.geteuid() == 0:
        os.chown(out, 12345, 12345)
        assert run("1234", "--config", config).exit_code != 0


def test_what_the_job_has_written_into_its_folder_is_no_trusted_text(site: Path, tmp_path: Path) -> None:
    """Garbled files are named, a pipe is not waited for, and nothing reaches the terminal as a command."""
    folder = save_incident(tmp_path / "out" / "slurm-robust-1234", ["KeyError: '\x1b]0;x\x07\x9b'"])
    assert "\x1b" not in run(folder.name, "--config", site).output
    (folder / "incident.json").write_text("[" * 100_000)
    done = run(folder.name, "--config", site)
    assert done.exit_code == 0, done.output
    assert "incident.json: not an incident" in done.output
    (folder / "circumstances.json").unlink()
    os.mkfifo(folder / "circumstances.json")
    assert run(folder.name, "--config", site).exit_code == 1


def test_jobs_and_incidents_are_completed(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with a folder here; else files, as the shell knows them."""
    monkeypatch.chdir(tmp_path / "out")
    save_incident(Path("slurm-robust-1234"), ["x"])
    assert [item.value for item in _completed(None, None, "12")] == ["1234", "1234-r0-1795228470"]  # type: ignore[arg-type]
    assert [item.type for item in _completed(None, None, "tr")] == ["file"]  # type: ignore[arg-type]


def test_a_rank_that_raised_and_had_not_ended_is_read(site: Path, tmp_path: Path) -> None:
    """Its lines are the root; the ends of others only followed."""
    lines = ["Watchdog caught collective operation timeout"]
    folder = save_incident(
        tmp_path / "out" / "slurm-robust-1234", lines, raised={2: RaisedException(5.0, ("KeyError: 'x'",))}
    )
    told = json.loads(run(folder.name, "--json", "--config", site).stdout)
    assert (told["category"], told["root"]["rank"], told["root"]["node"]) == ("key", 2, "n2")


def test_a_line_that_names_no_rank_is_of_the_only_node_whose_ranks_ended(site: Path, tmp_path: Path) -> None:
    """Then the XID of that node counts; with ends on two nodes nobody knows whose line it is."""
    for number, nodes in enumerate((("n2", "n2"), ("n1", "n2"))):
        folder = save_incident(
            tmp_path / "out" / "slurm-robust-1234",
            [],
            name=f"1234-r{number}-1795228470",
            faults={"n2": LOST},
            ends=tuple(RankExit(r, n, AT_S, 1, 0, (), shared_lines=("x", CUDA)) for r, n in enumerate(nodes)),
        )
        told = json.loads(run(folder.name, "--json", "--config", site).stdout)
        assert (told["root"]["rank"], told["root"]["line"]) == (None, 2)
        assert told["blame"] == ("node" if nodes[0] == nodes[1] else "either")
    assert "line 2 of the last ones that name no rank" in run(folder.name, "--config", site).output
