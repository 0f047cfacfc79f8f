"""What a training remembers across attempts, and what two trainings of one script do not share."""

from __future__ import annotations

from pathlib import Path

from slurm_robust.claim import STATE_WANTS_REQUEUE, STATE_WATCHING, Claim
from slurm_robust.model import Failure, FailureCause
from slurm_robust.supervise import lineage
from slurm_robust.supervise.folder import Folder
from slurm_robust.supervise.lineage import Lineage, Memory

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


def test_a_requeued_run_goes_on_from_its_own_words() -> None:
    """The Comment is newer than the folder, where it speaks of this run."""
    said = Claim(STATE_WATCHING, "a", restart=1, step=140, fruitless=2, incident="i")
    before = Claim(STATE_WANTS_REQUEUE, "a", restart=0)
    kept = Memory("k", {"k": Lineage("a", 120, 1, failures=(HANG,))})
    assert kept.of("k", said, before) == Lineage("a", 140, 2, "i", failures=(HANG,))
    assert Memory().of("k", said, before) == Lineage("a", 140, 2, "i")  # no folder, or another machine's
    assert kept.of("k", Claim(STATE_WATCHING, "new"), None) == kept.runs["k"]  # no Comment that could be written


def test_the_preparing_run_does_not_wash_the_training_clean() -> None:
    """A script prepares, then trains. After each requeue the first succeeds, and the second still knows its tries."""
    trained = Lineage("t", 120, fruitless=2, incident="i", failures=(HANG,))
    kept = Memory("train", {"train": trained})
    wanted = Claim(STATE_WANTS_REQUEUE, "t", restart=0, step=120, fruitless=2, incident="i")
    said = Claim(STATE_WATCHING, "t", restart=1, step=120, fruitless=2, incident="i")
    prepares = kept.of("prepare", said, wanted)
    assert (prepares.reached, prepares.fruitless, prepares.incident) == (-1, 0, "")
    assert prepares.id != "t"
    after = Memory("prepare", kept.runs)
    assert after.of("train", Claim(STATE_WATCHING, "fresh", restart=1), None) == trained


def test_a_run_that_is_over_is_forgotten(tmp_path: Path) -> None:
    """The same command again, in a loop, is another training; the other runs of the script stay."""
    folder = Folder(tmp_path)
    lineage.save(folder, "a", Lineage("1", 5))
    lineage.save(folder, "b", Lineage("2", 6))
    assert lineage.load(folder) == Memory("b", {"a": Lineage("1", 5), "b": Lineage("2", 6)})
    lineage.save(folder, "a", None)
    assert lineage.load(folder) == Memory("a", {"b": Lineage("2", 6)})


def test_a_memory_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    """Half a file, another version's, or nothing."""
    folder = Folder(tmp_path)
    assert lineage.load(folder) == Memory()
    for content in (b"half a fi", b"[]", b'{"runs": 5}', b'{"id": "abc", "failures": []}'):
        (tmp_path / "lineage.json").write_bytes(content)
        assert lineage.load(folder) == Memory()


def test_a_run_is_named_by_its_whole_command_line() -> None:
    """Options belong to it: the same program on other nodes is another run."""
    assert lineage.run_key(["-N2", "--", "python", "t.py"]) == lineage.run_key(["-N2", "--", "python", "t.py"])
    assert lineage.run_key(["-N2", "--", "t.py"]) != lineage.run_key(["-N3", "--", "t.py"])
    assert lineage.run_key(["a b"]) != lineage.run_key(["a", "b"])


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
