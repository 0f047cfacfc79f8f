"""Options, attempts, the fleet's book, the folder, the incident's page: each by itself."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_robust import config
from slurm_robust.checkpoint import save
from slurm_robust.model import Conclusion, Mode, Plan, Road, Suspect, Verdict
from slurm_robust.supervise.incident import incident_page
from slurm_robust.supervise.incident.incident_folder import Folder
from slurm_robust.supervise.launch import attempt_settings, options
from slurm_robust.supervise.launch.srun_command import UsageError
from slurm_robust.supervise.watch.fleet import Fleet
from slurm_robust.supervise.watch.suspicion import SilenceLevel, assess

# -- options --------------------------------------------------------------------------------------------------------


def test_options_go_over_the_sites_choice() -> None:
    """What the engineer types wins for this job."""
    own = options.read({"mode": "on", "hang-timeout": "90", "layout": "tp=2,pp=4"}, {})
    applied = own.applied(config.Config())
    assert (applied.mode, applied.supervise.action_limit_s, own.layout) == (Mode.ACT, 90.0, {"tp": 2, "pp": 4})
    ordered = options.read({"layout": "tp=2,pp=4,order=pp-tp-dp"}, {})
    assert (ordered.layout, ordered.layout_order) == ({"tp": 2, "pp": 4}, "pp-tp-dp")
    assert options.read({}, {"SROBUST_CHECKPOINT_DIR": "/ck"}).checkpoint_dir == "/ck"


def test_what_sbatch_was_given_holds_where_nothing_is_typed() -> None:
    """`sbatch --robust=observe --robust-layout=… script`, with `srobust run` in the script; typed there, that holds."""
    env = {"SROBUST_MODE": "observe", "SROBUST_HANG_TIMEOUT": "90", "SROBUST_LAYOUT": "tp=2,order=pp-tp"}
    own = options.read({}, env)
    assert (own.mode, own.off, own.hang_timeout_s) == (Mode.OBSERVE, False, 90.0)
    assert (own.layout, own.layout_order) == ({"tp": 2}, "pp-tp")
    typed = options.read({"mode": "", "hang-timeout": "5", "layout": "dp=4"}, env)
    assert (typed.mode, typed.hang_timeout_s, typed.layout, typed.layout_order) == (Mode.ACT, 5.0, {"dp": 4}, "")
    assert options.read({}, {"SROBUST_MODE": "off"}).off


def test_a_wrong_variable_is_passed_over() -> None:
    """It may have been set far away: told, as the plugin does, and the job runs."""
    env = {"SROBUST_MODE": "perhaps", "SROBUST_HANG_TIMEOUT": "soon\n", "SROBUST_LAYOUT": "tp=0"}
    assert options.read({}, env) == options.RunOptions()
    told = options.mistakes({}, env)
    assert [line.split("=")[0] for line in told] == ["SROBUST_MODE", "SROBUST_HANG_TIMEOUT", "SROBUST_LAYOUT"]
    assert "expected on, observe or off" in told[0]
    assert all("\n" not in line for line in told)
    assert len(options.mistakes({"mode": "on"}, env)) == 2
    assert options.mistakes({}, {"SROBUST_MODE": "on", "SROBUST_LAYOUT": ""}) == []


@pytest.mark.parametrize(
    "own",
    [
        {"mode": "perhaps"},
        {"hang-timeout": "soon"},
        {"hang-timeout": "0"},
        {"layout": "tp=0"},
        {"layout": "x=2"},
        {"layout": "order=tp-pp"},
        {"spare": ""},
    ],
)
def test_wrong_options_say_what_is_allowed(own: dict[str, str]) -> None:
    """Names the option."""
    with pytest.raises(UsageError, match=f"--robust(-{next(iter(own))})?"):
        options.read(own, {})


# -- attempts -------------------------------------------------------------------------------------------------------


def test_ranks_are_given_the_checkpoint_and_the_users_variables_stay(tmp_path: Path) -> None:
    """SROBUST_RESUME_*; flight-recorder settings only where the user has none of his own."""
    save(tmp_path, 7, {"x": 1})
    start = attempt_settings.look_up(str(tmp_path))
    assert start.step == 7
    env = attempt_settings.environment({"TORCH_FR_BUFFER_SIZE": "5"}, "1.0.1", "abc", start, tmp_path)
    assert env["SROBUST_RESUME_STEP"] == "7"
    assert env["SROBUST_RESUME_PATH"].endswith("step-00000007")
    assert "TORCH_FR_BUFFER_SIZE" not in env
    assert env["TORCH_INCLUDE_STACK_TRACE"] == "0", "it would need the GIL, which a hung rank may hold"


def test_no_checkpoint_folder_says_nothing_and_an_empty_one_says_start_anew(tmp_path: Path) -> None:
    """Without a folder the program decides; with an empty one every rank is told that there is none."""
    assert "SROBUST_RESUME_PATH" not in attempt_settings.environment(
        {}, "a", "b", attempt_settings.look_up(""), tmp_path
    )
    assert (
        attempt_settings.environment({}, "a", "b", attempt_settings.look_up(str(tmp_path)), tmp_path)[
            "SROBUST_RESUME_PATH"
        ]
        == ""
    )


def test_a_relaunch_has_fresh_rendezvous_values() -> None:
    """The first surviving node, another port for each attempt; an address of the script's own stays."""
    first = attempt_settings.fresh_rendezvous({"MASTER_ADDR": "n3", "MASTER_PORT": "29500"}, "1.0.2", ["n3", "n4"])
    second = attempt_settings.fresh_rendezvous({"MASTER_ADDR": "n3", "MASTER_PORT": "29500"}, "1.0.3", ["n4", "n5"])
    assert first["MASTER_PORT"] != second["MASTER_PORT"]
    assert first["MASTER_ADDR"] == "n3"
    assert attempt_settings.fresh_rendezvous({"MASTER_ADDR": "10.0.0.7"}, "1.0.2", ["n4"]) == {}
    assert attempt_settings.fresh_rendezvous({}, "1.0.2", ["n4"]) == {}


