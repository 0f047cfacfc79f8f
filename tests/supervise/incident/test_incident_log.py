"""The current incident, its files, and how many suspicions a job may have before they are ignored."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from supervised import World

from slurm_robust.core.model import Conclusion, Incident, Plan, Road, Signal, SignalKind, Suspect, Verdict
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.incident import incident_log
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.incident.resumption import Resumption, resumed_from
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.lineage.lineage_store import LineageStore


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A job."""
    made = World(tmp_path / "story")
    made.job.can_claim = False
    return made


def opened(world: World, fault_at_s: float = 5.0) -> IncidentLog:
    """A log with an open incident."""
    log = IncidentLog(world.session)

    async def opens() -> None:
        log.open("1.0.1", fault_at_s, "silence suspected")

    asyncio.run(opens())
    return log


def test_a_job_that_trips_a_suspicion_every_minute_is_left_alone_for_a_while(world: World) -> None:
    """Twelve that came to nothing are enough for an hour, which is said once, with what to do about it."""
    log = IncidentLog(world.session)
    investigated = 0
    for _ in range(180):
        world.clock.at_s += 60
        if not log.full:
            investigated += 1
            log.count_idle_suspicion()
    assert investigated == 3 * 12
    lines = [str(line["text"]) for line in world.story if "came to nothing" in str(line["text"])]
    assert len(lines) == 3
    assert "progress.phase" in lines[0]


def test_the_page_is_written_before_its_line_of_the_story(tmp_path: Path) -> None:
    """A tool that waits for `resumed` in the story reads the incident next: its last times are there by then."""
    seen: list[dict[str, Any]] = []

    class Reader(IncidentFolder):
        def log_event(self, kind: str, text: str, **data: Any) -> None:
            super().log_event(kind, text, **data)
            if kind == "resumed":
                seen.extend(json.loads(page.read_text())["times"] for page in tmp_path.glob("*/incident.json"))

    world = World(tmp_path)
    world.session.folder = Reader(tmp_path, quiet=True)
    log, attempt, store = opened(world, 1990.0), world.attempt(), LineageStore(world.session)
    world.finds_ranks(1)
    world.session.receive(
        from_agent({"t": "marks", "n": "n1", "rank": 0, "marks": {}, "layout": {}, "first": [6, 10.0]})
    )
    world.steps(6, ranks=1)
    start = AttemptStart(world.session, attempt, store)
    asyncio.run(Resumption(world.session, attempt, start, store, log).close_incident(6))
    now_s = world.clock.at_s
    assert seen == [{"fault": 1990.0, "suspected": now_s, "first_new_step": now_s - 10.0}]
    assert log.current is None


@pytest.mark.parametrize(
    ("offered", "first", "text"),
    [
        (20, 21, "step 20 (verified checkpoint)"),
        (20, 26, "step 20 (verified checkpoint, or something newer)"),
        (-1, 1, "the beginning"),
        (-1, 116, "what the program found by itself"),
        (20, -1, "step 20 (verified checkpoint)"),
        (-1, -1, "a step that was not seen"),
    ],
)
def test_where_training_went_on_from(offered: int, first: int, text: str) -> None:
    """A Checkpointer's memory is newer than any checkpoint that the supervisor knows of: no word says otherwise."""
    assert resumed_from(offered, first) == text


def test_localised_is_when_the_present_culprits_were_named(world: World) -> None:
    """A first verdict that names nobody does not count; the same verdict again does not move it."""
    log = opened(world)
    log.set_verdict(Verdict(Conclusion.UNDETERMINED, "all wait"))
    first_s = log.incident.times["localised"]
    world.clock.at_s += 10
    culprit = Verdict(Conclusion.CULPRIT, "rank 2", (Suspect("n3", (2,), 0.5, "rank 2"),))
    log.set_verdict(culprit)
    named_s = log.incident.times["localised"]
    assert named_s > first_s
    world.clock.at_s += 10
    log.set_verdict(replace(culprit, reason="rank 2, surer", corroborated=True))
    assert log.incident.times["localised"] == named_s
    assert log.incident.verdict is not None
    assert log.incident.verdict.corroborated


