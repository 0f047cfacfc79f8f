"""Who is answered: by token, by a trusted proxy, under our own names; and the headers of every answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from dashboard_server import NOW_S, Served, serving
from snapshots import stormy

from slurm_robust.config.site import ConfigError, parse
from slurm_robust.daemon.api.dashboard.access import Access, AccessError, Asked, networks, read_token
from slurm_robust.daemon.api.dashboard.hiding import Hiding
from slurm_robust.daemon.api.http import metrics

TOKEN = "correct-horse-battery-staple"
PATHS = ("/", "/state.json", "/metrics", "/events?page=home", "/report/", "/incidents/x", "/static/dashboard.js", "/no")


def story(told: Callable[[Served], Awaitable[None]], **how: Any) -> None:
    """Run it against a dashboard of a stormy night."""

    async def run() -> None:
        async with serving(stormy(NOW_S), **how) as served:
            await told(served)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_token_by_bearer_or_by_cookie() -> None:
    """Without it nothing is shown but whether the daemon lives; `?token=` becomes a cookie that is not the token."""

    async def told(served: Served) -> None:
        for path in PATHS:
            answer = await served.get(path)
            assert answer.status == 401, path
            assert "atlas" not in await answer.text()
            assert (await served.get(path, Authorization="Bearer wrong-wrong-wrong-wrong")).status == 401
        assert (await served.get("/?token=wrong")).status == 401
        assert (await served.get("/healthz")).status == 503, "for all: the daemon of this state cannot write"
        assert (await served.get("/state.json", Authorization=f"Bearer {TOKEN}")).status == 200
        assert not list(served.session.cookie_jar)
        answer = await served.get(f"//evil.example/?token={TOKEN}&x=1")
        assert answer.headers["Location"] == "/evil.example/?x=1"
        answer = await served.get(f"/?token={TOKEN}")
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        cookie = answer.headers["Set-Cookie"]
        assert TOKEN not in cookie
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert (await served.get("/")).status == 200

    story(told, access=Access(token=TOKEN))


def test_a_proxy_is_believed_from_its_own_address_alone() -> None:
    """One header, of an allowed user, from a trusted network; anybody else who sends it is not believed."""
    access = Access(user_header="X-User", allowed_users=frozenset({"ann"}), proxies=networks(["10.0.0.0/8", "::1"]))

    def admitted(peer: str, *users: str) -> bool:
        return access.is_admitted(Asked(peer=peer, local="10.0.0.1", host="x", users=users))

    assert admitted("10.1.2.3", "ann")
    assert admitted("::ffff:10.1.2.3", "ann")
    assert not admitted("10.1.2.3", "eve")
    assert not admitted("10.1.2.3", "ann", "ann")
    assert not admitted("10.1.2.3", "")
    assert not admitted("10.1.2.3")
    assert not admitted("192.0.2.1", "ann")
    assert not admitted("", "ann")

    async def told(served: Served) -> None:
        assert (await served.get("/", **{"X-User": "ann"})).status == 403

    story(told, access=access)


@pytest.mark.parametrize(
    ("local", "host", "ours"),
    [
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "evil.example:9464", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("::1", "", False),
        ("127.0.0.1", "127.0.0.1:9464", True),
        ("127.0.0.1", "localhost:9464", True),
        ("::1", "[::1]:9464", True),
        ("10.0.0.1", "ctl.site.example", True),
    ],
)
def test_another_name_than_ours_is_refused_on_loopback(local: str, host: str, ours: bool) -> None:
    """A page of somebody else makes a browser ask us under that page's name (DNS rebinding)."""
    asked = Asked(peer="127.0.0.1", local=local, host=host)
    assert Access().is_ours(asked) is ours
    named = Access(hosts=frozenset({"robust.site.example"}))
    assert named.is_ours(Asked(peer="", local="10.0.0.1", host="Robust.site.example:443"))
    assert not named.is_ours(Asked(peer="", local="10.0.0.1", host="evil.example"))


