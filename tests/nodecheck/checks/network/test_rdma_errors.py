from __future__ import annotations

from pathlib import Path

import pytest
from network_trees import REAL, ROCE, Looker, device, eight, write

from slurm_robust.nodecheck.checks.network.rdma_errors import _SATURATED, LIMITS

NAMES = ("link_downed", *LIMITS)


def count(looker: Looker, port: str, **counts: object) -> None:
    """Set some counters of one device."""
    write(looker.root / f"sys/class/infiniband/{port}/ports/1/counters", {k: f"{v}\n" for k, v in counts.items()})


@pytest.fixture
def looker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looker:
    """Eight cards whose counters have seen better days, and stand still; looked at once."""
    made = Looker("rdma_errors", tmp_path, monkeypatch)
    eight(made.root)
    for number in range(8):
        count(made, f"mlx5_{number}", **dict.fromkeys(NAMES, 7))
    assert made.look() == ("pass", "first_look")
    return made


def test_counters_that_stand_still_are_no_fault(looker: Looker) -> None:
    """However high they are."""
    assert looker.look() == ("pass", "errors_low")
    assert looker.look(100_000) == ("pass", "errors_low")


@pytest.mark.parametrize("name", LIMITS)
def test_each_counter_warns_above_its_own_rate(looker: Looker, name: str) -> None:
    """At the limit not, one above it does; the site may set another limit, or none."""
    limit = LIMITS[name][0]
    count(looker, "mlx5_3", **{name: 7 + limit})
    assert looker.look() == ("pass", "errors_low")
    count(looker, "mlx5_3", **{name: 8 + limit})
    assert looker.look(warn_per_hour={name: limit + 1}) == ("pass", "errors_low")
    assert looker.look(warn_per_hour={name: 0}) == ("pass", "errors_low")
    assert looker.look() == ("warn", name.lower())
    assert "mlx5_3" in looker.finding(ignore=["mlx5_4"]).sentence
    assert looker.look(2 * 3600) == ("pass", "errors_low")


def test_the_same_growth_over_a_day_is_a_low_rate(looker: Looker) -> None:
    """A thousand symbol errors a day are 42 an hour."""
    count(looker, "mlx5_3", symbol_error=1007)
    assert looker.look(86_400) == ("pass", "errors_low")


def test_flaps_warn_and_many_of_them_fail(looker: Looker) -> None:
    """One loss of a link is a switch that restarted; two in a day warn; five in an hour fail, and are forgotten."""
    count(looker, "mlx5_3", link_downed=8)
    assert looker.look() == ("pass", "errors_low")
    count(looker, "mlx5_3", link_downed=9)
    assert looker.look() == ("warn", "link_flaps")
    for total in (10, 11, 12):
        count(looker, "mlx5_3", link_downed=total)
        last = looker.look()
    assert last == ("fail", "link_flapping")
    assert looker.look(fail_flaps_per_hour=0) == ("warn", "link_flaps")
    assert looker.look(7200) == ("warn", "link_flaps")
    assert looker.look(90_000) == ("pass", "errors_low")


def test_many_flaps_since_a_look_long_ago_are_no_flapping(looker: Looker) -> None:
    """Nobody knows when in the last week they were."""
    count(looker, "mlx5_3", link_downed=100)
    assert looker.look(7 * 86_400) == ("pass", "errors_low")


def test_a_counter_that_was_cleared_or_began_anew_is_no_fault(looker: Looker) -> None:
    """`perfquery -R`, a reloaded driver, a new boot."""
    count(looker, "mlx5_3", **dict.fromkeys(NAMES, 0))
    assert looker.look() == ("pass", "errors_low")
    looker.reboot()
    count(looker, "mlx5_3", **dict.fromkeys(NAMES, 200))
    assert looker.look() == ("pass", "first_look")


def test_counters_at_their_limit_are_named_in_words_and_not_judged(looker: Looker) -> None:
    """`link_downed` stops at 255: the healthy H100 machine of the material has one there."""
    for name, limit in _SATURATED.items():
        count(looker, "mlx5_3", **{name: limit})
    looker.reboot()
    finding = looker.finding()
    assert finding.status.value == "pass"
    assert "perfquery -R" in finding.sentence
    assert "mlx5_3 link_downed" in finding.evidence["at_their_limit"]


def test_what_is_no_number_is_passed_over(looker: Looker) -> None:
    """Virtual functions say `N/A (no PMA)`; no counters at all are nothing to look at."""
    for number in range(8):
        count(looker, f"mlx5_{number}", **dict.fromkeys(NAMES, "N/A (no PMA)"))
    assert looker.look() == ("skip", "no_counters")


def test_the_healthy_h100_node_has_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real material, looked at again and again."""
    if not REAL.is_dir():
        pytest.skip(f"real material is not here: {REAL}")
    looker = Looker("rdma_errors", tmp_path, monkeypatch)
    (looker.root / "sys/class").mkdir(parents=True)
    (looker.root / "sys/class/infiniband").symlink_to(REAL)
    assert [looker.look()[0] for _ in range(3)] == ["pass"] * 3


def test_a_management_port_that_flaps_only_warns(looker: Looker) -> None:
    """Ethernet, and none like it in the node."""
    device(looker.root, "mlx5_8", ROCE, hca_type="MT4117", board_id="MT_2420110034")
    count(looker, "mlx5_8", link_downed=0)
    looker.reboot()
    assert looker.look() == ("pass", "first_look")
    count(looker, "mlx5_8", link_downed=9)
    assert looker.look() == ("warn", "link_flapping")
    assert looker.look(ignore=["mlx5_8"]) == ("pass", "errors_low")
