"""How is it told from which step training goes on?"""

from __future__ import annotations

import pytest

from slurm_robust.supervise.incident.resumption import first_step_words


@pytest.mark.parametrize(
    ("first", "reached", "words"),
    [
        (101, 107, "first step 101 (107 had been reached)"),
        (107, 107, "first step 107 (107 had been reached)"),
        (108, 107, "first new step 108"),
        (1, -1, "first new step 1"),
    ],
)
def test_a_step_that_was_made_before_is_not_called_new(first: int, reached: int, words: str) -> None:
    """From the checkpoint of step 100, steps are made again until the one that was reached."""
    assert first_step_words(first, reached) == words


@pytest.mark.parametrize(
    ("begun", "words"),
    [(21, "first step 21 (35 had been reached)"), (-1, "at step 30 (35 had been reached)")],
)
def test_the_step_at_which_the_incident_closes_is_not_called_the_first(begun: int, words: str) -> None:
    """Log lines are read a few times a second: training is some steps further than where it began."""
    assert first_step_words(30, 35, begun) == words
    assert first_step_words(36, 35, begun) == "first new step 36"
