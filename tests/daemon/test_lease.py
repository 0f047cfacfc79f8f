"""Which daemon acts: several of them on one simulated Slurm, with clocks that do not agree."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm

from slurm_robust.config.site import parse
from slurm_robust.core.model import Mode
from slurm_robust.daemon import log_alerts
from slurm_robust.daemon.api.metrics import metrics
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.lease import SURELY_S, UNANSWERED_S, VALID_S, Lease, StandingByError
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.slurm.errors import SlurmParseError, SlurmRefusedError, SlurmUnavailableError


class Context(DaemonContext):
    """Its steady clock goes on by itself, also in a pause; its wall clock is wrong."""

    def __init__(self, slurm: FakeSlurm, journal: Journal, mode: Mode = Mode.ACT) -> None:
        self.steady_now_s = 0.0
        wrong = lambda: slurm.now_s - 119.0  # noqa: E731
        super().__init__(parse(""), slurm, journal, account="root", mode=mode, clock=wrong)
        self.steady_s = lambda: self.steady_now_s

    async def pause(self, seconds: float) -> None:
        """Let time pass."""
        self.steady_now_s += seconds


class Site:
    """One Slurm, and daemons on several hosts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.slurm = folder, FakeSlurm(3)
        self.leases: dict[str, Lease] = {}
        self.journals: dict[str, Journal] = {}

    def start(self, host: str, mode: Mode = Mode.ACT) -> Lease:
        """A daemon starts; the host's journal is there from an earlier one."""
        journal = self.journals.setdefault(host, Journal.open(self.folder / host))
        lease = self.leases[host] = Lease(Context(self.slurm, journal, mode))
        lease.host = host

        async def begin() -> None:
            await lease.context.read_nodes()
            lease.begin()
            lease.close()  # the turns below stand for its task

        asyncio.run(begin())
        return lease

    def run(self, seconds: float, *hosts: str) -> None:
        """Let time pass; only the daemons on these hosts (else all) run."""

        async def passing() -> None:
            for _ in range(round(seconds * 2)):
                for host, lease in self.leases.items():
                    lease.context.steady_now_s += 0.5  # type: ignore[attr-defined]
                    if not hosts or host in hosts:
                        await lease.turn()

        asyncio.run(passing())

    @property
    def acting(self) -> list[str]:
        """The hosts whose daemon acts."""
        return [host for host, lease in self.leases.items() if not lease.standing_by]

    @property
    def comment(self) -> str:
        """Of the node with the lease."""
        return self.slurm.state.nodes["n1"].comment


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site with no daemon yet, whose first node has a person's words."""
    made = Site(tmp_path)
    made.slurm.state.nodes["n1"] = replace(made.slurm.state.nodes["n1"], comment="rack 7")
    yield made
    for journal in made.journals.values():
        journal.close()


def refuse(*_: object) -> None:
    """Slurm refuses."""
    raise SlurmRefusedError("write the comment of n1", "Access/permission denied")


def test_one_daemon_writes_its_lease_once(site: Site) -> None:
    """It acts at once, leaves a person's words alone, and changes nothing more; its next start has the lease."""
    lease = site.start("a")
    site.run(2)
    assert site.acting == ["a"]
    assert site.comment.startswith("rack 7 [[srobust-lease v=1 of=a ")
    site.run(300)
    assert site.slurm.acts == ["comment n1"]
    assert lease.shown() == {"standing_by": False, "host": "a"}
    site.start("a")
    site.run(0.5)
    assert site.acting == ["a"]
    assert site.slurm.acts == ["comment n1"]


def test_the_second_takes_the_place_of_a_dead_one(site: Site) -> None:
    """It stands by as long as the first lives, and acts within half a minute once it is gone; people are told."""
    site.start("a")
    site.run(2)
    b = site.start("b")
    site.run(200)
    assert site.acting == ["a"]
    assert b.shown() == {"standing_by": True, "host": "a"}
    shown = metrics({"mode": "act", "lease": b.shown()}, 0.0)
    assert b"srobust_standing_by 1.0" in shown
    assert b"srobust_acting 0.0" in shown
    site.run(SURELY_S, "b")
    assert not b.standing_by
    assert b.took_over
    rows = b.context.journal.db.execute("SELECT what, text FROM events").fetchall()
    told = [alert for row in rows if (alert := log_alerts.alert_of(0.0, row["what"], row["text"]))]
    assert [alert.event for alert in told] == ["takeover"]
    assert "The daemon on a has not answered" in told[0].happened
    site.start("a")
    site.run(60)
    assert site.acting == ["b"]


def test_two_that_start_together_agree(site: Site) -> None:
    """Both see no lease and write one: the one that is there a moment later acts."""
    a, b = site.start("a"), site.start("b")
    write, late = site.slurm.set_node_comment, list[tuple[str, str]]()

    def slow(nodes: str, comment: str) -> None:
        late.append((nodes, comment))
        if len(late) == 2:
            for words in late:
                write(*words)
            site.slurm.set_node_comment = write  # type: ignore[method-assign]

    site.slurm.set_node_comment = slow  # type: ignore[method-assign]
    pause = asyncio.Event()

    async def both() -> None:
        async def wait(_: float) -> None:
            if len(late) == 2:
                pause.set()
            await pause.wait()

        a.context.pause = b.context.pause = wait  # type: ignore[method-assign]
        await asyncio.gather(a.look(), b.look())

    asyncio.run(both())
    assert len(site.acting) == 1


