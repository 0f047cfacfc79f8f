from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_trees import BOOT, Looker, write

from slurm_robust.nodecheck.checks.network import conntrack, default_route, loopback, neighbours, network_sysctls
from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.context import Context

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("0x9", ("pass", "loopback_up")),
        ("0x8", ("fail", "loopback_down")),
        ("", ("skip", "not_seen")),
        ("0x1002", ("skip", "not_seen")),  # something else that is called lo
        ("junk", ("skip", "not_seen")),
    ],
)
def test_loopback(flags: str, expected: tuple[str, str], tmp_path: Path, monkeypatch: Patch) -> None:
    """Only a loopback that is surely down fails."""
    looker = Looker("loopback", tmp_path, monkeypatch)
    write(looker.root, {"/sys/class/net/lo/flags": f"{flags}\n"})
    assert looker.look() == expected


ROUTES = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
    "ens10f0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
)
ARP = (
    "IP address       HW type     Flags       HW address            Mask     Device\n"
    "192.0.2.1  0x1  {}  02:fc:00:00:00:05  *  ens10f0\n"
)


def test_the_default_route_is_needed_where_the_site_says_so(tmp_path: Path, monkeypatch: Patch) -> None:
    """Without one a node is as it is built, unless it had one in this boot, or must have one."""
    looker = Looker("default_route", tmp_path, monkeypatch)
    assert looker.look() == ("skip", "no_table")
    head = ROUTES.splitlines()[0] + "\n"
    write(looker.root, {"/proc/net/route": head})
    assert looker.look() == ("skip", "no_default_route")
    assert looker.look(required=True) == ("fail", "route_missing")
    write(looker.root, {"/proc/net/route": ROUTES})
    assert looker.look(required=True) == ("pass", "route_present")
    write(looker.root, {"/proc/net/route": head})
    assert looker.look() == ("warn", "route_lost")
    assert looker.look() == ("warn", "route_lost")
    write(looker.root, {BOOT: "another\n"})
    assert looker.look() == ("skip", "no_default_route")


@pytest.mark.parametrize(
    ("flags", "expected"), [("0x2", "route_present"), ("0x6", "route_present"), ("0x0", "gateway_silent")]
)
def test_a_gateway_that_does_not_answer_warns(flags: str, expected: str, tmp_path: Path, monkeypatch: Patch) -> None:
    """One that nobody has asked for is not in the table, and no fault."""
    looker = Looker("default_route", tmp_path, monkeypatch)
    write(looker.root, {"/proc/net/route": ROUTES})
    assert looker.look() == ("pass", "route_present")
    write(looker.root, {"/proc/net/arp": ARP.format(flags)})
    assert looker.look()[1] == expected
    if expected == "gateway_silent":
        assert "192.0.2.1" in looker.finding().sentence
    write(looker.root, {"/proc/net/arp": ARP.format("0x0").replace("192.0.2.1", "192.0.2.7")})
    assert looker.look() == ("pass", "route_present")


STAT = "entries  searched drop early_drop\n{0:08x} 00000000 {1:08x} 00000000\n{0:08x} 00000000 {1:08x} 00000000\n"


def test_connection_tracking_that_fills_or_drops_warns(tmp_path: Path, monkeypatch: Patch) -> None:
    """Nine tenths in use, or a hundred drops within the hour; no tracking is nothing to look at."""
    looker = Looker("conntrack", tmp_path, monkeypatch)
    assert looker.look() == ("skip", "no_conntrack")
    folder = "/proc/sys/net/netfilter/nf_conntrack_"
    write(
        looker.root,
        {f"{folder}count": "900\n", f"{folder}max": "1000\n", "/proc/net/stat/nf_conntrack": STAT.format(9, 0)},
    )
    assert looker.look() == ("pass", "conntrack_room")
    write(looker.root, {f"{folder}count": "901\n"})
    assert looker.look() == ("warn", "conntrack_filling")
    assert looker.look(warn_share=0.95) == ("pass", "conntrack_room")
    looker.reboot()
    write(looker.root, {f"{folder}count": "9\n", "/proc/net/stat/nf_conntrack": STAT.format(9, 500)})
    assert looker.look() == ("pass", "conntrack_room")
    write(looker.root, {"/proc/net/stat/nf_conntrack": STAT.format(9, 551)})  # on two CPUs
    assert looker.look() == ("warn", "conntrack_drops")
    write(looker.root, {f"{folder}max": "0\n"})
    assert looker.look() == ("skip", "no_conntrack")


