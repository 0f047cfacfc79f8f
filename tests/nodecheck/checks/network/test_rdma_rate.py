from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_trees import DOWN, REAL, ROCE, UP, Looker, device, eight

from slurm_robust.nodecheck.catalogue import network_cards
from slurm_robust.nodecheck.checks.network import rdma_firmware, rdma_rate
from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import rdma


@pytest.fixture
def looker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looker:
    """Eight healthy cards at 400 Gb/s."""
    made = Looker("rdma_rate", tmp_path, monkeypatch)
    eight(made.root)
    return made


def slow(looker: Looker, rate: str, **more: str) -> None:
    """One of them at another rate."""
    device(looker.root, "mlx5_3", UP | {"rate": rate} | more)


def test_all_at_full_speed(looker: Looker) -> None:
    """No finding, also against what the site expects."""
    assert looker.look() == ("pass", "rates_good")
    assert looker.look(min_gbps={"default": 400}) == ("pass", "rates_good")


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ("200 Gb/sec (4X HDR)", ("warn", "rate_below_sisters")),  # storage beside compute, cabled so on purpose
        ("100 Gb/sec (1X NDR)", ("warn", "rate_below_sisters")),
        ("40 Gb/sec (4X QDR)", ("warn", "rate_below_sisters")),  # an old storage fabric
        ("25 Gb/sec (1X EDR)", ("warn", "rate_below_sisters")),
        ("20 Gb/sec (4X DDR)", ("fail", "rate_far_below_card")),
        ("10 Gb/sec (4X SDR)", ("fail", "rate_far_below_card")),
        ("2.5 Gb/sec (1X SDR)", ("fail", "rate_far_below_card")),
        ("800 Gb/sec (4X XDR)", ("pass", "rates_good")),
        ("", ("pass", "rates_good")),
        ("much", ("pass", "rates_good")),
    ],
)
def test_one_that_has_always_been_slower(looker: Looker, rate: str, expected: tuple[str, str]) -> None:
    """It may be meant, so it warns; SDR on a ConnectX-7 is never meant."""
    slow(looker, rate)
    assert looker.look() == expected


def test_a_link_that_lost_speed_in_this_boot_fails(looker: Looker) -> None:
    """It came back at half its lanes; a new boot knows nothing of it and warns."""
    looker.look()
    slow(looker, "200 Gb/sec (2X NDR)")
    assert looker.look() == ("fail", "rate_dropped")
    assert looker.look(min_gbps={"mlx5_3": 200}) == ("pass", "rates_good")
    looker.reboot()
    assert looker.look() == ("warn", "rate_below_sisters")


def test_a_down_port_s_rate_means_nothing(looker: Looker) -> None:
    """A port without a link says 10 Gb/s."""
    looker.look()
    device(looker.root, "mlx5_3", UP | DOWN)
    assert looker.look() == ("pass", "rates_good")


@pytest.mark.parametrize("key", ["mlx5_3", "mlx5_3/1", "MT_0000000838", "MT4129", "default"])
def test_what_the_site_expects_is_found_by_port_board_or_model(looker: Looker, key: str) -> None:
    """And fails where it is missed."""
    slow(looker, "200 Gb/sec (4X HDR)")
    assert looker.look(min_gbps={key: 400}) == ("fail", "rate_below_expected")
    assert looker.look(min_gbps={key: 400}, ignore=["mlx5_3"]) == ("pass", "rates_good")


def test_ethernet_runs_at_any_speed(looker: Looker) -> None:
    """A RoCE card in a 25 Gb/s switch is a management port; slower than before warns: it may be set so."""
    for number in range(8):
        device(looker.root, f"mlx5_{number}", ROCE | {"rate": "25 Gb/sec (1X EDR)"})
    assert looker.look() == ("pass", "rates_good")
    device(looker.root, "mlx5_3", ROCE | {"rate": "10 Gb/sec (1X QDR)"})
    assert looker.look() == ("warn", "rate_dropped")


def test_a_driver_that_reports_a_constant_is_not_judged(tmp_path: Path) -> None:
    """EFA says 100 Gb/s whatever the instance has."""
    port = ROCE | {"link_layer": "Unknown", "rate": "100 Gb/sec (4X EDR)"}
    device(tmp_path, "rdmap0s6", port, pci="0000:00:06.0", ids=("0x1d0f", "0xefa1"), hca_type="")
    options = {"rdma_rate": {"min_gbps": {"default": 400}}}
    report = runner.run([rdma_rate.check], Context("n1", root=tmp_path), options, 10.0)
    assert report.results[0].finding.reason == "no_rate"


@pytest.mark.parametrize("check", [rdma_rate.check, rdma_firmware.check])
def test_the_healthy_h100_node_has_no_finding(tmp_path: Path, check: rdma_rate.Check) -> None:
    """Real material: eight ConnectX-7 at 400 Gb/s and a bonded BlueField-3 at 200."""
    if not REAL.is_dir():
        pytest.skip(f"real material is not here: {REAL}")
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").symlink_to(REAL)
    finding = runner.run([check], Context("n1", root=tmp_path), {}, 10.0).results[0].finding
    assert finding.status.value == "pass", finding


def test_firmware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The odd one out warns, other boards have their own; what the site expects comes first."""
    looker = Looker("rdma_firmware", tmp_path, monkeypatch)
    assert looker.look() == ("skip", "no_firmware")
    eight(looker.root)
    device(looker.root, "mlx5_8", ROCE, hca_type="MT41692", board_id="MT_0000000884", fw_ver="32.38.3056")
    assert looker.look() == ("pass", "firmware_alike")
    device(looker.root, "mlx5_3", UP, fw_ver="28.39.1002")
    assert looker.look() == ("warn", "firmware_mixed")
    assert "mlx5_3" in looker.finding().sentence
    assert looker.look(ignore=["mlx5_3"]) == ("pass", "firmware_alike")
    assert looker.look(expected={"MT_0000000838": "28.39.1002"}) == ("warn", "firmware_unexpected")
    assert looker.look(expected={"MT4129": "28.41.1000"}, ignore=["mlx5_3"]) == ("pass", "firmware_alike")


def test_cards_are_looked_up_by_id_and_by_mlx5_s_model_name() -> None:
    """The model's number is the device id in decimal."""
    assert (
        network_cards.lookup(None, None, "MT4129")
        == network_cards.lookup(0x15B3, 0x1021)
        == network_cards.Nic("ConnectX-7", 400, 25)
    )
    assert network_cards.lookup(None, None, "MT41692").name == "BlueField-3"
    for model in ("", "MT", "MTx", "MT²", "MT99999999999", "BCM57508"):
        assert network_cards.lookup(None, None, model) is network_cards.UNKNOWN


@given(st.text(max_size=60))
def test_any_rate_is_read(text: str) -> None:
    """Whatever stands in the file gives numbers."""
    gbps, lanes = rdma.rate(text)
    assert gbps >= 0
    assert lanes >= 0


def test_rates_are_read() -> None:
    """As the kernel writes them since 2005."""
    assert rdma.rate("400 Gb/sec (4X NDR)") == (400.0, 4)
    assert rdma.rate("2.5 Gb/sec (1X)") == (2.5, 1)
    assert rdma.rate("40 Gb/sec (4X QDR)\n") == (40.0, 4)
