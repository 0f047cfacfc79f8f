from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_trees import Looker, write

from slurm_robust.nodecheck.checks.network import bonding

HEAD = """Ethernet Channel Bonding Driver: v6.5.0

Bonding Mode: {mode}
MII Status: up
MII Polling Interval (ms): 100
"""
LACP = """
802.3ad info
LACP rate: fast
Active Aggregator Info:
\tAggregator ID: 1
\tPartner Mac Address: {partner}
"""
MEMBER = """
Slave Interface: {name}
MII Status: {mii}
Speed: {speed}
Duplex: full
Link Failure Count: 3
Permanent HW addr: b8:ce:f6:00:00:01
Aggregator ID: {group}
details partner lacp pdu:
    system mac address: 00:11:22:33:44:55
"""


def bond(*changes: dict[str, str], mode: str = "IEEE 802.3ad Dynamic link aggregation", partner: str = "a:b") -> str:
    """A file with one member for each of `changes`."""
    usual = {"mii": "up", "speed": "100000 Mbps", "group": "1"}
    members = [MEMBER.format(**(usual | {"name": f"eth{n}"} | change)) for n, change in enumerate(changes)]
    return HEAD.format(mode=mode) + (LACP.format(partner=partner) if "802.3ad" in mode else "") + "".join(members)


BACKUP = "fault-tolerance (active-backup)"


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (bond({}, {}), {}, ("pass", "bonds_whole")),
        (bond({}, {}, mode=BACKUP), {}, ("pass", "bonds_whole")),
        (bond(), {}, ("skip", "no_bond")),  # the module makes an empty one
        ("", {}, ("skip", "no_bond")),
        (bond({}, {"mii": "down"}), {}, ("warn", "bond_member_down")),
        (bond({"mii": "down"}, {"mii": "going down"}), {}, ("warn", "bond_down")),
        (bond({}, {"speed": "25000 Mbps"}), {}, ("warn", "bond_speeds")),
        (bond({}, {"speed": "Unknown"}), {}, ("pass", "bonds_whole")),
        (bond({}, {"speed": "25000 Mbps", "mii": "down"}), {}, ("warn", "bond_member_down")),
        (bond({}, {}, partner="00:00:00:00:00:00"), {}, ("warn", "bond_no_partner")),
        (bond({}, {"group": "2"}), {}, ("warn", "bond_split")),
        (bond({}, {"group": "2"}, mode=BACKUP), {}, ("pass", "bonds_whole")),
        (bond({}, {}), {"members": {"bond0": 2}}, ("pass", "bonds_whole")),
        (bond({}), {"members": {"default": 2}}, ("warn", "bond_member_missing")),
        (bond({}, {}), {"mode": {"bond0": "802.3ad"}}, ("pass", "bonds_whole")),
        (bond({}, {}, mode=BACKUP), {"mode": {"default": "802.3ad"}}, ("warn", "bond_mode")),
    ],
)
def test_bonds(
    text: str, options: dict[str, object], expected: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All members up, of one speed, in one group, with a partner; what is missing warns, for the bond carries on."""
    looker = Looker("bonding", tmp_path, monkeypatch)
    write(looker.root, {"/proc/net/bonding/bond0": text})
    assert looker.look(**options) == expected


def test_what_only_root_sees_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel hides LACP's part from others."""
    looker = Looker("bonding", tmp_path, monkeypatch)
    text = "\n".join(line for line in bond({}, {}).splitlines() if "ggregator" not in line and "Partner" not in line)
    write(looker.root, {"/proc/net/bonding/bond0": text})
    assert looker.look() == ("pass", "bonds_whole")


def test_a_member_s_own_lines_come_before_its_partner_s() -> None:
    """Some keys stand there twice."""
    members = bonding.parse(bond({"name": "ens1f0np0"}) + "    mii status: down\n")["members"]
    assert members[0]["name"] == "ens1f0np0"
    assert members[0]["mii status"] == "up"


@given(st.text(max_size=300) | st.lists(st.sampled_from(bond({}, {}).splitlines())).map("\n".join))
def test_any_text_is_read_and_judged(text: str) -> None:
    """Truncated, shuffled or odd files give what they can."""
    found = bonding.parse(text)
    facts = {"bonds": {"bond0": found} if found["members"] else {}}
    assert bonding.judge(facts, bonding.check.settings({})).sentence
