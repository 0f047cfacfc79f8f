"""Several attempts in one output: the last one's error is the root, and those before it are told as earlier."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.diagnose.findings import findings, matcher
from slurm_robust.diagnose.large_files import scan
from slurm_robust.diagnose.root import diagnose, diagnose_attempts

KILLED = "srun: error: k2: task 1: Killed"
ENDED = "srobust: 09:20:03 the training step ended with exit code 137"
RESTART = "srobust: 09:20:04 restart in place: rank 1 on k2 died first: SIGKILL"
ANEW = "srobust: 09:20:05 srun was started anew for the training step; it may use k1,k2"
STOP = "srobust: 09:21:09 stop: the same failure three times in a row"
VAGUE = ["Traceback (most recent call last):", '  File "/w/train.py", line 9, in load', "RuntimeError: half of it"]
REQUEUED = "slurmstepd-k1: error: *** JOB 57 ON k1 CANCELLED AT 2026-11-27T09:20:05 DUE TO {} ***"
TERMINATED = [
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    "srun: error: k2: task 1: Killed",
]


def test_the_error_of_the_last_attempt_is_the_root() -> None:
    """A rank that was killed in the first attempt did not stop the job, though its line says as much."""
    log = [KILLED, ENDED, RESTART, ANEW, *VAGUE, RESTART, ANEW, *VAGUE, STOP]
    found = findings(log)
    last = diagnose_attempts(found)
    assert last.root is not None
    assert (last.root.text, last.root.number, last.root.attempt) == (VAGUE[-1], 11, 2)
    assert [(one.text, one.attempt) for one in last.earlier] == [(VAGUE[-1], 1), (KILLED, 0)]
    assert [one.attempt for one in findings([*log[:4], "srobust: 09:21:00 training at step 1, 2 ranks", KILLED])] == [
        0,
        1,
    ]


@pytest.mark.parametrize("last", [[], ["loading"], ["WARNING: ImportError: no apex, falling back"]])
def test_an_attempt_in_which_nothing_broke_has_no_root(last: list[str]) -> None:
    """The job is told by the attempt before it; of a log without attempts nothing changes."""
    found = diagnose_attempts(findings([KILLED, RESTART, ANEW, *last]))
    assert found.root is not None
    assert (found.root.text, found.earlier) == (KILLED, ())
    for log in (VAGUE, [KILLED, *VAGUE], []):
        assert diagnose_attempts(findings(log)) == diagnose(findings(log))


@pytest.mark.parametrize("why", ["JOB REQUEUE", "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "PREEMPTION"])
@pytest.mark.parametrize(
    "told",
    [
        ["srobust: 09:20:20 training at step 11, 2 ranks on k1,k3", *VAGUE],
        ["srobust: 09:20:20 step 10 is verified: /ck/step-10", *VAGUE],
        [*VAGUE, STOP],
    ],
)
def test_a_requeue_is_a_next_attempt_where_a_line_of_ours_shows_that_it_began(why: str, told: list[str]) -> None:
    """Slurm appends to the output; what srun says of the old step stays the old attempt's."""
    log = [KILLED, "srobust: 09:20:04 requeue into a seat: k2", REQUEUED.format(why), *TERMINATED, *told]
    last = diagnose_attempts(findings(log))
    assert last.root is not None
    assert (last.root.text, last.root.attempt) == (VAGUE[-1], 1)
    assert KILLED in last.earlier[0].text


def test_what_ranks_print_as_a_requeue_ends_them_is_of_the_old_attempt() -> None:
    """Without a line of ours nothing shows a next attempt: a plain job's log is read as before."""
    log = [KILLED, REQUEUED.format("JOB REQUEUE"), *TERMINATED, *VAGUE]
    assert {one.attempt for one in findings(log)} == {0}
    assert diagnose_attempts(findings(log)) == diagnose(findings(log))


def test_attempts_are_told_apart_in_gigabytes_too(tmp_path: Path) -> None:
    """An error of the last attempt is read, also where the same was read often in those before."""
    path = tmp_path / "job.log"
    path.write_text("\n".join([*[KILLED] * 40, RESTART, ANEW, *["loss 2.3"] * 40, KILLED]))
    scanned = scan([path], matcher())
    last = diagnose_attempts(scanned.found)
    assert last.root is not None
    assert (last.root.attempt, scanned.lines[last.root.number][1]) == (1, 83)


def test_a_line_of_ours_behind_a_progress_bar_is_ours_too() -> None:
    """A bar ends without a newline; what stands before our line is read."""
    quoted = "srobust: 09:20:03 the watch step ended (exit 1): RuntimeError: CUDA error: unspecified launch failure"
    assert findings([f" 12%|#   | 3/9{quoted}", f"0: loss 2.3{quoted}"]) == []
    found = findings([f"KeyError: 'x'{ANEW}", VAGUE[-1]])
    assert [(one.text, one.attempt) for one in found] == [("KeyError: 'x'", 0), (VAGUE[-1], 1)]
