"""Answers requests for the pages and their files: routes, access, and the headers of every answer."""

from __future__ import annotations

import gzip
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from slurm_robust.daemon.api.dashboard import home, incident
from slurm_robust.daemon.api.dashboard.access import COOKIE, COOKIE_MAX_AGE_S, Access, Asked
from slurm_robust.daemon.api.dashboard.live import GAP_S, Live
from slurm_robust.daemon.api.dashboard.page import Frame, home_page, incident_page, message_page, report_index
from slurm_robust.daemon.api.dashboard.pieces import quoted
from slurm_robust.daemon.api.dashboard.report_files import ReportFiles
from slurm_robust.daemon.api.dashboard.tree import Board, everything

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
STATIC = {
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
OPEN_PATHS = frozenset({"/healthz"})
"""The paths that are answered without a token: they only tell that the daemon lives."""
KEY_MAX_CHARS = 400
GZIP_FROM_BYTES = 4096


class Asset(NamedTuple):
    """A file of the package, read before root is given up."""

    body: bytes
    kind: str
    address: str


class Dashboard:
    """The pages for people. `snapshot` gives the last one; the same object while it is the same."""

    def __init__(
        self,
        snapshot: Callable[[], dict[str, Any]],
        now_s: Callable[[], float],
        access: Access,
        pages: Path | None = None,
        gap_s: float = GAP_S,
    ) -> None:
        self._snapshot, self._now_s, self._access = snapshot, now_s, access
        self._reports = ReportFiles(pages)
        self._assets = {name: _asset(name, kind) for name, kind in STATIC.items()}
        self.live = Live(snapshot, now_s, secrets.token_hex(4), gap_s)

    def add_to(self, app: web.Application) -> None:
        """Add the routes, the question who asks, and the headers of every answer."""
        app.middlewares.append(self._admit)
        app.on_response_prepare.append(_protect)
        app.router.add_get("/", self._home)
        app.router.add_get("/incidents/{key}", self._incident)
        app.router.add_get("/events", self._events, allow_head=False)
        app.router.add_get("/report/", self._report_index)
        app.router.add_get("/report/{name}", self._report)
        app.router.add_get("/static/{name}", self._static)

    def rehearse(self) -> None:
        """Make each page once: some modules are loaded only by the content of a page."""
        snapshot = {
            "nodes": [{"name": f"n{n}", "node_state": "drained", "owner": "slurm", "since_s": 1.0} for n in (1, 2)],
            "jobs": [{"job": "1", "claim": "watching", "suspected_at_s": 1.0, "incident": "", "user": ""}],
            "incidents": [{"key": "k", "id": "i", "job": "1", "state": "open", "times": {"fault": 1.0}, "outcome": ""}],
        }
        for make in (home.board, _incident_board("k")):
            board = make(snapshot)
            if board is not None:
                everything(board)

    @property
    def known_paths(self) -> tuple[str, ...]:
        """One path of each kind, requested before root is given up."""
        return ("/", "/incidents/none", "/events?page=none", "/report/", "/report/none", "/static/dashboard.js")

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = _asked(request, self._access.user_header)
        if not self._access.is_ours(asked):
            text = f"this is not {asked.host!r}: add the name to daemon.http.hosts, or ask by address\n"
            raise web.HTTPMisdirectedRequest(text=text)
        if self._access.shows_token(asked):
            raise self._with_cookie(request)
        if request.path not in OPEN_PATHS and not self._access.is_admitted(asked):
            return self._refused()
        return await handler(request)

    def _with_cookie(self, request: web.Request) -> web.HTTPException:
        """Give the cookie, and take the token out of the address: it would stay in histories."""
        query = {k: v for k, v in request.query.items() if k != "token"}
        # The path alone: `//elsewhere` would lead away.
        path = "/" + request.path.lstrip("/\\")
        answer = web.HTTPSeeOther(str(request.url.with_path(path).with_query(query).relative()))
        is_secure = request.secure or request.headers.get("X-Forwarded-Proto") == "https"
        answer.set_cookie(
            COOKIE,
            self._access.cookie,
            max_age=COOKIE_MAX_AGE_S,
            httponly=True,
            samesite="Lax",
            secure=is_secure,
            path="/",
        )
        return answer

    def _refused(self) -> web.Response:
        sentences = []
        if self._access.token:
            sentences.append("Open this page once with ?token=… behind its address; the browser then remembers it.")
            sentences.append("The token is in the file that daemon.http.token_file names, on the daemon's machine.")
        if self._access.user_header:
            sentences.append("Or come by the site's proxy, as one of daemon.http.allowed_users.")
        text = message_page("Who are you?", sentences, self._frame(is_public=True))
        status = 401 if self._access.token else 403
        headers = {"WWW-Authenticate": 'Bearer realm="srobust"'} if status == 401 else {}
        return web.Response(text=text, status=status, content_type="text/html", headers=headers)

    async def _home(self, request: web.Request) -> web.StreamResponse:
        channel = self.live.channel("home", home.board)
        if channel is None or channel.board is None:
            sentences = ("The daemon's snapshot cannot be shown: it may be of another version.", "$ srobust status")
            return _page(request, message_page("No state", sentences, self._frame("home", "none")), 503)
        frame = self._frame("home", channel.version)
        return _page(request, home_page(channel.board, channel.rows(), frame))

    async def _incident(self, request: web.Request) -> web.StreamResponse:
        key = request.match_info["key"]
        channel = self.live.channel(f"incident:{key}", _incident_board(key)) if len(key) <= KEY_MAX_CHARS else None
        if channel is None or channel.board is None:
            sentences = ("It is not among the newest hundred. The journal has all incidents:", "$ srobust incidents")
            return _page(request, message_page("No such incident here", sentences, self._frame()), 404)
        frame = self._frame(f"incident:{key}", channel.version)
        return _page(request, incident_page(channel.board, channel.rows(), frame))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        page, known = request.query.get("page", ""), request.query.get("from", "")
        known = request.headers.get("Last-Event-ID", known)
        make: Callable[[dict[str, Any]], Board | None] | None = None
        if page == "home":
            make = home.board
        elif page.startswith("incident:") and len(page) <= KEY_MAX_CHARS:
            make = _incident_board(page.removeprefix("incident:"))
        channel = self.live.channel(page, make) if make is not None else None
        if channel is None:
            raise web.HTTPNotFound
        return await self.live.watch(request, channel, known)

    @property
    def _hides_reports(self) -> bool:
        """Return whether reports are hidden: they have names, and nodes and jobs, which Slurm may keep private."""
        return self._access.is_open and bool(self._snapshot().get("private"))

    async def _report_index(self, request: web.Request) -> web.StreamResponse:
        pages = [(name, title, self._reports.made_at_s(name)) for name, title in self._reports.shown.items()]
        pages = [] if self._hides_reports else pages
        return _page(request, report_index(pages, self._frame()))

    async def _report(self, request: web.Request) -> web.StreamResponse:
        found = None if self._hides_reports else self._reports.read(request.match_info["name"])
        if found is None:
            sentences = ("It has not been made yet, or there is no page of this name.", "$ srobust report --since 7d")
            return _page(request, message_page("No such report", sentences, self._frame()), 404)
        body, policy = found
        response = _compressed(request, body, "text/html")
        response.headers["Content-Security-Policy"] = policy
        return response

    async def _static(self, request: web.Request) -> web.StreamResponse:
        asset = self._assets.get(request.match_info["name"])
        if asset is None:
            raise web.HTTPNotFound
        response = _compressed(request, asset.body, asset.kind)
        response.headers["Cache-Control"] = "max-age=31536000, immutable"
        return response

    def _frame(self, page: str = "", version: str = "", *, is_public: bool = False) -> Frame:
        snapshot = {} if is_public else self._snapshot()
        known = (f"{name} {snapshot[name]}" for name in ("version", "pid", "account") if snapshot.get(name))
        return Frame(
            now_s=self._now_s(),
            at_s=float(snapshot.get("at_s") or 0.0),
            cluster=str(snapshot.get("cluster") or "slurm_robust"),
            daemon=f"srobustd: {', '.join(known)}" if snapshot else "srobustd",
            assets={name: asset.address for name, asset in self._assets.items()},
            events=f"/events?page={quoted(page)}" if page else "",
            version=version,
        )


def _incident_board(key: str) -> Callable[[dict[str, Any]], Board | None]:
    def make(snapshot: dict[str, Any]) -> Board | None:
        found = incident.of_key(snapshot, key)
        return incident.board(found) if found is not None else None

    return make


def _asked(request: web.Request, user_header: str) -> Asked:
    transport = request.transport
    peer, local = (_ip(transport, name) if transport is not None else "" for name in ("peername", "sockname"))
    return Asked(
        peer=peer,
        local=local,
        host=request.headers.get("Host", ""),
        authorization=request.headers.get("Authorization", ""),
        cookie=request.cookies.get(COOKIE, ""),
        query_token=request.query.get("token", ""),
        users=request.headers.getall(user_header, []) if user_header else (),
    )


def _ip(transport: Any, name: str) -> str:
    known = transport.get_extra_info(name)
    return str(known[0]) if isinstance(known, tuple) and known else ""


async def _protect(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.setdefault("Content-Security-Policy", POLICY)
    response.headers.setdefault("Cache-Control", "no-store")
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = "srobust"


def _page(request: web.Request, text: str, status: int = 200) -> web.Response:
    response = _compressed(request, text.encode("utf-8", "replace"), "text/html")
    response.set_status(status)
    return response


def _compressed(request: web.Request, body: bytes, kind: str) -> web.Response:
    """Small over a phone's connection; nothing on a page is both secret and chosen by who asks."""
    headers = {"Vary": "Accept-Encoding"}
    if len(body) >= GZIP_FROM_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        body = gzip.compress(body, 1)
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)


def _asset(name: str, kind: str) -> Asset:
    body = resources.files(__package__).joinpath("static").joinpath(name).read_bytes()
    return Asset(body, kind, f"/static/{name}?v={hashlib.sha256(body).hexdigest()[:12]}")
