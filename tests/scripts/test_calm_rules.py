"""What scripts/calm takes for harm, and the table that it draws."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
for _folder in ("calm_campaign", "calm_programs", "trials"):
    sys.path.append(str(ROOT / "scripts" / _folder))

import calm_catalogue  # noqa: E402 (scripts are no package)
import calm_site  # noqa: E402
import calm_table  # noqa: E402
from calm_rules import ANNOUNCED, HARMED, UNTOUCHED, Facts, difference, judge, judge_alone  # noqa: E402

PLAIN = Facts(states=("COMPLETED 0:0",), starts=("a rank 0", "a rank 1"), output=b"step 1\nstep 2\n", steps=1)
SUPERVISED = replace(PLAIN, steps=2, output=b"srobust: supervising 2 ranks\nstep 2\nstep 1\n", told=("training",))


def test_a_run_that_was_left_alone_is_untouched() -> None:
    """Our own lines, their order, and the step that watches are no harm."""
    assert judge(PLAIN, SUPERVISED).word == UNTOUCHED


def test_a_run_that_was_only_looked_at_is_announced() -> None:
    """A suspicion and captures change nothing."""
    assert judge(PLAIN, replace(SUPERVISED, told=("suspected", "captured"))).word == ANNOUNCED


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"states": ("FAILED 93:0",)}, "ended as FAILED 93:0, not as COMPLETED 0:0"),
        ({"requeues": 1}, "requeued 1 times"),
        ({"starts": ("a rank 0", "a rank 0", "a rank 1", "a rank 1")}, "started again: a rank 0 and 1 more"),
        ({"starts": ("a rank 0",)}, "never started: a rank 1"),
        ({"taken_out": ("n2 (IDLE+DRAIN)",)}, "out of service: n2 (IDLE+DRAIN)"),
        ({"steps": 3}, "3 steps, for 1 of the script and as many that watch"),
        ({"output": b"step 1\n"}, "output lacks: b'step 2'"),
        ({"output": b"step 1\nstep 2\nstep 2\n"}, "output has more: b'step 2'"),
        ({"ended": False}, "did not end"),
    ],
)
def test_each_difference_is_harm(changed: dict[str, Any], sentence: str) -> None:
    """Whatever differs from plain srun is named."""
    judgement = judge(PLAIN, replace(SUPERVISED, **changed))
    assert judgement.word == HARMED
    assert judgement.harms == [sentence]


def test_a_run_that_was_cut_is_only_blamed_for_what_was_seen() -> None:
    """The campaign ends a run that is harmed already: its end is then no fact."""
    cut = replace(SUPERVISED, ended=False, cut=True, requeues=1, output=b"", starts=("a rank 0",))
    assert judge(PLAIN, cut).harms == ["requeued 1 times"]


def test_slurms_lines_are_compared_without_nodes_but_with_codes() -> None:
    """Nodes, and tasks that share a line, are chance; the exit code is not."""
    left = b"srun: error: n3: task 0: Exited with exit code 3\nsrun: error: n4: task 1: Exited with exit code 3\n"
    together = b"srun: error: n[1-2]: tasks 0-1: Exited with exit code 3\n"
    assert difference(left, together) == ""
    assert difference(left, together.replace(b"code 3", b"code 4"))


def test_a_line_of_ours_amid_a_line_of_the_program_is_taken_out() -> None:
    """Both write to one file, and a long line of the program is written in pieces."""
    assert difference(b"sample 0: ok\nend\n", b"samsrobust: stacks of 2 ranks taken\nple 0: ok\nend\n") == ""
    quotes = b"0: srobust: restarted in place\n[srobust] asked the daemon\n"
    assert difference(quotes, b"[srobust] asked the daemon\n0: srobust: restarted in place\n") == ""
    assert difference(b"sample 0: ok\n", b"samsrobust: stacks of 2 ranks taken\nple 1: ok\n")


def test_an_agent_that_was_started_again_is_no_step_that_works() -> None:
    """On a busy machine an agent is silent for a while, and a second one is started beside it."""
    said = SUPERVISED.output + b"srobust: the agent of n2 is silent; starting another one there\n"
    assert judge(PLAIN, replace(SUPERVISED, steps=3, output=said)).word == UNTOUCHED
    assert judge(PLAIN, replace(SUPERVISED, steps=4, output=said)).word == HARMED


def test_that_a_step_had_to_wait_for_the_one_before_it_is_chance() -> None:
    """A line of srun's that comes now and then, supervised or not."""
    waits = b"srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
    assert difference(waits + b"srun: Step created for StepId=7.1\nend\n", b"end\n") == ""


def test_declared_noise_is_not_compared() -> None:
    """A program says which of its lines differ from run to run."""
    assert difference(b"took 3 s\n", b"took 4 s\n", ["^took"]) == ""


def test_a_program_has_to_do_what_it_says() -> None:
    """Under plain srun it ends with its declared code, and has started."""
    assert judge_alone(PLAIN, 0).word == UNTOUCHED
    assert judge_alone(replace(PLAIN, states=("FAILED 3:0",)), 3).word == UNTOUCHED
    assert "FAILED 1:0" in judge_alone(replace(PLAIN, states=("FAILED 1:0",)), 0).harms[0]
    assert judge_alone(replace(PLAIN, starts=()), 0).word == HARMED


def test_settings_are_the_defaults_at_scale_1_and_else_shorter_by_the_scale() -> None:
    """What waits for a program is scaled; what measures the machine is not."""
    assert calm_site.scaled_settings(1) == {}
    scaled = calm_site.scaled_settings(0.1)["supervise"]
    assert scaled["action_limit_s"] == pytest.approx(180)
    assert "capture_timeout_s" not in scaled


def test_every_program_says_what_it_does() -> None:
    """There are eighty at least, of ten kinds, and each has a sentence for the table."""
    programs = calm_catalogue.PROGRAMS
    assert len(programs) >= 80
    assert len({program.kind for program in programs.values()}) == 10
    for program in programs.values():
        assert program.what.endswith("."), program.name
        assert "|" not in program.what.replace("tar | gzip", ""), program.name


def test_the_table_has_a_row_for_each_program_with_before_and_now() -> None:
    """The worse of both supervised runs counts, and why."""
    lines = [
        {"program": "one-rank", "way": "plain", "judgement": UNTOUCHED, "harms": []},
        {"program": "one-rank", "way": "run", "judgement": ANNOUNCED, "harms": []},
        {"program": "one-rank", "way": "robust", "judgement": HARMED, "harms": ["requeued 1 times"]},
    ]
    results = calm_table.by_program(lines)
    drawn = calm_table.drawn(calm_catalogue.PROGRAMS.values(), results, results)
    assert "1 programs: 0 untouched, 0 announced, 1 harmed." in drawn
    assert "| 60 s | harmed under `sbatch --robust` | harmed under `sbatch --robust`: requeued 1 times |" in drawn
