"""Hole 12: what slurm.conf's `PrivateData` hides from ordinary users, the daemon does not show them either."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from dashboard_server import NOW_S, serving
from fake_slurm import FakeSlurm
from snapshots import stormy

from slurm_robust.config.site import parse
from slurm_robust.core.model import Mode
from slurm_robust.daemon.api.dashboard.access import Access
from slurm_robust.daemon.api.report_pages import ReportPages
from slurm_robust.daemon.api.state_lines import Snapshot
from slurm_robust.daemon.api.state_publisher import PAGES_FOLDER, StatePublisher
from slurm_robust.daemon.api.state_snapshot import FILE_NAME
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.slurm.parse import parse_settings, private_data

STRANGER = 61234


class AlwaysNew:
    """A state that has changed each time."""

    def __init__(self, context: DaemonContext) -> None:
        self._context = context

    def revision(self) -> None:
        """Nobody knows."""

    def take(self) -> Snapshot:
        """The state now."""
        return Snapshot({"at_s": NOW_S, "private": sorted(self._context.private)}, {})


def shown(private: list[str] | None, access: Access | None = None, **headers: str) -> str:
    """Everything that the HTTP side says of a busy site."""
    state: dict[str, Any] = stormy(NOW_S)
    state["jobs"][0].update(user="ann", name="secret plan 9")
    state["blind_nodes"] = [{"reason": "nvidia-ml-py is not installed", "nodes": "gpu0[0003-0004]", "count": 2}]
    state["lost_jobs"] = [{"job": "7", "user": "ann", "name": "secret plan 9", "seen_at_s": NOW_S}]
    if private is not None:
        state["private"] = private

    async def told() -> str:
        async with serving(state, access=access) as served:
            return "".join(
                [await (await served.get(path, **headers)).text() for path in ("/", "/state.json", "/metrics")]
            )

    return asyncio.run(told())


@pytest.mark.parametrize("private", [["jobs"], ["jobs", "users"], ["nodes"], ["unknown"], ["all"]])
def test_strangers_see_no_private_names(private: list[str]) -> None:
    """Where jobs are private, or nobody knows yet, everyone who can reach the port sees neither users nor names."""
    text = shown(private)
    assert "secret plan 9" not in text
    assert '"ann"' not in text
    assert ">ann<" not in text


@pytest.mark.parametrize("private", [["users"], ["accounts"], ["usage"]])
def test_strangers_see_no_private_users(private: list[str]) -> None:
    """Where users are private, jobs' names stay."""
    text = shown(private)
    assert "secret plan 9" in text
    assert '"ann"' not in text


@pytest.mark.parametrize("private", [["nodes"], ["reservations"], ["unknown"]])
def test_strangers_see_no_private_nodes(private: list[str]) -> None:
    """No name of a node, in no row, reason, trouble or metric."""
    assert "gpu00001" in shown([])
    assert "gpu0" not in shown(private)


def test_who_shows_the_token_sees_everything() -> None:
    """The site chose who may: a token's holder sees what root sees."""
    text = shown(["jobs", "nodes"], Access(token="a-token-of-the-site"), Authorization="Bearer a-token-of-the-site")
    assert "secret plan 9" in text
    assert "gpu00001" in text


def test_where_nothing_is_private_everything_is_shown() -> None:
    """Also to those who read the state of an older daemon, which does not say."""
    assert all("secret plan 9" in shown(private) for private in ([], None))


@pytest.mark.parametrize(("hide", "is_hidden"), [((), False), (("jobs",), True)])
def test_names_are_shown_once_slurm_has_said_that_nothing_is_private(hide: tuple[str, ...], is_hidden: bool) -> None:
    """A daemon that began while slurmctld was down hides all at first, not for ever; what the site chose stays."""
    state: dict[str, Any] = stormy(NOW_S)
    state["jobs"][0].update(user="ann", name="secret plan 9")

    async def told() -> str:
        async with serving({**state, "private": ["unknown"]}, hide=hide) as served:
            assert "secret plan 9" not in await (await served.get("/state.json")).text()
            served.take({**state, "private": []})
            return await (await served.get("/state.json")).text()

    text = asyncio.run(told())
    assert ("secret plan 9" not in text) == is_hidden
    assert '"ann"' in text
    assert json.loads(text).get("hidden", []) == list(hide)


def can_read(path: Path) -> bool:
    """Whether an ordinary user can read this file, or look into this folder."""
    argv = ["ls" if path.is_dir() else "cat", str(path)]
    done = subprocess.run(argv, user=STRANGER, group=STRANGER, extra_groups=[], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which root alone can")
def test_the_files_are_roots_where_data_are_private(tmp_path: Path) -> None:
    """`state.json` and the report's pages can be read by everyone exactly while Slurm keeps nothing private."""

    def context_of(config: str, name: str) -> DaemonContext:
        (tmp_path / name).mkdir()
        journal = Journal.open(tmp_path / name)
        return DaemonContext(parse(config), FakeSlurm(), journal, account="root", mode=Mode.ACT)

    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    served, filed = context_of("", "served"), context_of("daemon: {http: {enabled: false}}", "filed")

    async def publish() -> bool:
        """Whether the stranger can read what is published now."""
        served.private = filed.private
        await StatePublisher(filed, tmp_path, AlwaysNew(filed)).tick()
        pages = ReportPages(served, tmp_path, first_after_s=1e9)
        await pages.tick()
        await pages.close()
        found = {can_read(tmp_path / name) for name in (FILE_NAME, PAGES_FOLDER)}
        assert len(found) == 1
        return found.pop()

    assert filed.private == {"unknown"}
    assert not asyncio.run(publish())
    filed.private = private_data(filed.client.settings())
    assert asyncio.run(publish())
    filed.private = frozenset({"jobs"})
    assert not asyncio.run(publish())
    assert json.loads((tmp_path / FILE_NAME).read_text())["private"] == ["jobs"]
    for context in (served, filed):
        context.journal.close()


@pytest.mark.parametrize(
    ("line", "private"),
    [
        ("PrivateData             = none", set()),
        ("PrivateData             = jobs,usage", {"jobs", "usage"}),
        ("PrivateData             = cloud", set()),
        ("", {"unknown"}),
    ],
)
def test_private_data_is_read(line: str, private: set[str]) -> None:
    """As `scontrol show config` prints it; what does not say is taken for everything."""
    assert private_data(parse_settings(f"ClusterName = c\n{line}\n")) == private
