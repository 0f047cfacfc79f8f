"""What a training remembers across attempts, and what two trainings of one script do not share."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_robust.core.model import Failure, FailureCause
from slurm_robust.marks.claim import STATE_WANTS_REQUEUE, STATE_WATCHING, Claim
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.launch import run_place
from slurm_robust.supervise.lineage import lineage_store
from slurm_robust.supervise.lineage.lineage import Lineage, LineageMemory, Tally

HANG = Failure("hang at x", ("n1",))


def test_failures_are_remembered_until_a_new_step() -> None:
    """Each attempt without one counts; one that came further starts the count anew."""
    first = Lineage("a").after(100, -1, HANG, in_place=False)
    assert (first.reached, first.fruitless, first.failures) == (100, 0, (HANG,))
    second = first.after(100, 90, HANG, in_place=True)
    assert (second.fruitless, second.failures, second.restarts_in_place) == (1, (HANG, HANG), 1)
    further = second.after(101, 90, None, in_place=False)
    assert (further.fruitless, further.failures, further.restarts_in_place) == (0, (), 0)


def test_failed_starts_are_counted_for_one_checkpoint() -> None:
    """A demotion gives the next older checkpoint all its tries; fruitless attempts are counted on."""
    from_100 = Lineage("a", reached=120).after(100, 100, HANG, in_place=False).after(-1, 100, HANG, in_place=False)
    assert (from_100.start_step, from_100.failed_starts, from_100.fruitless) == (100, 2, 2)
    from_90 = from_100.after(-1, 90, HANG, in_place=False)
    assert (from_90.start_step, from_90.failed_starts, from_90.fruitless) == (90, 1, 3)
    stepped = from_90.after(95, 90, HANG, in_place=False)
    assert (stepped.failed_starts, stepped.fruitless) == (0, 4)
    anew = stepped.after(-1, -1, HANG, in_place=False)
    assert (anew.start_step, anew.failed_starts) == (-1, 0)


def test_an_outage_counts_neither_against_the_training_nor_against_its_checkpoint() -> None:
    """It is remembered, so that the next pause is longer."""
    outage = Failure("died: storage: Stale file handle", ("n1",), FailureCause.SHARED, "storage")
    before = Lineage("a", reached=120, fruitless=1, start_step=100, failed_starts=1, restarts_in_place=1)
    after = before.after(-1, 100, outage, in_place=True, waited=True)
    assert after == replace(before, failures=(outage,))
    assert after.after(130, 100, outage, in_place=True, waited=True).failures == (outage,)
    assert before.after(-1, 100, outage, in_place=True).fruitless == 2, "once nothing is waited for any more, it counts"


def test_what_a_node_reports_counts_neither_against_the_training_nor_against_its_checkpoint() -> None:
    """An attempt that was ended for it has not failed; its own steps count as ever."""
    report = Failure("node: node_fault", ("n1",), FailureCause.NODE)
    before = Lineage("a", reached=120, fruitless=1, start_step=100, failed_starts=1, failures=(HANG,))
    assert before.after(-1, 100, report, in_place=False, excused=True) == before
    stepped = before.after(105, 100, report, in_place=False, excused=True)
    assert (stepped.fruitless, stepped.failed_starts, stepped.failures) == (1, 0, (HANG,)), "the checkpoint is good"
    further = before.after(130, 100, report, in_place=False, excused=True)
    assert (further.reached, further.fruitless, further.failed_starts, further.failures) == (130, 0, 0, ())


def test_a_requeued_run_goes_on_from_its_own_words() -> None:
    """The Comment is newer than the folder, where it speaks of this run."""
    said = Claim(STATE_WATCHING, "a", restart=1, step=140, fruitless=2, incident="i")
    before = Claim(STATE_WANTS_REQUEUE, "a", restart=0)
    kept = LineageMemory("k", {"k": Lineage("a", 120, 1, failures=(HANG,))})
    assert kept.of("k", said, before) == Lineage("a", 140, 2, "i", failures=(HANG,))
    assert LineageMemory().of("k", said, before) == Lineage("a", 140, 2, "i")  # no folder, or another machine's
    assert kept.of("k", Claim(STATE_WATCHING, "new"), None) == kept.runs["k"]  # no Comment that could be written


def test_the_preparing_run_does_not_wash_the_training_clean() -> None:
    """A script prepares, then trains. After each requeue the first succeeds, and the second still knows its tries."""
    trained = Lineage("t", 120, fruitless=2, incident="i", failures=(HANG,))
    kept = LineageMemory("train", {"train": trained})
    wanted = Claim(STATE_WANTS_REQUEUE, "t", restart=0, step=120, fruitless=2, incident="i")
    said = Claim(STATE_WATCHING, "t", restart=1, step=120, fruitless=2, incident="i")
    prepares = kept.of("prepare", said, wanted)
    assert (prepares.reached, prepares.fruitless, prepares.incident) == (-1, 0, "")
    assert prepares.id != "t"
    after = LineageMemory("prepare", kept.runs)
    assert after.of("train", Claim(STATE_WATCHING, "fresh", restart=1), None) == trained


def test_a_run_that_is_over_is_forgotten(tmp_path: Path) -> None:
    """Another training may stand in its place in the next attempt; the other runs of the script stay."""
    folder = IncidentFolder(tmp_path)
    tally = Tally(5.0, 2, 7)
    lineage_store.save(folder, "a", Lineage("1", 5), Tally())
    lineage_store.save(folder, "b", Lineage("2", 6), Tally())
    assert lineage_store.load(folder) == LineageMemory("b", {"a": Lineage("1", 5), "b": Lineage("2", 6)})
    lineage_store.save(folder, "a", None, tally)
    assert lineage_store.load(folder) == LineageMemory("a", {"b": Lineage("2", 6)}, tally)


def test_a_memory_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    """Half a file, another version's, or nothing."""
    folder = IncidentFolder(tmp_path)
    assert lineage_store.load(folder) == LineageMemory()
    for content in (b"half a fi", b"[]", b'{"runs": 5}', b'{"id": "abc", "failures": []}'):
        (tmp_path / "lineage.json").write_bytes(content)
        assert lineage_store.load(folder) == LineageMemory()


