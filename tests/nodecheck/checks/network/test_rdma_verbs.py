from __future__ import annotations

from pathlib import Path

import pytest
from network_trees import Looker, eight, write


@pytest.fixture
def looker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looker:
    """Eight cards with drivers and files that every user may open."""
    made = Looker("rdma_verbs", tmp_path, monkeypatch)
    eight(made.root)
    for module in ("ib_core", "ib_uverbs", "mlx5_ib"):
        (made.root / "sys/module" / module).mkdir(parents=True)
    for number in range(8):
        write(made.root / f"sys/class/infiniband_verbs/uverbs{number}", {"ibdev": f"mlx5_{number}\n"})
        write(made.root / "dev/infiniband", {f"uverbs{number}": ""})
        (made.root / f"dev/infiniband/uverbs{number}").chmod(0o666)
        pci = f"0000:{number:02x}:00.0"
        write(made.root / "sys/bus/pci/drivers/mlx5_core" / pci, {"x": ""})
        write(made.root / "sys/bus/pci/devices" / pci, {"class": "0x020700\n", "infiniband/x": ""})
    return made


def test_a_healthy_node_and_one_without_rdma(looker: Looker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device has its file."""
    assert looker.look() == ("pass", "verbs_usable")
    (tmp_path / "other").mkdir()
    assert Looker("rdma_verbs", tmp_path / "other", monkeypatch).look() == ("skip", "no_rdma")


def test_a_copied_tree_has_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing of /dev."""
    looker = Looker("rdma_verbs", tmp_path, monkeypatch)
    eight(looker.root)
    assert looker.look() == ("skip", "not_here")


@pytest.mark.parametrize(("required", "status"), [(False, "warn"), (True, "fail")])
def test_what_keeps_jobs_from_the_cards(looker: Looker, required: bool, status: str) -> None:
    """It warns, and fails where the site requires RDMA."""
    file = looker.root / "dev/infiniband/uverbs3"
    file.chmod(0o600)
    assert looker.look(required=required) == (status, "device_file_closed")
    assert "mlx5_3" in looker.finding().sentence
    file.chmod(0o660)  # a group of its own
    assert looker.look(required=required) == ("pass", "verbs_usable")
    file.unlink()
    assert looker.look(required=required) == (status, "device_file_missing")
    (looker.root / "sys/module/ib_uverbs").rmdir()
    (looker.root / "sys/class/infiniband_verbs").rename(looker.root / "away")
    assert looker.look(required=required) == (status, "uverbs_missing")


def test_an_infiniband_card_without_the_verbs_driver_is_seen(looker: Looker) -> None:
    """`mlx5_ib` is not loaded: no device at all. A card in Ethernet mode, or a guest's function, needs none."""
    (looker.root / "sys/class/infiniband").rename(looker.root / "away")
    function = looker.root / "sys/bus/pci/devices/0000:03:00.0"
    (function / "infiniband").rename(looker.root / "away-too")
    assert looker.look() == ("warn", "verbs_driver_missing")
    (function / "physfn").symlink_to("../0000:02:00.0")
    assert looker.look() == ("skip", "no_rdma")
    (function / "physfn").unlink()
    write(function, {"class": "0x020000\n"})
    assert looker.look() == ("skip", "no_rdma")


def test_modules_that_the_site_names_must_be_loaded(looker: Looker) -> None:
    """One that is not there fails."""
    assert looker.look(modules=["ib_core", "mlx5_ib"]) == ("pass", "verbs_usable")
    assert looker.look(modules=["ib_core", "rdma_ucm", "../../etc"]) == ("fail", "module_missing")
