from __future__ import annotations

from pathlib import Path

import pytest
from network_trees import REAL, ROCE, Looker, device, eight, write

from slurm_robust.nodecheck.checks.network.rdma_transport import LIMITS

APPLICATION = ("rnr_nak_retry_err", "out_of_buffer", "req_cqe_error", "resp_cqe_flush_error", "duplicate_request")


def count(looker: Looker, port: str, **counts: object) -> None:
    """Set some counters of one device."""
    write(looker.root / f"sys/class/infiniband/{port}/ports/1/hw_counters", {k: f"{v}\n" for k, v in counts.items()})


@pytest.fixture
def looker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looker:
    """Eight cards, looked at once."""
    made = Looker("rdma_transport", tmp_path, monkeypatch)
    eight(made.root, ROCE)
    for number in range(8):
        count(made, f"mlx5_{number}", **dict.fromkeys((*LIMITS, *APPLICATION), 5))
    assert made.look() == ("pass", "first_look")
    return made


@pytest.mark.parametrize("name", LIMITS)
def test_the_odd_one_out_warns(looker: Looker, name: str) -> None:
    """Far more than its sisters, and more than a busy fabric makes."""
    count(looker, "mlx5_3", **{name: 5 + LIMITS[name]})
    assert looker.look() == ("pass", "alike")
    count(looker, "mlx5_3", **{name: 6 + LIMITS[name]})
    assert looker.look() == ("warn", f"odd_{name}")
    assert looker.look(warn_per_hour={name: 2 * LIMITS[name]}) == ("pass", "alike")
    assert looker.look(warn_per_hour={name: 0}) == ("pass", "alike")
    assert looker.look(ignore=["mlx5_3"]) == ("pass", "alike")


def test_load_raises_all_rails_and_is_no_fault(looker: Looker) -> None:
    """A million on each: congestion, or a peer that died. Nine times the sisters' is still one of them."""
    for number in range(8):
        count(looker, f"mlx5_{number}", out_of_sequence=10**6, local_ack_timeout_err=10**5)
    assert looker.look() == ("pass", "alike")
    count(looker, "mlx5_3", out_of_sequence=9 * 10**6)
    assert looker.look() == ("pass", "alike")
    count(looker, "mlx5_3", out_of_sequence=12 * 10**6)
    assert looker.look() == ("warn", "odd_out_of_sequence")


def test_what_only_applications_raise_is_not_looked_at(looker: Looker) -> None:
    """A job that was killed flushes its queues; a slow receiver says that it is not ready."""
    count(looker, "mlx5_3", **dict.fromkeys(APPLICATION, 10**9))
    assert looker.look() == ("pass", "alike")


def test_a_port_without_sisters_has_ten_times_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to compare it with."""
    looker = Looker("rdma_transport", tmp_path, monkeypatch)
    assert looker.look() == ("skip", "no_counters")
    looker.reboot()
    device(looker.root, "mlx5_0", ROCE)
    count(looker, "mlx5_0", out_of_sequence=0)
    looker.look()
    count(looker, "mlx5_0", out_of_sequence=100_000)
    assert looker.look() == ("pass", "alike")
    count(looker, "mlx5_0", out_of_sequence=100_002)
    assert looker.look() == ("warn", "odd_out_of_sequence")


def test_efa_has_its_counters_at_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not at the port."""
    looker = Looker("rdma_transport", tmp_path, monkeypatch)
    folder = device(looker.root, "rdmap0s6", ROCE | {"link_layer": "Unknown"}, hca_type="")
    write(folder, {"hw_counters/rx_drops": "0\n"})
    looker.look()
    write(folder, {"hw_counters/rx_drops": "20000\n"})
    assert looker.look() == ("warn", "odd_rx_drops")


def test_the_healthy_h100_node_has_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real material, looked at again and again."""
    if not REAL.is_dir():
        pytest.skip(f"real material is not here: {REAL}")
    looker = Looker("rdma_transport", tmp_path, monkeypatch)
    (looker.root / "sys/class").mkdir(parents=True)
    (looker.root / "sys/class/infiniband").symlink_to(REAL)
    assert [looker.look()[0] for _ in range(3)] == ["pass"] * 3
