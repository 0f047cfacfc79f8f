"""A health check that finds a mount of the site full says so to the daemon, and that it has room again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import mounted_tmpfs

from slurm_robust.config.site import parse
from slurm_robust.marks import blind_marker
from slurm_robust.nodecheck.checks.host import filesystem
from slurm_robust.nodecheck.stages import gate, stage_run
from slurm_robust.slurm.client import Node


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    with mounted_tmpfs(tmp_path / "scratch", "2m") as place:
        yield place


def test_from_a_full_mount_to_the_marker_and_back(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same health check as slurmd's, with Slurm replaced by one node; a person's text stays."""
    node = Node("n1", "IDLE", extra="rack 7")

    class Slurm:
        def node(self, name: str) -> Node:
            return node

        def set_node_extra(self, name: str, extra: str) -> None:
            nonlocal node
            node = Node(name, "IDLE", extra=extra)

    told = gate.tell_blind

    def tell(*args: Any, **more: Any) -> str:
        return told(*args, lambda _: Slurm(), **more)  # type: ignore[arg-type,return-value]

    monkeypatch.setattr(gate, "tell_blind", tell)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    site = tmp_path / "robust.yaml"
    mount = {"path": str(scratch), "writable": True, "min_free_mb": 1}
    options = {"filesystem": {"mounts": [mount]}}
    text = json.dumps({"nodecheck": {"cache_dir": str(tmp_path / "run"), "options": options}})
    parse(text)
    site.write_text(text)
    site.chmod(0o600)

    def check() -> str:
        stage_run.main("periodic", str(site))
        return node.extra

    assert check() == "rack 7"
    (scratch / "core").write_bytes(bytes(2 << 20))
    assert check().startswith("rack 7 [[srobust-full v=1 at=")
    marker = blind_marker.parse(node.extra, blind_marker.FULL)
    assert marker is not None
    assert marker.reason == str(scratch)[: blind_marker.MAX_REASON_CHARS]
    assert blind_marker.parse(node.extra) is None
    (scratch / "core").unlink()
    assert check() == "rack 7"


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ({"free_mb": 0, "min_free_mb": 1}, ["/s"]),
        ({"total_inodes": 9, "free_inodes": 0, "min_free_inodes": 1}, ["/s"]),
        ({"write_errno": 28}, ["/s"]),
        ({"write_errno": 30}, []),
        ({"mount": False, "free_mb": 0, "min_free_mb": 1}, []),
        ({"error": "timeout"}, []),
    ],
)
def test_what_is_full(place: dict[str, Any], expected: list[str]) -> None:
    """The site's own mounts alone: /tmp of one node is not shared, and a job may fill it rightly."""
    room = {"path": "/s", "mount": True, "free_mb": 99, "total_mb": 99, "total_inodes": 0, "free_inodes": 0}
    assert filesystem.full_mounts({"places": [{**room, "write_errno": 0, **place}]}) == expected
    assert filesystem.full_mounts({}) == []
