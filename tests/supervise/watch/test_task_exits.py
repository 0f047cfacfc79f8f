from __future__ import annotations

import pytest

from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.reported.fleet import Fleet
from slurm_robust.supervise.watch.output import TaskExit
from slurm_robust.supervise.watch.task_exits import SRUN_FIRST_S, TaskExits

KILLED = TaskExit(3, "n2", None, 9, "Killed")


def fleet(*ends: tuple[str, int, int, int], now_s: float = 100.0) -> Fleet:
    """The agents' book with these (step, task, code, signal), half a second ago."""
    made = Fleet("")
    for step, task, code, sig in ends:
        told = {"t": "exit", "n": "n2", "step_id": step, "task": task, "code": code, "sig": sig, "age_s": 0.5}
        made.feed(from_agent(told), now_s)
    return made


def test_srun_speaks_first() -> None:
    """Within a moment srun's word replaces the agent's; said later it is the same death, and no second one."""
    deaths, book = TaskExits(), fleet(("0", 3, 0, 9))
    deaths.add_from_agents(book, 100.0)
    assert deaths.due(100.5) == {}
    deaths.add_from_srun(KILLED, 100.6, oom_killed=True)
    assert [d.oom_killed for d in deaths.due(200.0).values()] == [True]
    deaths.drop(3)
    deaths.add_from_agents(book, 201.0)
    assert deaths.due(300.0) == {}


def test_without_srun_the_agents_word_is_taken_once() -> None:
    """With the moment at which it ended, not that at which it was heard of."""
    deaths, book = TaskExits(), fleet(("0", 3, 7, 0), ("0", 4, 0, 11))
    deaths.add_from_agents(book, 100.0)
    told = deaths.due(100.0 + SRUN_FIRST_S)
    assert [(d.task.task, d.task.code, d.task.signal, d.at_s) for d in told.values()] == [
        (3, 7, 0, 99.5),
        (4, None, 11, 99.5),
    ]
    deaths.drop(3)
    deaths.drop(4)
    deaths.add_from_srun(TaskExit(3, "n2", 7, 0, ""), 110.0, oom_killed=False)
    deaths.add_from_agents(book, 111.0)
    assert deaths.due(200.0) == {}


def test_a_task_that_finished_is_no_death() -> None:
    """Exit code 0."""
    deaths = TaskExits()
    deaths.add_from_agents(fleet(("0", 3, 0, 0)), 100.0)
    assert deaths.due(200.0) == {}


def test_the_next_step_has_its_own_deaths() -> None:
    """A job that is watched as a whole: its task 3 may end in each step, told by one or by both."""
    deaths, book = TaskExits(), fleet(("0", 3, 7, 0))
    deaths.add_from_agents(book, 100.0)
    deaths.add_from_srun(TaskExit(3, "n2", 7, 0, ""), 100.1, oom_killed=False)
    deaths.drop(3)
    book.feed(
        from_agent({"t": "exit", "n": "n2", "step_id": "1", "task": 3, "code": 8, "sig": 0, "age_s": 0.0}),
        200.0,
    )
    deaths.add_from_agents(book, 200.0)
    assert [d.task.code for d in deaths.due(202.0).values()] == [8]


@pytest.mark.parametrize("wrong", [{"task": "x"}, {"code": None}, {"age_s": "soon"}, {"step_id": []}])
def test_garbled_words_are_counted(wrong: dict[str, object]) -> None:
    """And taken for nothing."""
    made = Fleet("")
    said = {"t": "exit", "n": "n2", "step_id": "0", "task": 1, "code": 1, "sig": 0, "age_s": 0.0, **wrong}
    made.feed(from_agent(said), 1.0)
    assert (len(made.ends), made.garbled) == ((1, 0) if "step_id" in wrong else (0, 1))