def test_an_error_message_is_remembered_beyond_a_new_step() -> None:
    """The same again on its node is that node's, however far the training came in between; a hang's place is not."""
    words = Failure("died: cuda error: unspecified launch failure", ("n1",), FailureCause.WORDS)
    known = Lineage("a").after(100, -1, words, in_place=True).after(200, 100, HANG, in_place=True)
    assert (known.older, known.failures) == ((words,), (HANG,))
    assert known.until(200) is known
    further = known.until(201)
    assert (further.older, further.failures, further.restarts_in_place) == ((words,), (), 0)
    assert known.after(300, 200, words, in_place=True).older == (words,)


def test_a_launch_that_slurm_refused_is_no_fruitless_attempt() -> None:
    """It is remembered, so that it is not tried for ever, and nothing else changes."""
    refused = Failure("died: launch", (), FailureCause.SLURM)
    known = Lineage("a", reached=100, fruitless=1, failures=(HANG,))
    after = known.after(-1, 90, refused, in_place=False)
    assert (after.reached, after.fruitless, after.failed_starts, after.failures) == (100, 1, 0, (HANG, refused))


def test_each_run_of_an_attempt_has_its_place(tmp_path: Path) -> None:
    """The order of the runs tells them apart, not their words. A supervisor that is started anew has its launcher's."""
    folder = IncidentFolder(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        try:
            assert run_place.place(folder, 0, first.pid) == 1
            assert run_place.place(folder, 0, second.pid) == 2
            assert run_place.place(folder, 0, first.pid) == 1, "the same launcher"
            assert run_place.place(folder, 1, second.pid) == 1, "the next attempt counts anew"
            first.kill()
            first.wait()
            assert run_place.place(folder, 0, os.getpid()) == 3, "a killed launcher keeps its place"
        finally:
            first.kill()
            second.kill()


def test_runs_that_begin_together_have_different_places(tmp_path: Path) -> None:
    """`srobust run … &` many times: no lock is held, and none is needed."""
    source = (
        "import os, sys, pathlib; from slurm_robust.supervise.launch import run_place; "
        "from slurm_robust.supervise.incident_folder import IncidentFolder; sys.stdin.read(); "
        "print(run_place.place(IncidentFolder(pathlib.Path(sys.argv[1])), 0, os.getpid()))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", source, str(tmp_path / "job")]
    pipe = subprocess.PIPE
    runs = [subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=env) for _ in range(8)]
    for run in runs:
        assert run.stdin is not None
        run.stdin.close()  # all of them at once, as far as possible
        run.stdin = None
    places = sorted(int(run.communicate(timeout=60)[0]) for run in runs)
    assert places == list(range(1, 9))


def test_places_are_told_apart_where_nothing_can_be_written(tmp_path: Path) -> None:
    """A full disk: a place is had all the same, and training goes on."""
    (tmp_path / "calls").mkdir()  # no file can be written there
    assert run_place.place(IncidentFolder(tmp_path, quiet=True), 0, os.getpid()) == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "calls").write_text("0 5 77\n0 6 8")  # the last line was cut off by a full disk
    assert run_place.place(IncidentFolder(tmp_path / "other"), 0, os.getpid()) == 3


