"""`srobust status`, `incidents`, `nodes`, `standby`, `breaker`: tables for people, JSON for tools."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_slurm import FakeSlurm
from helpers import mounted_tmpfs
from snapshots import published

from slurm_robust.cli import state
from slurm_robust.cli.commands.incidents import _show, _took, _where_ranks_stood
from slurm_robust.cli.commands.status import _step
from slurm_robust.cli.main import cli
from slurm_robust.config.http import HttpConfig
from slurm_robust.config.site import Config, DaemonConfig
from slurm_robust.core.model import Mode
from slurm_robust.core.text import duration
from slurm_robust.daemon.api.state_lines import encode
from slurm_robust.daemon.api.state_snapshot import write
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.service import Daemon
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.marks.claim import Claim, render


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A robust.yaml whose daemon has lived through one incident, with a node drained by a person."""
    slurm = FakeSlurm()
    job = slurm.run_job(("n1", "n2"), name="evil\x1b[2Jname", std_out="/home/ann/slurm-1.out")
    slurm.state.nodes["n6"] = replace(slurm.state.nodes["n6"], flags=frozenset(("DRAIN",)), reason="fan (ann)")
    state_dir = tmp_path / "state"
    journal = Journal.open(state_dir)
    context = DaemonContext(Config(), slurm, journal, account="root", mode=Mode.ACT, clock=lambda: slurm.now_s)
    daemon = Daemon(context)

    async def story() -> None:
        for moment in range(30):
            if moment == 8:
                claim = Claim("wants", "line", incident="i1", evict=("n2",), why="rank 3 hangs", conclusion="culprit")
                slurm.state.jobs[1] = replace(job, comment=render(claim))
            slurm.pass_s(1)
            await daemon._poll()

    asyncio.run(story())
    write(state_dir, encode({**published(daemon), "at_s": 4e9}))
    journal.close()
    path = tmp_path / "robust.yaml"
    path.write_text(f"daemon: {{state_dir: {state_dir}, http: {{port: 1}}}}\n")
    return path


def run(site: Path, *args: str) -> Result:
    """Type it."""
    return CliRunner().invoke(cli, [*args, "--config", str(site)])


def test_tables(site: Path) -> None:
    """What an engineer on call looks for stands there, and nothing that a terminal would take for a command."""
    for words, wanted in (
        (("status",), ("mode act", "drained", "n6", "breaker closed", "i1")),
        (("incidents",), ("rank 3 hangs", "running", "n2")),
        (
            ("incidents", "i1"),
            ("point_job_at_seat", "accepted", "/home/ann/slurm-robust-1", "requeue into a seat: without n2"),
        ),
        (("nodes",), ("fan (ann)", "somebody else", "idle")),
        (("standby",), ("none",)),
        (("breaker",), ("closed",)),
    ):
        result = run(site, *words)
        assert result.exit_code == 0, (words, result.output, result.exception)
        assert "\x1b" not in result.output
        assert max(map(len, result.output.splitlines())) <= 100, result.output
        assert not [line for line in result.output.splitlines() if line != line.rstrip()]
        for word in wanted:
            assert word in result.output, (words, result.output)


def test_the_age_of_a_step_stands_beside_it() -> None:
    """A job tells its steps once a minute: the number alone looks as if it stood still."""
    assert _step({"step": 107, "step_at_s": 997.0}, 1000.0) == "107, 3.0 s ago"
    assert _step({"step": 107, "step_at_s": None}, 1000.0) == "107"
    assert _step({"step": 107}, 1000.0) == "107", "an older daemon's"
    assert _step({"step": -1, "step_at_s": None}, 1000.0) == ""
    assert _step({"step": 107, "step_at_s": None, "told_at_s": 947.0}, 1000.0) == "107, told 53 s ago"
    assert _step({"step": 107, "step_at_s": None, "told_at_s": 995.0}, 1000.0) == "107"


@pytest.mark.parametrize(("size", "said"), [(0, "standby.size in robust.yaml is 0; to hold"), (1, "no node is free")])
def test_a_pool_that_is_not_there_is_explained(site: Path, size: int, said: str) -> None:
    """No size was chosen, or no node is free; and what follows from that."""
    site.write_text(site.read_text() + f"standby: {{size: {size}}}\n")
    output = " ".join(run(site, "standby").output.split())
    assert said in output
    assert ("systemctl reload srobustd" if size == 0 else "a pool is made once one is") in output


