from __future__ import annotations

from pathlib import Path

import pytest
from network_trees import UP, Looker, device, write

GEN5, GEN4 = "32.0 GT/s PCIe", "16.0 GT/s PCIe"


def link(
    looker: Looker, number: int, speed: str = GEN5, width: str = "16", slot: tuple[str, str] = (GEN5, "16")
) -> Path:
    """A card behind a port of its own."""
    port = looker.root / f"sys/devices/pci0000:00/0000:00:{number:02x}.0"
    function = port / f"0000:{number:02x}:00.0"
    write(port, {"max_link_speed": slot[0], "max_link_width": slot[1]})
    write(function, {"current_link_speed": speed, "current_link_width": width})
    write(
        function, {"max_link_speed": GEN5, "max_link_width": "16", "aer_dev_correctable": "RxErr 0\nTOTAL_ERR_COR 7\n"}
    )
    write(function, {"aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0\n", "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0\n"})
    bus = looker.root / f"sys/bus/pci/devices/0000:{number:02x}:00.0"
    bus.parent.mkdir(parents=True, exist_ok=True)
    if not bus.is_symlink():
        bus.symlink_to(f"../../../devices/pci0000:00/0000:00:{number:02x}.0/0000:{number:02x}:00.0")
    device(looker.root, f"mlx5_{number}", UP, pci=f"0000:{number:02x}:00.0")
    return function


@pytest.fixture
def looker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looker:
    """Four cards with all that card and slot can do."""
    made = Looker("rdma_pcie", tmp_path, monkeypatch)
    for number in range(1, 5):
        link(made, number)
    return made


@pytest.mark.parametrize(
    ("speed", "width", "expected"),
    [
        (GEN5, "16", ("pass", "pcie_good")),
        (GEN4, "16", ("warn", "pcie_speed")),
        (GEN5, "8", ("warn", "pcie_width")),
        ("Unknown", "0", ("pass", "pcie_good")),
        ("Unknown speed", "255", ("pass", "pcie_good")),
        ("", "", ("pass", "pcie_good")),
    ],
)
def test_one_card_with_less_than_its_slot_can_do(
    looker: Looker, speed: str, width: str, expected: tuple[str, str]
) -> None:
    """It warns; what cannot be read is passed over."""
    link(looker, 3, speed, width)
    assert looker.look() == expected
    assert looker.look(ignore=["mlx5_3"]) == ("pass", "pcie_good")


def test_a_slot_that_can_do_less_is_how_the_machine_is_built(looker: Looker) -> None:
    """A Gen5 card in a Gen4 slot of eight lanes has all there is."""
    link(looker, 3, GEN4, "8", slot=(GEN4, "8"))
    assert looker.look() == ("pass", "pcie_good")


def test_all_alike_are_set_up_so_until_one_drops(looker: Looker) -> None:
    """Gen4 by BIOS on every card is no fault; less than before is one."""
    for number in range(1, 5):
        link(looker, number, GEN4)
    assert looker.look() == ("pass", "pcie_good")
    for number in range(1, 5):
        link(looker, number, GEN4, "8")
    assert looker.look() == ("warn", "pcie_width")


def test_errors_of_the_link_by_their_rate(looker: Looker) -> None:
    """One uncorrected error warns, corrected ones from a thousand an hour."""
    looker.look()
    function = link(looker, 3)
    write(function, {"aer_dev_correctable": "TOTAL_ERR_COR 1007\n"})
    assert looker.look() == ("pass", "pcie_good")
    write(function, {"aer_dev_correctable": "TOTAL_ERR_COR 1008\n"})
    assert looker.look() == ("warn", "pcie_correctable_errors")
    assert looker.look(warn_correctable_per_hour=5000) == ("pass", "pcie_good")
    write(function, {"aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 1\n"})
    assert looker.look(warn_correctable_per_hour=5000) == ("warn", "pcie_nonfatal_errors")
    assert looker.look(7200) == ("pass", "pcie_good")


def test_nothing_to_look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No card, or one that tells no PCI address."""
    looker = Looker("rdma_pcie", tmp_path, monkeypatch)
    assert looker.look() == ("skip", "no_link")
    device(looker.root, "mlx5_0", UP)
    assert looker.look() == ("skip", "no_link")
