"""Server-sent events: soon, coalesced, bounded, and complete after whatever a client has missed."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from dashboard_server import NOW_S, Served, serving
from snapshots import healthy

from slurm_robust.daemon.api.dashboard import live


def story(told: Callable[[Served], Awaitable[None]], nodes: int = 40, **how: Any) -> None:
    """Run it against a dashboard of a healthy cluster."""

    async def run() -> None:
        async with serving(healthy(NOW_S, nodes), **how) as served:
            await told(served)

    asyncio.run(asyncio.wait_for(run(), 60))


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str, Any]]:
    """(event, id, data) of each message."""
    fields: dict[str, str] = {}
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield fields["event"], fields.get("id", ""), json.loads(fields["data"])
            fields = {}


async def version_of(served: Served) -> str:
    """Of the page as it is now."""
    found = re.search(r'data-version="([^"]+)"', await (await served.get("/")).text())
    assert found
    return found[1]


def test_a_change_comes_at_once_and_alone() -> None:
    """A page that is up to date is told nothing but that all is well; then one row that changes, and no more."""

    async def told(served: Served) -> None:
        version = await version_of(served)
        async with served.session.get(f"{served.base}/events?page=home&from={version}") as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            coming = events(response)
            assert (await anext(coming))[0] == "beat"
            state = healthy(NOW_S, 40)
            state["nodes"][3].update(node_state="drained", owner="srobust", reason="XID 79", since_s=NOW_S)
            began_s = time.monotonic()
            served.take(state)
            name, _, value = await anext(coming)
            assert time.monotonic() - began_s < 1
            assert name == "change"
            assert set(value["sections"]) == {"needs", "legend", "grid-0", "drains"}
            assert list(value["sections"]["grid-0"]["rows"]) == ["n-gpu00004"]
            assert (await anext(coming))[0] == "beat"
            # The page that is loaded meanwhile brings nobody out of step.
            state["nodes"][4].update(node_state="idle")
            served.shown.take(json.dumps(state).encode())
            await served.get("/")
            assert (await anext(coming))[2]["sections"]["grid-0"]["rows"].keys() == {"n-gpu00005"}

    story(told)


def test_who_comes_back_gets_what_was_missed_or_everything() -> None:
    """After a short while the changes, after a restart of the process or too long a while all rows."""

    async def told(served: Served) -> None:
        version = await version_of(served)
        state = healthy(NOW_S, 40)
        state["nodes"][3].update(node_state="idle")
        served.take(state)
        await version_of(served)
        async with served.session.get(f"{served.base}/events?page=home&from={version}") as response:
            assert (await anext(events(response)))[0] == "change"
        for unknown in ("", "none", "0-0", f"{version}9", "x" * 999):
            headers = {"Last-Event-ID": unknown}
            async with served.session.get(f"{served.base}/events?page=home", headers=headers) as response:
                name, _, value = await anext(events(response))
                assert name == "everything"
                assert len(value["sections"]["grid-0"]["order"]) == 40
        assert (await served.get("/events?page=nothing")).status == 404
        assert (await served.get("/events?page=incident:none")).status == 404

    story(told)


def test_a_page_that_was_forgotten_meanwhile_comes_as_a_whole() -> None:
    """Its versions count anew: the one that a browser shows may be the number of another board."""

    async def told(served: Served) -> None:
        version = await version_of(served)
        served.dashboard.live.forget()
        state = healthy(NOW_S, 40)
        state["nodes"][3].update(node_state="idle")
        served.take(state)
        await version_of(served)
        async with served.session.get(f"{served.base}/events?page=home&from={version}") as response:
            assert (await anext(events(response)))[0] == "everything"

    story(told)


def test_a_storm_of_snapshots_becomes_a_few_changes() -> None:
    """Five hundred a second: those who watch get the last one, by a few messages, within a second."""

    async def told(served: Served) -> None:
        version = await version_of(served)
        async with served.session.get(f"{served.base}/events?page=home&from={version}") as response:
            coming = events(response)
            await anext(coming)
            changes, step = 0, 0
            began_s = time.monotonic()
            for number in range(400):
                state = healthy(NOW_S, 40)
                state["jobs"][0]["step"] = 500_000 + number
                served.take(state)
                await asyncio.sleep(0.002)
            async for name, _, value in coming:
                if name == "change":
                    changes += 1
                    step = max(int(s) for s in re.findall(r"5\d{5}", json.dumps(value)))
                if step == 500_399:
                    break
            assert changes < 10 + 10 * (time.monotonic() - began_s)

    story(told, gap_s=0.2)


def test_who_does_not_read_is_dropped_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket is closed, its memory is free, and another client has seen every change."""
    monkeypatch.setattr(live, "WRITE_S", 0.5)

    async def told(served: Served) -> None:
        host, port = served.base.removeprefix("http://").split(":")
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect((host, int(port)))
        slow.sendall(b"GET /events?page=home HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with served.session.get(f"{served.base}/events?page=home") as response:
            coming = events(response)
            await anext(coming)
            assert served.dashboard.live.watching == 2
            deadline_s = time.monotonic() + 30
            number = 0
            while served.dashboard.live.watching == 2:
                assert time.monotonic() < deadline_s
                state = healthy(NOW_S, 40)
                state["jobs"][0]["name"] = f"{number}" + 30_000 * "x"
                number += 1
                served.take(state)
                while (await anext(coming))[0] != "beat":
                    pass
            assert served.dashboard.live.watching == 1
        slow.close()

    story(told, gap_s=0.01)


def test_the_number_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is told to come later; when one goes, the next one is welcome."""
    monkeypatch.setattr(live, "CLIENTS_MAX", 3)
    monkeypatch.setattr(live, "BEAT_S", 0.05)

    async def told(served: Served) -> None:
        open_ = [await served.session.get(f"{served.base}/events?page=home") for _ in range(3)]
        refused = await served.get("/events?page=home")
        assert (refused.status, refused.headers["Retry-After"]) == (503, "10")
        open_.pop().close()
        for _ in range(500):
            if served.dashboard.live.watching < 3:
                break
            await asyncio.sleep(0.02)
        async with served.session.get(f"{served.base}/events?page=home") as response:
            assert response.status == 200
        for response in open_:
            response.close()

    story(told)


def test_pages_of_incidents_are_bounded_and_true() -> None:
    """Any key is only looked up; a thousand unknown ones leave nothing behind."""

    async def told(served: Served) -> None:
        for key in ("..%2F..%2Fetc%2Fpasswd", "x" * 2000, "%00", "<script>"):
            answer = await served.get(f"/incidents/{key}")
            assert answer.status == 404
            assert "<script>" not in await answer.text()
        for number in range(100):
            await served.get(f"/incidents/none{number}")
        assert len(served.dashboard.live._channels) <= 1
        key = healthy(NOW_S, 40)["incidents"][0]["key"].replace("/", "%2F")
        assert "trains again" in await (await served.get(f"/incidents/{key}")).text()

    story(told)


def test_a_snapshot_that_cannot_be_shown_leaves_the_last_page() -> None:
    """Garbage of another version: the page gets old, and says so; the first one ever is a sentence."""

    async def told(served: Served) -> None:
        before = await (await served.get("/")).text()
        served.take({**healthy(NOW_S, 40), "standby": 7, "at_s": NOW_S - 300})
        after = await (await served.get("/")).text()
        assert before.count("<i ") == after.count("<i ")
        assert "has been silent for 5 min" in after

    story(told)

    async def nothing_yet() -> None:
        async with serving() as served:
            assert "has published no state yet" in await (await served.get("/")).text()
        async with serving({"nodes": 7}) as served:
            answer = await served.get("/")
            assert answer.status == 503
            assert "cannot be shown" in await answer.text()

    asyncio.run(asyncio.wait_for(nothing_yet(), 60))


def test_a_version_of_thousands_of_digits_is_none() -> None:
    """Python refuses to read such a number; the browser gets everything, as with any version that is not known."""
    assert live.LivePage("boot", lambda _: None).since("boot-" + "9" * 5000) == []