@pytest.mark.parametrize(("mode", "size", "said"), [("observe", 1, True), ("act", 1, False), ("observe", 0, False)])
def test_an_observing_daemon_makes_no_pool(site: Path, mode: str, size: int, said: bool) -> None:
    """So a pool that is wanted, and lacks nobody, is explained."""
    site.write_text(site.read_text() + f"standby: {{size: {size}}}\n")
    state = json.loads((site.parent / "state" / "state.json").read_text())
    pool = {"name": "gpu", "partition": "gpu", "gres": "", "held": 0, "unchecked": 0, "wanted": 1, "short": 0}
    state.update(mode=mode, standby=[{**pool, "ends_at_s": None}])
    (site.parent / "state" / "state.json").write_text(json.dumps(state))
    assert ("In mode observe no pool is made" in run(site, "standby").output) is said


def test_a_daemon_that_has_just_begun_says_that_it_still_reads(tmp_path: Path) -> None:
    """Not that nothing runs: in tables and in JSON, until it has read everything once."""
    slurm = FakeSlurm()
    slurm.run_job(("n1", "n2"), comment=render(Claim("watching", "line")))
    state_dir = tmp_path / "state"
    journal = Journal.open(state_dir)
    context = DaemonContext(Config(), slurm, journal, account="root", mode=Mode.ACT, clock=lambda: slurm.now_s)
    daemon = Daemon(context)
    path = tmp_path / "robust.yaml"
    path.write_text(f"daemon: {{state_dir: {state_dir}, http: {{port: 1}}}}\n")
    for polls, reading in ((0, True), (1, True), (9, False)):
        for _ in range(polls):
            slurm.pass_s(1)
            asyncio.run(daemon._poll())
        write(state_dir, encode({**published(daemon), "at_s": time.time()}))
        output = run(path, "status").output
        assert ("still reads nodes and jobs" in output) is reading
        assert ("Supervised jobs" in output) is ("Nothing needs" in output) is not reading
        assert json.loads(run(path, "status", "--json").output)["reading"] is reading
    journal.close()


def test_a_full_state_folder_is_told_at_once(tmp_path: Path) -> None:
    """Not only once the snapshot is old, which takes half a minute."""
    with mounted_tmpfs(tmp_path / "state", "1m") as folder:
        at_s = time.time()
        state = {"at_s": at_s, "cluster": "c", "mode": "act", "breaker": {"open": False, "why": ""}, "nodes": []}
        (folder / "state.json").write_text(json.dumps({**state, "jobs": [], "standby": [], "incidents": []}))
        site = tmp_path / "robust.yaml"
        site.write_text(f"daemon: {{state_dir: {folder}, http: {{port: 1}}}}\n")
        assert "Nothing needs a person now." in run(site, "status").output
        (folder / "else").write_bytes(bytes(os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize))
        said = " ".join(run(site, "status").output.split())
        assert f"Needs a person now: the folder {folder} is full, and the daemon does nothing" in said
        assert f"df -h {folder}" in said


def test_back_after_is_counted_from_the_fault_to_the_first_new_step() -> None:
    """As in the report and on the dashboard."""
    times = {"fault": 100.0, "accepted": 108.0, "running": 111.0}
    assert _took({"times": {**times, "first_new_step": 112.0}}) == duration(12.0)
    assert _took({"times": times}) == ""