def test_a_frozen_one_looks_before_it_acts(site: Site) -> None:
    """Another has taken its place meanwhile: it does not act any more, and stands by."""
    a = site.start("a")
    site.run(2)
    asyncio.run(a.check())
    site.start("b")
    site.run(60, "b")
    with pytest.raises(StandingByError, match="the daemon on b acts"):
        asyncio.run(a.check())
    assert site.acting == ["b"]
    assert VALID_S < UNANSWERED_S


def test_a_frozen_one_goes_on_where_nobody_else_is(site: Site) -> None:
    """It looks, and acts: there was no second daemon."""
    a = site.start("a")
    site.run(2)
    site.run(300, "nobody")
    asyncio.run(a.check())
    assert site.acting == ["a"]


def test_time_without_slurm_is_not_counted(site: Site) -> None:
    """Nobody could answer while slurmctld was away: the second one asks anew."""
    site.start("a")
    site.run(2)
    site.start("b")
    site.run(20)
    site.slurm.down = True
    for name in ("nodes_named", "set_node_comment"):
        setattr(site.slurm, name, lambda *_: (_ for _ in ()).throw(SlurmUnavailableError("read", "away")))
    site.run(120)
    site.slurm.down = False
    for name in ("nodes_named", "set_node_comment"):
        delattr(site.slurm, name)
    site.run(60)
    assert site.acting == ["a"]


def test_a_site_that_takes_no_lease_has_its_daemon_all_the_same(site: Site) -> None:
    """It acts, says what a second daemon would not notice, and asks Slurm again once a minute."""
    site.slurm.set_node_comment = refuse  # type: ignore[method-assign]
    a = site.start("a")
    site.run(120)
    assert site.acting == ["a"]
    asyncio.run(a.check())
    (sentence,) = a.context.troubles.values()
    assert "n1 (Access/permission denied), so a second daemon would not notice it: scontrol show node n1" in sentence
    del site.slurm.set_node_comment
    site.run(70)
    assert not a.context.troubles
    assert "of=a" in site.comment


@pytest.mark.parametrize("error", [SlurmParseError("read nodes", "no words of Slurm's"), RuntimeError("ours")])
def test_a_lease_that_cannot_be_read_stops_nobody(site: Site, error: Exception) -> None:
    """Nor does an error of our own: a daemon that knows of no other one acts, and goes on to act."""

    def broken(*_: object) -> None:
        raise error

    site.slurm.nodes_named = broken  # type: ignore[assignment,method-assign]
    a = site.start("a")
    asyncio.run(a.seen(a.context.steady_s()))
    assert site.acting == ["a"]
    site.run(60)
    asyncio.run(a.check())
    assert site.acting == ["a"]
    assert "a second daemon would not notice it" in " ".join(a.context.troubles.values())
    del site.slurm.nodes_named
    site.run(80)
    assert not a.context.troubles
    assert "of=a" in site.comment


def test_one_that_may_not_ask_stands_by_and_says_what_to_type(site: Site) -> None:
    """There is another daemon's lease: without an answer nobody knows whether that one lives."""
    site.start("a")
    site.run(2)
    site.slurm.set_node_comment = refuse  # type: ignore[method-assign]
    b = site.start("b")
    site.run(60, "b")
    assert site.acting == ["a"]
    (sentence,) = b.context.troubles.values()
    assert sentence.endswith("if that one is gone: scontrol update nodename=n1 comment=")


def test_a_lease_that_a_person_has_cleared_comes_back(site: Site) -> None:
    """The one that acts writes it again, and the one that stands by waits for that."""
    site.start("a")
    site.run(2)
    site.start("b")
    site.run(10)
    site.slurm.set_node_comment("n1", "rack 8")
    site.run(30)
    assert site.acting == ["a"]
    assert site.comment.startswith("rack 8 [[srobust-lease v=1 of=a ")


def test_the_lease_moves_where_its_node_leaves_the_site(site: Site) -> None:
    """The next node has it."""
    a = site.start("a")
    site.run(2)
    del site.slurm.state.nodes["n1"]

    async def read() -> None:
        await a.turn()
        await a.context.read_nodes()
        await a.seen(a.context.steady_s())

    a.context.steady_now_s += 30  # type: ignore[attr-defined]
    asyncio.run(read())
    assert "of=a" in site.slurm.state.nodes["n2"].comment
    asyncio.run(a.check())


def test_an_observing_daemon_writes_nothing(site: Site) -> None:
    """Observe mode changes nothing in Slurm, and takes nobody's place."""
    site.start("a", Mode.OBSERVE)
    site.run(60)
    assert site.slurm.acts == []