# -- fleet ----------------------------------------------------------------------------------------------------------


def rank(fleet: Fleet, number: int, node: str, pid: int = 100) -> None:
    """An agent says that it found a rank."""
    fleet.feed({"t": "rank", "n": node, "rank": number, "pid": pid, "step_id": "0", "world": 2, "at": 1.0}, 1.0)


def test_the_book_follows_what_agents_tell() -> None:
    """Found, progress, gone; the step is the one that all have completed."""
    fleet = Fleet("1.0.1")
    rank(fleet, 0, "n1")
    rank(fleet, 1, "n2", 200)
    fleet.feed({"t": "p", "n": "n1", "r": [[0, 9, "train", 5.0, 10, 0.5, None, None]]}, 5.0)
    fleet.feed({"t": "p", "n": "n2", "r": [[1, 8, "train", 5.0, 9, "nan", None, None]]}, 5.0)
    assert (fleet.step, fleet.last_sign_s, fleet.rank_nodes, fleet.step_ids) == (8, 5.0, {0: "n1", 1: "n2"}, ["0"])
    fleet.feed({"t": "gone", "n": "n2", "rank": 1, "pid": 200, "at": 6.0}, 6.0)
    assert [r.rank for r in fleet.alive] == [0]
    fleet.feed({"t": "gone", "n": "n1", "rank": 0, "pid": 7, "at": 6.0}, 6.0)
    assert [r.rank for r in fleet.alive] == [0], "the end of an older process of that rank"


def test_the_first_new_step_is_what_the_ranks_say() -> None:
    """Not the one that training has reached by the time somebody looks; unknown where a rank only told an old one."""
    fleet = Fleet("1.0.1")
    assert fleet.first_step(20) is None
    for number, at_s in ((0, 5.0), (1, 5.5)):
        rank(fleet, number, f"n{number + 1}")
        fleet.feed({"t": "marks", "n": "n1", "rank": number, "marks": {}, "layout": {}, "first": [21, at_s]}, at_s)
        fleet.feed({"t": "p", "n": "n1", "r": [[number, 23, "train", 7.0, 3, None, None, None]]}, 7.0)
    assert fleet.step == 23
    assert fleet.first_step(20) == (21, 5.5)
    assert fleet.first_step(-1) == (21, 5.5)
    assert fleet.first_step(21) is None


def test_a_watch_that_comes_after_the_hang_knows_how_long_a_step_takes() -> None:
    """`srobust attach` to a job that hangs already: its first step and its last tell the pace, so silence is seen."""
    fleet, limits = Fleet("a"), config.SuperviseConfig()
    for number in (0, 1):
        rank = {"rank": number, "pid": 70 + number, "step_id": "0", "world": 2, "at": 1.0}
        fleet.feed({"t": "rank", "n": "n1", **rank}, 1.0)
        fleet.feed({"t": "marks", "n": "n1", "rank": number, "marks": {}, "layout": {}, "first": [10, 100.0]}, 200.0)
        fleet.feed({"t": "p", "n": "n1", "r": [[number, 60, "train", 150.0, 51, None, None, None]]}, 200.0)
    silent = [info.progress for info in fleet.ranks.values() if info.progress is not None]
    assert fleet.garbled == 0
    assert fleet.steps.p99_s() == pytest.approx(1.0)
    assert assess(silent, fleet.steps, 152.0, limits).level is SilenceLevel.QUIET
    found = assess(silent, fleet.steps, 200.0, limits)
    assert (found.level, found.ranks) == (SilenceLevel.SUSPECT, (0, 1))


def test_localised_is_when_what_stands_was_concluded() -> None:
    """A first look that tells nothing does not count; the same verdict again does not move it."""
    made = incident_page.Record("1-r0-5", "1", "1.0.1", 5.0)
    made.judged(Verdict(Conclusion.UNDETERMINED, "all wait"))
    made.times["localised"] = 1.0
    culprit = Verdict(Conclusion.CULPRIT, "rank 2", (Suspect("n3", (2,), 0.5, "rank 2"),))
    made.judged(culprit)
    assert made.times["localised"] > 1.0
    made.times["localised"] = 2.0
    made.judged(replace(culprit, reason="rank 2, surer", corroborated=True))
    assert made.times["localised"] == 2.0
    assert made.verdict is not None
    assert made.verdict.corroborated