def test_a_plan_that_leaves_no_node_out_names_none(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that is stopped does not go on without somebody."""
    (one,) = json.loads(run(site, "incidents", "--json").output)
    _show({**one, "plan": {**one["plan"], "road": "stop", "evict": [], "standby": [], "reason": "its own error"}})
    assert "stop: its own error" in capsys.readouterr().out


def test_incidents_json_is_what_the_design_says(site: Path) -> None:
    """The documented keys, from the journal; by id, by job and by key."""
    (one,) = json.loads(run(site, "incidents", "--json").output)
    assert {"id", "job", "attempt", "verdict", "plan", "actions", "times"} <= set(one)
    assert one["plan"]["evict"] == ["n2"]
    assert one["times"]["accepted"] <= one["times"]["running"]
    for name in (one["id"], one["job"], one["key"]):
        assert json.loads(run(site, "incidents", name, "--json").output) == [one]
    assert run(site, "incidents", "nope").exit_code == 1
    number = one["key"].partition(".")[0]
    assert run(site, "incidents", number).exit_code == 0, "as messages name an array's task"


def test_json_of_the_others(site: Path) -> None:
    """Each is one JSON document."""
    assert json.loads(run(site, "status", "--json").output)["mode"] == "act"
    drained = json.loads(run(site, "nodes", "--state", "drained", "--json").output)
    assert drained == json.loads(run(site, "nodes", "--room", "drained", "--json").output), "the option's old name"
    assert [(n["name"], n["owner"]) for n in drained] == [("n6", "foreign")]
    assert json.loads(run(site, "breaker", "--json").output)["open"] is False
    assert json.loads(run(site, "standby", "--json").output) == []


def test_breaker_reset_reaches_the_journal(site: Path) -> None:
    """What a person types stands in the journal, with who it was."""
    state_dir = site.parent / "state"
    journal = Journal.open(state_dir)
    journal.put("breaker_open", "many")
    journal.close()
    assert run(site, "breaker", "reset").exit_code == 0
    journal = Journal.open(state_dir, read_only=True)
    assert journal.get("breaker_open") == ""
    assert (
        journal.db.execute("SELECT text FROM events WHERE what = 'breaker.reset'").fetchone()[0].startswith("reset by")
    )
    journal.close()


def test_no_daemon_says_what_to_do(tmp_path: Path) -> None:
    """Neither file nor HTTP: one error that names both and what to type."""
    path = tmp_path / "robust.yaml"
    path.write_text(f"daemon: {{state_dir: {tmp_path}, http: {{port: 1}}}}\n")
    result = run(path, "status")
    assert result.exit_code == 1
    assert "systemctl status srobustd" in result.output


def test_durations() -> None:
    """Short ones with a tenth, long ones with two units."""
    seconds = (0.84, 42.0, 200.0, 7500.0, 273600.0)
    assert [duration(s) for s in seconds] == ["0.8 s", "42 s", "3 min 20 s", "2 h 5 min", "3 d 4 h"]


def test_standby_size() -> None:
    """The number that the policy gives, alone on its line; wrong numbers are wrong usage."""
    argv = ["standby", "size", "--machines", "1000", "--daily-failure-rate", "0.0012"]
    assert CliRunner().invoke(cli, argv).output == "4\n"
    assert json.loads(CliRunner().invoke(cli, [*argv, "--json"]).output)["standby"] == 4
    assert CliRunner().invoke(cli, [*argv, "--quantile", "0"]).exit_code == 2


def test_a_report_that_is_a_link_is_not_shown(tmp_path: Path) -> None:
    """The job chooses the folder: what root may read elsewhere stays there."""
    (tmp_path / "secret.md").write_text("## Where the ranks stood\n\nsecret\n")
    (tmp_path / "report.md").symlink_to(tmp_path / "secret.md")
    assert "secret" in _where_ranks_stood(str(tmp_path / "secret.md"))
    assert _where_ranks_stood(str(tmp_path / "report.md")) == ""


def test_nodes_by_name(site: Path) -> None:
    """Those that are named, as Slurm writes nodes; a name that nobody knows is an error."""
    named = json.loads(run(site, "nodes", "n[1-2],n6", "--json").output)
    assert [node["name"] for node in named] == ["n1", "n2", "n6"]
    wrong = run(site, "nodes", "n1", "n99")
    assert (wrong.exit_code, "Slurm knows no node n99" in wrong.output) == (1, True)
    assert run(site, "nodes", "n[1").exit_code == 2


def test_a_file_with_an_error_hides_no_state(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon goes on with its settings of before, and that is when people look."""
    known = DaemonConfig(state_dir=str(site.parent / "state"), http=HttpConfig(port=1))
    monkeypatch.setattr(state, "Config", lambda: Config(daemon=known))
    site.write_text("mode: perhaps\n")
    for words in (["status"], ["nodes"], ["standby"], ["incidents"]):
        done = run(site, *words)
        assert done.exit_code == 0, done.output
        assert "robust.yaml" in done.output
        assert "settings of before" in done.output
    known = DaemonConfig(state_dir=str(site.parent / "nowhere"))
    done = run(site, "status")
    assert done.exit_code == 1
    assert "perhaps" in done.output
