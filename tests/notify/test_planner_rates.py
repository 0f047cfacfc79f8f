"""What a target is told, and when: never too much, nothing lost, in order; whatever happens and whatever it answers."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.notify.alert import EVENTS, Alert, Delivery, Letter
from slurm_robust.notify.planner import (
    DAY_S,
    HOUR_S,
    MAX_KEYS,
    MAX_WAITING,
    Rules,
    TargetState,
    answered,
    arrived,
    clock_set_back,
    ended,
    next_letter,
    over_by,
    remind,
)

START_S = 1_000_000.0


class Target:
    """A target with a clock of its own, and what it got."""

    def __init__(self, **rules: object) -> None:
        self.rules = Rules("t", **rules)  # type: ignore[arg-type]
        self.state, self.now_s = TargetState(), START_S
        self.got: list[tuple[float, Letter]] = []
        self.answer: Delivery | None = None
        """What it answers; None takes everything."""
        self.quiet = False

    def happens(self, key: str, event: str = "drain") -> None:
        """Something happens now."""
        arrived(self.state, Alert(self.now_s, event, key, f"{key} happened"), self.rules)

    def step(self, seconds: float = 1.0) -> None:
        """Time passes, and what is due is handed over; what is remembered survives a restart at any moment."""
        self.now_s += seconds
        remind(self.state, self.now_s)
        self.state = msgspec.json.decode(msgspec.json.encode(self.state), type=TargetState)
        letter = next_letter(self.state, self.rules, self.now_s, quiet=self.quiet)
        if letter is None:
            return
        if self.answer is None:
            self.got.append((self.now_s, letter))
            answered(self.state, Delivery(letter.id, "t", ok=True), self.now_s)
        else:
            answered(self.state, msgspec.structs.replace(self.answer, id=letter.id), self.now_s)

    def run(self, seconds: float, every_s: float = 10.0) -> None:
        """Many steps."""
        for _ in range(round(seconds / every_s)):
            self.step(every_s)

    @property
    def subjects(self) -> list[str]:
        """What it was told."""
        return [letter.subject for _, letter in self.got]


def failing(**more: object) -> Delivery:
    """An answer of a target that does not take it."""
    return Delivery("", "t", ok=False, message="answered 500", **more)  # type: ignore[arg-type]


def test_what_happens_is_told_at_once_and_alone() -> None:
    """Three things, three messages, in order."""
    target = Target()
    for key in ("a", "b", "c"):
        target.happens(key)
    target.run(3, 1)
    assert target.subjects == [f"[srobust] warning: {key} happened" for key in ("a", "b", "c")]


def test_a_burst_is_a_few_messages_and_one_summary() -> None:
    """Fifty at once, ten an hour: three alone, the next one tells of forty-seven; two are kept for what is critical."""
    target = Target()
    for number in range(50):
        target.happens(f"n{number}")
    target.run(60, 1)
    assert [letter.count for _, letter in target.got] == [1] * 3 + [47]
    assert "47 × drain" in target.subjects[-1]
    assert target.got[-1][1].lines[-2] == "- and 27 more"
    assert target.state.due == 0
    target.happens("later")
    target.run(600)
    assert len(target.got) == 4
    target.happens("breaker", "breaker")
    target.run(20)
    assert target.subjects[-1] == "[srobust] critical: breaker happened"
    target.run(900)
    assert target.subjects[-1] == "[srobust] warning: later happened"


def test_nothing_waits_for_the_end_of_a_bad_hour() -> None:
    """Each minute something else happens: each is told within a quarter of an hour, in ten messages an hour at most."""
    target = Target()
    for number in range(180):
        target.happens(f"n{number}", "hang")
        target.run(60, 10)
    waited = [told_s - alert.at_s for told_s, letter in target.got for alert in letter.alerts]
    assert max(waited) <= 15 * 60
    assert sum(letter.count for _, letter in target.got) > 160


def test_what_is_critical_is_neither_dropped_nor_hidden() -> None:
    """Behind three hundred stopped trainings of somebody, with a target that was away."""
    target = Target()
    target.answer = failing()
    target.happens("first")
    target.step()
    for number in range(300):
        target.happens(f"job {number}", "stop")
    target.happens("breaker", "breaker")
    target.answer = None
    target.run(HOUR_S)
    (_, summary) = target.got[1]
    assert summary.severity == "critical"
    assert summary.count == 301
    assert any("critical: breaker happened" in line for line in summary.lines)
    assert summary.alerts[-1].event == "breaker"


def test_what_repeats_is_told_once_and_then_that_it_lasts() -> None:
    """Every minute for forty minutes; then it ends, and the rest of it is told, too."""
    target = Target()
    for _ in range(40):
        target.happens("slurm", "daemon_error")
        target.run(60, 10)
    assert len(target.got) == 2
    assert target.subjects[1] == "[srobust] critical: Still, 30 times, for 29 min: slurm happened"
    target.run(2 * HOUR_S, 60)
    assert len(target.got) == 3
    assert " more times, last at 1970-01-12" in target.subjects[2]
    target.happens("slurm", "daemon_error")
    target.step()
    assert target.subjects[3] == "[srobust] critical: slurm happened"


def test_a_job_whose_runs_end_one_after_the_other_is_told_once() -> None:
    """Its script goes on: a message that the same goes on would come when nobody can do anything any more."""
    target = Target()
    for _ in range(10):
        target.happens("stop 28", "stop")
        target.run(300, 10)
    target.run(2 * HOUR_S, 60)
    assert target.subjects == ["[srobust] warning: stop 28 happened"]


def test_quiet_hours_hold_what_does_not_wake() -> None:
    """A drain waits, an open breaker does not; afterwards one summary."""
    target = Target()
    target.quiet = True
    for key in ("a", "b"):
        target.happens(key)
        target.run(600)
    target.happens("breaker", "breaker")
    target.run(600)
    assert target.subjects == ["[srobust] critical: breaker happened"]
    target.quiet = False
    target.run(60)
    assert [letter.count for _, letter in target.got] == [1, 2]


def test_a_target_that_is_away_is_tried_for_a_day() -> None:
    """Ever more seldom, up to every half hour; then it is given up, and the next message counts what was missed."""
    target = Target()
    target.answer = failing()
    target.happens("a")
    target.step()
    assert target.state.flight is not None
    waits = []
    for _ in range(9):
        waits.append(target.state.flight.next_try_at_s - target.now_s)
        target.step(waits[-1])
    assert waits == [10, 20, 40, 80, 160, 320, 640, 1280, 1800]
    target.run(1.2 * DAY_S, 600)
    assert target.state.given_up == 1
    target.answer = None
    target.happens("b")
    target.run(7200, 60)
    assert sum(letter.count for _, letter in target.got) == 2
    assert target.state.due == 0


def test_a_target_says_when_to_come_again() -> None:
    """Retry-After counts, but not for ever; what is refused for its own sake is not sent again."""
    target = Target()
    target.answer = failing(retry_after_s=900.0)
    target.happens("a")
    target.step()
    assert target.state.flight is not None
    assert target.state.flight.next_try_at_s == target.now_s + 900
    target.answer = failing(retry_after_s=1e9)
    target.step(900)
    assert target.state.flight.next_try_at_s == target.now_s + 6 * HOUR_S
    target.answer = failing(final=True)
    target.step(6 * HOUR_S)
    assert (target.state.flight, target.state.given_up, target.state.due) == (None, 1, 0)


def test_a_target_that_refuses_every_message_is_not_flooded() -> None:
    """As many tries an hour as messages."""
    target = Target(per_hour=3)
    target.answer = failing(final=True)
    for number in range(20):
        target.happens(f"n{number}")
        target.run(60, 1)
    assert target.state.failed <= 3


def test_a_clock_that_is_set_back_holds_nothing_up() -> None:
    """Nothing that is remembered lies in the future."""
    target = Target(per_hour=1)
    target.happens("a")
    target.run(10)
    target.answer = failing()
    target.happens("b")
    target.now_s -= 100 * DAY_S
    clock_set_back(target.state, target.now_s)
    target.answer = None
    target.run(HOUR_S + 20)
    assert len(target.got) == 2


def test_memory_is_bounded() -> None:
    """A target that is away while ten thousand things happen: the rest is counted."""
    target = Target()
    target.answer = failing()
    for number in range(10_000):
        target.happens(f"n{number}")
    assert len(target.state.waiting) == MAX_WAITING
    assert len(target.state.repetitions) == MAX_KEYS
    target.step()
    assert target.state.due == 10_000
    assert len(msgspec.json.encode(target.state)) < 300_000
    target.answer = None
    target.run(600)
    assert sum(letter.count for _, letter in target.got) == 10_000


Happening = st.tuples(
    st.sampled_from(["happens", "pass", "away", "back", "quiet", "awake"]),
    st.integers(0, 8),
    st.sampled_from(sorted(EVENTS)),
    st.sampled_from([1.0, 30.0, 400.0, 4000.0]),
)


@given(st.lists(Happening, max_size=120), st.sampled_from([1, 2, 3, 5, 10]))
def test_never_too_much_and_nothing_lost(story: list[tuple[str, int, str, float]], per_hour: int) -> None:
    """At most so many messages in any hour; each thing is told, counted in a message, or still waits; order is kept."""
    target = Target(per_hour=per_hour)
    happened = 0
    for what, number, event, seconds in story:
        if what == "happens":
            target.happens(f"{event} {number}", event)
            happened += 1
        elif what in ("away", "back"):
            target.answer = failing() if what == "away" else None
        elif what in ("quiet", "awake"):
            target.quiet = what == "quiet"
        target.step(seconds)
    times = [at_s for at_s, _ in target.got]
    assert all(sum(1 for t in times if at_s - HOUR_S < t <= at_s) <= per_hour for at_s in times)
    target.answer, target.quiet = None, False
    target.run(4 * HOUR_S, 100)
    assert target.state.due == 0
    kept = target.state.repetitions.values()
    # These may be told to be over much later.
    assert not [n for n in kept if n.untold or n.alert.event not in ("hang", "not_resumed")]
    told = [n for _, letter in target.got for n in letter.alerts]
    assert sum(letter.count for _, letter in target.got) >= len({n.key for n in told})
    # Of each thing: its first time alone, and all repetitions in numbers, the last of which came with an end.
    assert (happened == 0) == (not told)
    held = [
        n.at_s for n in told if not target.rules.wakes(n) and "happened" in n.happened and "last at" not in n.happened
    ]
    assert held == sorted(held)
    assert len({letter.id for _, letter in target.got}) == len(target.got)


@given(st.lists(Happening, max_size=120), st.sampled_from([1, 3, 10]))
def test_what_never_repeats_is_told_exactly_once(story: list[tuple[str, int, str, float]], per_hour: int) -> None:
    """By itself, in a summary, or in a number: the sum is what happened, also after messages were given up."""
    target = Target(per_hour=per_hour)
    for number, (what, _, event, seconds) in enumerate(story):
        if what == "happens":
            target.happens(f"{event} {number}", event)
        elif what in ("away", "back"):
            target.answer = failing() if what == "away" else None
        elif what in ("quiet", "awake"):
            target.quiet = what == "quiet"
        target.step(10 * seconds)
        told = sum(letter.count for _, letter in target.got)
        assert told + target.state.due == sum(1 for what, *_ in story[: number + 1] if what == "happens")


def test_the_end_is_told_to_whom_the_beginning_was_told() -> None:
    """Also where it wants warnings alone; as one message for all that ends together, and a new beginning is new."""
    told, untold = Target(min_severity="warning"), Target(events=frozenset(["drain"]))
    for target in (told, untold):
        target.happens("trouble a", "daemon_error")
        target.happens("trouble b", "daemon_error")
        target.run(120)
        ended(target.state, ["trouble a", "trouble b", "trouble c"], target.now_s)
        target.run(120)
        target.happens("trouble a", "daemon_error")
        target.run(120)
    assert untold.got == []
    severities = [(letter.severity, letter.count) for _, letter in told.got]
    assert severities[-2:] == [("info", 1), ("critical", 1)]
    assert told.got[-2][1].subject.endswith("It is over: trouble a happened; and trouble b happened")


def test_a_hang_that_is_over_is_told_to_whom_it_was_told() -> None:
    """Also after hours, and once; a target that wants no hangs hears nothing."""
    told, untold = Target(), Target(events=frozenset({"drain"}))
    for target in (told, untold):
        target.happens("hang 1.i1", "hang")
        target.run(3 * 3600)
        for _ in range(2):
            over_by(target.state, Alert(target.now_s, "over", "hang 1.i1", "Job 1 does not hang any more"))
            target.run(120)
    assert untold.got == []
    assert [letter.severity for _, letter in told.got] == ["warning", "info"]
    assert told.got[1][1].subject.endswith("Job 1 does not hang any more")