def test_a_time_is_set_once(world: World) -> None:
    """The first one counts."""
    log = opened(world)
    at_s = log.incident.times["suspected"]
    log.set_time("suspected", 99.0)
    assert log.incident.times["suspected"] == at_s


def test_an_incident_that_is_still_open_failed_before_its_first_new_step(world: World) -> None:
    """The next one is a new incident, and the page of the first says why it has no outcome."""
    log = opened(world)
    first = log.incident
    log.save()
    world.clock.at_s += 60
    asyncio.run(_open_again(log))
    assert log.incident.id != first.id
    assert log.incident.notes == ()
    pages = {incident["id"]: incident for incident in world.incidents}
    assert pages[first.id]["notes"] == ["The attempt that followed failed before its first new step."]
    assert first.notes == (), "the value itself never changes"


async def _open_again(log: IncidentLog) -> None:
    signal = Signal(SignalKind.RANK_EXITED, 6.0, "srun", "exit code 1", "n1", 0)
    incident = log.open("", 6.0, "rank 0 ended", signal)
    assert incident.signals == (signal,)
    assert incident.attempt == "fake.1.r0.1000000", "without a launch of ours the run of the job is its name"


def full() -> Incident:
    """An incident with everything in it."""
    return Incident(
        "1-r0-5",
        "1",
        "1.0.1",
        5.0,
        times={"fault": 5.0, "suspected": 7.5},
        verdict=Verdict(Conclusion.CULPRIT, "rank 2 is stopped", (Suspect("n3", (2,), 0.95, "stopped"),)),
        plan=Plan(Road.SEAT, "requeue without n3", ("n3",)),
        tree="main  {0-3}",
    )


def test_an_incident_survives_the_requeue_whole() -> None:
    """The next attempt's supervisor goes on with the times, the verdict and the plan."""
    assert incident_log.load(incident_log.to_json(full()).encode()) == full()
    assert incident_log.load(b"{}") is None
    assert incident_log.load(b"\xff garbage") is None


OLDER = """{"id": "5-r0-1795227617", "job": "5", "attempt": "5.0.9.1", "opened_at_s": 1795227617.2,
 "signals": [{"kind": "silence", "at_s": 1795227617.0, "source": "progress", "detail": "no progress for 9.1 s",
              "node": "", "rank": null, "evidence": {}}],
 "times": {"fault": 1795227608.0, "suspected": 1795227617.2, "captured": 1795227618.0, "localised": 1795227622.3,
           "decided": 1795227622.4, "stopped": 1795227622.9},
 "verdict": {"conclusion": "culprit", "reason": "rank 1 on n2 is stopped",
             "suspects": [{"node": "n2", "ranks": [1], "confidence": 0.95, "why": "stopped", "infrastructure": true,
                           "detail": ""}],
             "classes": [], "missing": ["the flight recorder"], "corroborated": true, "detail": ""},
 "plan": {"road": "seat", "reason": "requeue without n2", "evict": ["n2"], "exit_code": null, "roll_back": false},
 "outcome": "", "notes": ["a note"], "tree": "main  {0-1}\\n"}"""
"""As the release before this type wrote it."""


def test_an_older_incident_file_is_read_and_gone_on_with(world: World) -> None:
    """Keys and format are those of the first release; one that was closed, or is of this attempt, is not reopened."""
    name = "5-r0-1795227617"
    world.session.folder.write(f"{name}/incident.json", OLDER)
    log = IncidentLog(world.session)
    log.reopen(name)
    assert log.incident.notes == ("a note",)
    assert log.incident.times["running"] == world.clock.at_s
    log.save()
    (written,) = world.incidents
    before = json.loads(OLDER)
    assert {**written, "times": {**written["times"]}} == {
        **before,
        "times": {**before["times"], "running": world.clock.at_s},
        "cause": {},
    }
    assert list(written) == [*before, "cause"], "the keys keep their order"
    log.set_time("first_new_step")
    log.save()
    again = IncidentLog(world.session)
    for missing in (name, "nothing"):
        again.reopen(missing)
        assert again.current is None


def test_the_page_says_who_what_when_and_why() -> None:
    """What the on-call reads at 3 a.m."""
    page = incident_log.page(full())
    for text in ("n3", "rank 2 is stopped", "requeue without n3", "2.5 s", "main  {0-3}"):
        assert text in page