ARP_STAT = "entries  allocs   table_fulls\n{0:08x} 00000000 {1:08x}\n{0:08x} 00000000 00000000\n"


def test_neighbour_tables_that_fill_or_overflow_warn(tmp_path: Path, monkeypatch: Patch) -> None:
    """Against gc_thresh3, which a container does not see."""
    looker = Looker("neighbours", tmp_path, monkeypatch)
    write(looker.root, {"/proc/net/stat/arp_cache": ARP_STAT.format(921, 0)})
    assert looker.look() == ("skip", "no_table")
    write(looker.root, {"/proc/sys/net/ipv4/neigh/default/gc_thresh3": "1024\n"})
    assert looker.look() == ("pass", "neighbours_room")
    write(looker.root, {"/proc/net/stat/arp_cache": ARP_STAT.format(922, 0)})
    assert looker.look() == ("warn", "neighbours_filling")
    assert looker.look(warn_share=0.95) == ("pass", "neighbours_room")
    write(looker.root, {"/proc/net/stat/arp_cache": ARP_STAT.format(9, 1)})
    assert looker.look() == ("warn", "neighbour_overflow")
    assert looker.look(7200) == ("pass", "neighbours_room")


def test_settings_that_the_site_names(tmp_path: Path, monkeypatch: Patch) -> None:
    """Too low or different warns; one that this kernel has not is passed over."""
    looker = Looker("network_sysctls", tmp_path, monkeypatch)
    assert looker.look() == ("skip", "nothing_named")
    write(
        looker.root,
        {
            "/proc/sys/net/core/rmem_max": "212992\n",
            "/proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
            "/proc/sys/net/ipv4/conf/eth0.1/rp_filter": "1\n",
        },
    )
    assert looker.look(minimum={"net.core.rmem_max": 212992}) == ("pass", "settings_as_wanted")
    assert looker.look(minimum={"net.core.rmem_max": 212993}) == ("warn", "setting_too_low")
    assert looker.look(minimum={"net.ipv4.tcp_rmem": 6291456}) == ("pass", "settings_as_wanted")
    assert looker.look(exact={"net.ipv4.tcp_rmem": "4096 131072 6291456"}) == ("pass", "settings_as_wanted")
    assert looker.look(exact={"net/ipv4/conf/eth0.1/rp_filter": 2}) == ("warn", "setting_differs")
    assert looker.look(minimum={"net.core.absent": 1}, exact={"net.core.gone": 1}) == ("pass", "settings_as_wanted")


@pytest.mark.parametrize("name", ["kernel.hostname", "net/../../../etc/shadow", "net", "net.", "net.core/../x", ""])
def test_only_settings_below_net_are_read(name: str) -> None:
    """Anything else is an error of the configuration, said as one, and no verdict on the node."""
    report = runner.run([network_sysctls.check], Context("n1"), {"network_sysctls": {"minimum": {name: 1}}}, 10.0)
    assert report.results[0].finding.status.value == "unknown"
    assert "is not a setting below net" in report.results[0].finding.sentence


@given(st.text(max_size=300) | st.lists(st.sampled_from([*ROUTES.split(), *ARP.split(), "\n", "x"])).map(" ".join))
def test_any_tables_are_read(text: str) -> None:
    """Truncated, shuffled or odd files give what they can."""
    assert isinstance(default_route.gateways(text), list)
    assert isinstance(default_route.neighbours(text), dict)
    for name in ("entries", "drop", "x"):
        assert (conntrack.column(text, name) or 0) >= 0


def test_this_machine_has_no_fault() -> None:
    """Nothing above pass or skip on a healthy machine."""
    checks = [one.check for one in (loopback, default_route, conntrack, neighbours, network_sysctls)]
    for result in runner.run(checks, Context("n1"), {}, 10.0).results:
        assert result.finding.status.value in ("pass", "skip"), result