def test_every_answer_has_its_headers_and_only_get_is_answered() -> None:
    """Also refusals. No inline script anywhere, nobody may frame a page or read it from another origin."""

    async def told(served: Served) -> None:
        for path in PATHS[:3] + PATHS[4:]:
            answer = await served.get(path, Origin="https://evil.example")
            policy = answer.headers["Content-Security-Policy"]
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert "Access-Control-Allow-Origin" not in answer.headers
            for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
                refused = await served.session.request(method, served.base + path.partition("?")[0])
                assert refused.status in (404, 405)
                assert "Content-Security-Policy" in refused.headers
        answer = await served.session.get(served.base, headers={"Host": "evil.example"})
        assert answer.status == 421
        assert (await served.session.head(served.base)).status == 200
        page = await (await served.get("/")).text()
        assert "<script>" not in page
        assert "style=" not in page

    story(told)


def test_hidden_names_are_nowhere() -> None:
    """Neither in pages, events, state nor metrics: no user, no job's name, nor where a sentence has them."""
    state = stormy(NOW_S)
    state["jobs"][0].update(user="ann", name="secret plan 9")
    state["breaker"]["why"] = "ann's node; job secret plan 9; annotated"
    state["incidents"][0]["actions"][0]["reason"] = "two claims of bo and ann-2, then of ann."
    state["waiting"][0]["user"] = "ann-2"
    names = {"ann", "ann-2", "bo", "cho", "dara", "secret plan 9", "llama-70b-1", "/home/ann"}

    async def told() -> None:
        async with serving(state, hide=("jobs", "users")) as served:
            texts = [await (await served.get(path)).text() for path in ("/", "/state.json", "/metrics")]
            key = state["incidents"][0]["key"].replace("/", "%2F")
            texts.append(await (await served.get(f"/incidents/{key}")).text())
            async with served.session.get(served.base + "/events?page=home&from=none") as events:
                seen = b""
                while b"event: beat" not in seen:
                    seen += await events.content.readany()
                texts.append(seen.decode())
            for text in texts:
                words = set(text.replace('"', " ").replace(">", " ").replace("<", " ").replace(".", " ").split())
                assert not {n for n in names if n in words or ((" " in n or "/" in n) and n in text)}, text[:200]
            assert "annotated" in texts[0]
            shown = json.loads(texts[1])
            assert shown["jobs"][0]["user"] == "hidden"
            assert shown["nodes"][30]["strikes_by_user"] == {"hidden": 2}
            assert shown["nodes"][0]["name"] == "gpu00001"
            assert (await served.get("/report/day.html")).status == 404

    asyncio.run(asyncio.wait_for(told(), 60))
    assert metrics(Hiding(("users",)).hidden(state), NOW_S)
    assert not Hiding(())


def test_the_tokens_file_is_a_secret(tmp_path: Path) -> None:
    """Readable by others, too short, a folder, missing: nothing is served, and the sentence says what to type."""
    path = tmp_path / "token"
    with pytest.raises(AccessError, match="make it"):
        read_token(path)
    path.write_text(TOKEN + "\n")
    path.chmod(0o644)
    with pytest.raises(AccessError, match="chmod 600"):
        read_token(path)
    path.chmod(0o640)
    assert read_token(path) == TOKEN
    for short in ("", "short", "two words that are long enough"):
        path.write_text(short)
        with pytest.raises(AccessError, match="16 characters"):
            read_token(path)
    with pytest.raises(AccessError, match="plain file"):
        read_token(tmp_path)
    assert TOKEN not in repr(Access(token=TOKEN))


def test_configuration_that_would_let_everyone_in_is_refused() -> None:
    """A header that anybody could send; a proxy that is no address; something else to hide."""
    for text in ("user_header: X-User", "trusted_proxies: [nonsense]", "hide: [nodes]"):
        with pytest.raises(ConfigError, match=r"daemon\.http"):
            parse(f"daemon:\n  http:\n    {text}\n")