@pytest.mark.parametrize(
    "message",
    [
        {"t": "p", "n": "n1", "r": [[0]]},
        {"t": "p", "n": "n1", "r": [[5, 1, "train", 1.0, 1, None, None, None]]},
        {"t": "rank", "n": "n1"},
        {"t": "cap", "n": "n1", "id": 1, "blob": "!!!"},
        {"t": "cap", "n": "n1", "id": 1, "blob": base64.b64encode(b"no zlib").decode()},
        {"t": "state", "n": "n1", "rank": 9, "s": "T", "pid": 1},
        {"t": "clean", "n": "n1", "id": "x", "left": ["a"]},
        {},
    ],
)
def test_a_message_without_sense_is_counted_and_passed_over(message: dict[str, object]) -> None:
    """One odd agent never ends the supervision."""
    fleet = Fleet("")
    fleet.expect(1)
    fleet.feed(message, 1.0)
    assert fleet.garbled == 1


def test_captures_are_kept_as_bytes_and_bounded() -> None:
    """What a node sent, unpacked; nothing reads it here. What nobody asked for, or waits for any more, is dropped."""
    fleet = Fleet("")
    blob = base64.b64encode(zlib.compress(b'{"v":1}')).decode()
    fleet.expect(4)
    for number in (3, 4):
        fleet.feed({"t": "cap", "n": "n1", "id": number, "blob": blob}, 1.0)
    assert fleet.archives == {4: {"n1": b'{"v":1}'}}
    assert fleet.archives.pop(4)
    fleet.feed({"t": "cap", "n": "n2", "id": 4, "blob": blob}, 2.0)
    fleet.feed({"t": "clean", "n": "n1", "id": 0, "left": [5]}, 2.0)
    assert (fleet.archives, fleet.clean, fleet.garbled) == ({}, {}, 0)


def test_a_node_that_was_heard_once_and_fell_silent_is_told() -> None:
    """One that never spoke is not: its agent may still be starting."""
    fleet = Fleet("")
    fleet.feed({"t": "hb", "n": "n1"}, 10.0)
    assert fleet.silent_nodes(("n1", "n2"), 20.0, 5.0) == ["n1"]
    assert fleet.silent_nodes(("n1", "n2"), 12.0, 5.0) == []


# -- folder ---------------------------------------------------------------------------------------------------------


def test_the_story_is_on_disk_and_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for people, the same for tools."""
    Folder(tmp_path / "f").tell("suspected", "silence", ranks=(1,))
    line = json.loads((tmp_path / "f" / "story.jsonl").read_text())
    assert (line["kind"], line["text"], line["ranks"]) == ("suspected", "silence", [1])
    assert "silence" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="needs root to mount a small disk")
def test_a_full_disk_is_said_once_and_nothing_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training goes on; the story is on stderr."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        folder = Folder(disk / "f")
        folder.write("big", b"x" * 100_000)
        for _ in range(50):
            folder.tell("note", "y" * 1000)
        err = capsys.readouterr().err
        assert err.count("cannot write") == 1
        assert err.count("y" * 1000) == 50
        assert not list(disk.rglob(".big*")), "no half-written file is left"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "f").write_text("")
    folder = Folder(tmp_path / "f")
    folder.tell("note", "hello")
    assert folder.write("x", "y") is None
    assert capsys.readouterr().err.count("cannot write") == 1


# -- incident -------------------------------------------------------------------------------------------------------


def record() -> incident_page.Record:
    """An incident with everything in it."""
    made = incident_page.Record("1-r0-5", "1", "1.0.1", 5.0, tree="main  {0-3}")
    made.stamp("fault", 5.0)
    made.stamp("suspected", 7.5)
    made.verdict = Verdict(Conclusion.CULPRIT, "rank 2 is stopped", (Suspect("n3", (2,), 0.95, "stopped"),))
    made.plan = Plan(Road.SEAT, "requeue without n3", ("n3",))
    return made


def test_an_incident_survives_the_requeue_whole() -> None:
    """The next attempt's supervisor goes on with the times, the verdict and the plan."""
    assert incident_page.load(record().to_json().encode()) == record()
    assert incident_page.load(b"{}") is None
    assert incident_page.load(b"\xff garbage") is None


def test_the_page_says_who_what_when_and_why() -> None:
    """What the on-call reads at 3 a.m."""
    page = record().page()
    for text in ("n3", "rank 2 is stopped", "requeue without n3", "2.5 s", "main  {0-3}"):
        assert text in page


def test_a_stamp_is_set_once() -> None:
    """The first time counts."""
    made = record()
    made.stamp("suspected", 99.0)
    assert made.times["suspected"] == 7.5