def test_what_was_reached_does_not_fall() -> None:
    """An attempt that resumed at an older step has told that step, and was then requeued by somebody else."""
    kept = LineageMemory("k", {"k": Lineage("a", reached=120, fruitless=1)})
    said = Claim(STATE_WATCHING, "a", restart=1, step=101, fruitless=1)
    assert kept.of("k", said, Claim(STATE_WATCHING, "a", restart=0)).reached == 120


def test_the_incident_of_an_attempt_that_slurm_ended_before_it_spoke_is_gone_on_with() -> None:
    """A node died: the page is written, and Slurm requeued the job before its Comment told of the incident."""
    kept = LineageMemory("k", {"k": Lineage("a", reached=24, incident="9-r0-1795227700")})
    for before in ("", "9-r0-1795227617"):
        said = Claim(STATE_WATCHING, "a", restart=1, step=24, incident=before)
        assert kept.of("k", said, Claim(STATE_WATCHING, "a", restart=0)).incident == "9-r0-1795227700"
    later = Claim(STATE_WATCHING, "a", restart=1, step=24, incident="9-r0-1795227800")
    assert kept.of("k", later, Claim(STATE_WATCHING, "a", restart=0)).incident == "9-r0-1795227800"


def test_launches_that_come_to_nothing_are_counted_for_the_whole_job() -> None:
    """Whatever run began them, within an hour; what comes further than before is not counted."""
    tally = Tally()
    for turn in range(3):
        tally = tally.after(Lineage(f"turn {turn}"), -1, 1000.0 + turn)
    assert (tally.count, tally.since_s) == (3, 1000.0)
    tally = tally.after(Lineage("other"), 5, 1010.0)
    assert tally.count == 3, "a new step"
    tally = tally.after(Lineage("a loop begins this one anew"), 5, 1020.0)
    assert tally.count == 4, "no training comes further by being begun anew"
    tally = tally.after(Lineage("goes on", reached=2), 3, 1030.0)
    assert tally.count == 4, "slower than the other, but further than before"
    assert tally.at(1000.0 + 3599) == tally
    assert tally.at(1000.0 + 3600) == Tally()
    assert tally.at(0.0) == Tally(), "a clock that was set back"


@pytest.mark.parametrize(
    ("known", "first", "offered", "again"),
    [
        (Lineage("a"), 0, -1, False),  # the first attempt
        (Lineage("a", reached=25, first_step=0), 1, -1, True),
        (Lineage("a", reached=25, first_step=0), 20, -1, False),
        (Lineage("a", reached=1000, first_step=1), 3, -1, True),  # bars and sampling tell no exact first step
        (Lineage("a", reached=1000, first_step=50), 50, -1, True),  # a line every 50 steps
        (Lineage("a", reached=1000, first_step=50), 950, -1, False),
        (Lineage("a", reached=0, first_step=0), 0, -1, False),  # it had done nothing
        (Lineage("a", reached=120, first_step=1), 1, 100, True),  # it was given a checkpoint, and did not load it
        (Lineage("a", reached=120, first_step=1), 100, 100, False),
        (Lineage("a", reached=120, first_step=1), 5, 4, False),  # an old checkpoint is a checkpoint
        (Lineage("a", reached=3, first_step=0), 1, 4500, False),  # its lines count epochs, its checkpoints steps
        (Lineage("a", reached=120), 101, -1, False),  # nobody remembers how the first attempt began
        (Lineage("a", reached=390, first_step=1, falls=True), 1, -1, False),  # a bar of its own for each epoch
    ],
)
def test_an_attempt_that_starts_again_is_known(known: Lineage, first: int, offered: int, *, again: bool) -> None:
    """By its first step, as far as steps tell it."""
    learnt, found = known.began(first, offered, relaunched=True)
    assert found is again
    assert learnt.first_step == (known.first_step if known.first_step >= 0 else first)
    assert learnt.reached == known.reached
    assert learnt.in_place is not True or not again


def test_what_restarts_taught_is_remembered() -> None:
    """A restart in place that started again, one that resumed, and a requeue that was no better."""
    known = Lineage("a", reached=100, first_step=0)
    assert known.began(0, -1, relaunched=True)[0].in_place is False
    assert known.began(91, -1, relaunched=True)[0].in_place is True
    assert known.began(0, -1, relaunched=False)[0].in_place is True, "no worse than the requeue"
    after = replace(known, in_place=False, falls=True).after(101, -1, HANG, in_place=False)
    assert (after.in_place, after.first_step, after.falls) == (False, 0, True)
