"""The borders of docs/security.md: only the modules named here read what others wrote, each in one of these ways."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "slurm_robust"

IMPORTS = {
    "unpickles": {"pickle", "pickletools", "marshal", "shelve"},
    "decompresses": {"gzip", "zlib", "bz2", "lzma", "zipfile", "tarfile"},
    "reads YAML": {"yaml"},
}
"""What a module does that imports one of these."""
CALLS = {
    "answers connections": {"start_server", "start_unix_server", "create_server", "connect_accepted_socket", "listen"},
    "reads claims": {"protocol.parse", "claim.parse"},
}
"""What a module does that calls one of these, by the name after the last dot, or by both names."""

BORDER_READERS: dict[str, set[str]] = {
    "unpickles": {
        "checkpoint/formats/inert.py",
        "checkpoint/saving/rank/save_plan.py",
        "checkpoint/saving/restart/loading.py",
        "checkpoint/saving/shared/file_layout.py",
        "supervise/agent/recorder.py",
        "wire/plain_pickle.py",
    },
    "decompresses": {
        "checkpoint/formats/torchfile.py",
        "checkpoint/saving/shared/image.py",
        "checkpoint/store/seals.py",
        "daemon/api/dashboard/web.py",
        "diagnose/log/lines.py",
        "localize/slow/timings_file.py",
        "localize/stacks/archive.py",
        "stoptime/node_agent.py",
        "supervise/agent/packing.py",
        "supervise/incident_folder.py",
        "supervise/incident/investigation.py",
        "supervise/launch/attempt_settings.py",
    },
    "reads YAML": {
        "config/site.py",
        "config/yaml_lines.py",
        "devcluster/conf.py",
        "diagnose/rulebook.py",
        "hint/proposal.py",
        "supervise/watch/log_shapes.py",
    },
    "answers connections": {
        "checkpoint/saving/backup/receiver.py",
        "checkpoint/saving/shared/wire.py",
        "daemon/api/connections.py",
        "daemon/api/http.py",
        "stoptime/node_name.py",
        "stoptime/rank_meeting.py",
        "supervise/agent/main.py",
        "supervise/agent/persisters.py",
        "supervise/warm/hook/srobust_warm_gate.py",
    },
    "reads claims": {
        "cli/diagnosis/job_traces.py",
        "daemon/controllers/records/effective_time.py",
        "daemon/controllers/recovery/claim_intake.py",
        "daemon/controllers/recovery/exclusions.py",
        "daemon/controllers/recovery/incident_reports.py",
        "daemon/controllers/recovery/late_claims.py",
        "daemon/controllers/records/trainings.py",
        "supervise/job.py",
    },
}
"""How it reads → the modules that may: each answers for the bounds that docs/security.md names."""


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_text(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def _called(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call):
            whole = ast.unparse(node.func)
            yield ".".join(whole.split(".")[-2:])
            yield whole.rsplit(".", 1)[-1]


def readers(way: str) -> set[str]:
    """Return the modules of the package that read in this way, as paths below it."""
    names, look = (IMPORTS[way], _imported) if way in IMPORTS else (CALLS[way], _called)
    # Most files have none of the words: to parse all of them takes seconds.
    likely = (path for path in PACKAGE.rglob("*.py") if any(name in _text(path) for name in names))
    found = (path for path in likely if names & set(look(path)))
    return {path.relative_to(PACKAGE).as_posix() for path in found}


@pytest.mark.parametrize("way", [*IMPORTS, *CALLS])
def test_only_these_modules_read_in_this_way(way: str) -> None:
    """A module that is new here needs a line in docs/security.md: who writes what it reads, and what bounds it."""
    assert readers(way) == BORDER_READERS[way]


def test_the_page_names_modules_that_exist() -> None:
    """Every module that docs/security.md names as a reader is there."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", page))
    assert len(named) > 15
    missing = {name for name in named if not (PACKAGE / name).exists() and not (ROOT / name).exists()}
    assert missing == set()
