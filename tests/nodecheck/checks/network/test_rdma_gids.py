from __future__ import annotations

from pathlib import Path

import pytest
from network_trees import OFF, REAL, ROCE, Looker, device, eight, interface, write

from slurm_robust.nodecheck.checks.network import rdma_gids

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
LOCAL = "fe80:0000:0000:0000:0ac0:ebff:fe12:3456"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a00:0001"


def gids(root: Path, name: str, *entries: tuple[str, str]) -> None:
    """The table of one port, filled up with empty entries (whose type cannot be read)."""
    port = root / "sys/class/infiniband" / name / "ports/1"
    for number in range(5):
        kind, gid = entries[number] if number < len(entries) else ("", ZERO)
        write(port, {f"gids/{number}": f"{gid}\n", f"gid_attrs/types/{number}": f"{kind}\n" if kind else ""})


@pytest.fixture
def looker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looker:
    """Eight RoCE ports with addresses."""
    made = Looker("rdma_gids", tmp_path, monkeypatch)
    for number in range(8):
        folder = device(made.root, f"mlx5_{number}", ROCE, pci=f"0000:{number:02x}:00.0")
        gids(made.root, f"mlx5_{number}", ("IB/RoCE v1", LOCAL), ("RoCE v2", LOCAL), ("RoCE v2", IPV4))
        (folder / f"device/net/eth{number}").mkdir(parents=True)
        interface(made.root, f"eth{number}", mtu="9000")
    return made


@pytest.mark.parametrize(
    ("entries", "grade", "expected"),
    [
        ([("IB/RoCE v1", IPV4), ("RoCE v2", IPV4)], "routable", ("pass", "gids_present")),
        ([("", ZERO), ("", ZERO), ("RoCE v2", IPV4)], "routable", ("pass", "gids_present")),
        ([("IB/RoCE v1", LOCAL), ("RoCE v2", LOCAL)], "local", ("warn", "gid_link_local")),
        ([("IB/RoCE v1", IPV4)], "old", ("warn", "gid_old")),
        ([], "none", ("warn", "gid_none")),
    ],
)
def test_one_port_without_an_address(
    looker: Looker, entries: list[tuple[str, str]], grade: str, expected: tuple[str, str]
) -> None:
    """It warns; it may be for management. A disabled port has none, and needs none."""
    gids(looker.root, "mlx5_3", *entries)
    assert rdma_gids.grade([[kind, gid] for kind, gid in entries if gid != ZERO]) == grade
    assert looker.look() == expected
    assert looker.look(ignore=["mlx5_3"]) == ("pass", "gids_present")
    device(looker.root, "mlx5_3", ROCE | OFF)
    assert looker.look() == ("pass", "gids_present")


def test_a_site_may_require_them(looker: Looker) -> None:
    """Then none, or RoCE v1 only, is a failure."""
    assert looker.look(required=True) == ("pass", "gids_present")
    gids(looker.root, "mlx5_3")
    assert looker.look(required=True) == ("fail", "gid_none")


def test_link_local_everywhere_is_how_the_fabric_is_built(looker: Looker) -> None:
    """Nobody has an address: no odd one out."""
    for number in range(8):
        gids(looker.root, f"mlx5_{number}", ("RoCE v2", LOCAL))
    assert looker.look() == ("pass", "gids_present")


def test_the_odd_mtu_warns(looker: Looker) -> None:
    """Seven have 9000 and one 1500: the fabric's jumbo frames end there."""
    interface(looker.root, "eth3", mtu="1500")
    assert looker.look() == ("warn", "mtu_odd")
    assert "eth3" in looker.finding().sentence
    interface(looker.root, "eth3", mtu="junk")
    assert looker.look() == ("pass", "gids_present")


def test_infiniband_iwarp_and_copies_without_tables_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to look at."""
    looker = Looker("rdma_gids", tmp_path, monkeypatch)
    assert looker.look() == ("skip", "no_roce")
    eight(looker.root)
    device(looker.root, "iw0", ROCE, node_type="4: RNIC")
    assert looker.look() == ("skip", "no_roce")
    if REAL.is_dir():
        (looker.root / "sys/class/infiniband").rename(looker.root / "away")
        (looker.root / "sys/class/infiniband").symlink_to(REAL)
        assert looker.look() == ("skip", "no_gid_table")
