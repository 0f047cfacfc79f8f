"""The report's pages: made by a child that can hurt nobody, and served by their names alone."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dashboard_server import NOW_S, serving
from fake_slurm import FakeSlurm
from snapshots import healthy

from slurm_robust.cli.commands.report import command as real_report
from slurm_robust.config.site import parse
from slurm_robust.core.model import Mode
from slurm_robust.daemon.api import report_pages
from slurm_robust.daemon.api.dashboard.report_files import PAGES, policy
from slurm_robust.daemon.api.report_pages import ReportPages
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.store.journal import Journal

# Its priority is lowered once it runs: on a busy machine it may be faster.
WRITES = """
import os, sys, time
until_s = time.monotonic() + 20
while os.nice(0) < 19 and time.monotonic() < until_s:
    time.sleep(0.01)
open(sys.argv[1], 'w').write(f'<title>{sys.argv[2]}</title>{os.nice(0)} {sys.argv[3:]}')
"""
FAILS = (
    "import sys; open(sys.argv[1], 'w').write('half'); print('the disk is\\x1b[31m odd', file=sys.stderr); sys.exit(3)"
)
HANGS = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


def story(tmp_path: Path, program: str, done: Callable[[Path], bool], config: str = "") -> None:
    """Let a daemon's part tick until `done`, with a program that stands in for `srobust report`."""

    def command(since: str, out: Path, _: Path) -> list[str]:
        return [sys.executable, "-c", program, str(out), since]

    async def run() -> None:
        context = DaemonContext(parse(config), FakeSlurm(), Journal.open(tmp_path), account="root", mode=Mode.ACT)
        context.private = frozenset()
        context.config_path = "/other/robust.yaml"
        pages = ReportPages(context, tmp_path, command, first_after_s=0.0)
        deadline_s = time.monotonic() + 30
        while not done(tmp_path / "pages"):
            assert time.monotonic() < deadline_s
            await pages.tick()
            await asyncio.sleep(0.01)
        await pages.close()
        context.journal.close()

    asyncio.run(run())


def test_pages_are_made_one_after_the_other_with_the_lowest_priority(tmp_path: Path) -> None:
    """Whole files that everyone may read, and nothing else in the folder, not even of a child that was killed."""
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / ".week.html.new.x7").write_text("half")
    story(tmp_path, WRITES, lambda folder: all((folder / name).exists() for name in PAGES))
    folder = tmp_path / "pages"
    assert {path.name for path in folder.iterdir()} == set(PAGES)
    assert (folder / "week.html").read_text() == "<title>7d</title>19 ['--config=/other/robust.yaml']"
    assert (folder / "week.html").stat().st_mode & 0o777 == 0o644


def test_a_page_that_cannot_be_made_stays_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Half a page is not shown. The log has the reason, without what a terminal would take for a command."""
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "day.html").write_text("yesterday's")
    story(tmp_path, FAILS, lambda _: "ended with 3" in caplog.text)
    assert "the disk is?[31m odd" in caplog.text
    assert (tmp_path / "pages" / "day.html").read_text() == "yesterday's"


def test_one_that_takes_too_long_is_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it has started; and the daemon's end does not wait for it either."""
    monkeypatch.setattr(report_pages, "DEADLINE_S", 0.5)
    pids: list[int] = []

    def done(folder: Path) -> bool:
        text = (folder / "day.html.new").read_text() if (folder / "day.html.new").exists() else ""
        pids.extend([int(text)] if text else [])
        return "took more than" in caplog.text

    story(tmp_path, HANGS, done)
    assert pids
    assert not Path(f"/proc/{pids[0]}").exists()
    assert not (tmp_path / "pages" / "day.html.new").exists()


HOLDS = "import subprocess, sys; subprocess.Popen(['sleep', '5'], start_new_session=True); sys.exit(3)"


def test_no_turn_of_the_daemon_waits_for_the_childs_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something that it started has left its session, and holds its pipe: recoveries have their turn meanwhile."""
    monkeypatch.setattr(report_pages, "LAST_WORDS_S", 4.0)
    monkeypatch.setattr(report_pages, "PAGES", ("day.html",))
    stamps = [time.monotonic()]

    def done(_: Path) -> bool:
        stamps.append(time.monotonic())
        return "ended with 3" in caplog.text

    story(tmp_path, HOLDS, done)
    assert max(after - before for before, after in itertools.pairwise(stamps)) < 2.0


@pytest.mark.parametrize("config", ["report_every_h: 0", "enabled: false", "hide: [users]"])
def test_none_are_made_where_nobody_would_be_shown_them(tmp_path: Path, config: str) -> None:
    """Switched off, no HTTP side, or names that a report would show."""
    ticks = iter(range(20))
    story(tmp_path, WRITES, lambda _: next(ticks) == 19, f"daemon: {{http: {{{config}}}}}")
    assert not (tmp_path / "pages").exists()


def test_the_real_report_takes_these_options(tmp_path: Path) -> None:
    """The other tests have a program that stands in for it."""
    argv = report_pages.command("1d", tmp_path / "day.html.new", tmp_path)
    words = [*argv[argv.index("report") + 1 :], "--config=robust.yaml"]
    given = real_report.make_context("report", words).params
    assert (given["out"], given["since"], given["journal"]) == (tmp_path / "day.html.new", "1d", tmp_path)


def test_only_known_names_are_served(tmp_path: Path) -> None:
    """No other file, no way out of the folder, no link; each page in a sandbox, with its own scripts alone."""
    (tmp_path / "secret").write_text("TOP SECRET")
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "other.html").write_text("TOP SECRET")
    (folder / "day.html").write_text("<title>day</title><script>let a = 1</script>")
    (folder / "week.html").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "month.html")

    async def told() -> None:
        async with serving(healthy(NOW_S, 8), pages=folder) as served:
            for name in (
                "other.html",
                "../secret",
                "..%2Fsecret",
                "%2e%2e/secret",
                "day.html%00",
                "week.html",
                "month.html",
            ):
                answer = await served.get(f"/report/{name}")
                assert answer.status == 404, name
                assert "SECRET" not in await answer.text()
            answer = await served.get("/report/day.html")
            assert "<title>day</title>" in await answer.text()
            rules = answer.headers["Content-Security-Policy"]
            assert "script-src 'sha256-" in rules
            assert "sandbox allow-scripts" in rules
            assert "allow-same-origin" not in rules
            index = await (await served.get("/report/")).text()
            assert index.count("not made yet") == 2
        async with serving(healthy(NOW_S, 8)) as served:
            index = await (await served.get("/report/")).text()
            assert "daemon.http.hide" in index
            assert "not made yet" not in index

    asyncio.run(asyncio.wait_for(told(), 60))
    assert "script-src 'none'" in policy(b"<p>no script</p>")
