"""Have the bonds all their members, and do they agree?"""

from __future__ import annotations

import re

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude, some
from slurm_robust.nodecheck.sources import small_files

_LINE = re.compile(r"^\s*([A-Za-z][\w /()-]{1,40}?): ?(.*?)\s*$")
_NO_PARTNER = "00:00:00:00:00:00"
_MAX_BONDS = 32


def parse(text: str) -> Facts:
    """Parse a file of /proc/net/bonding: the bond's own lines, and the lines of each member; lower-case keys.

    The file has a head, a part on 802.3ad with a partner (root only), and one part a member that begins with `Slave
    Interface`.
    """
    head: dict[str, str] = {}
    members: list[dict[str, str]] = []
    at = head
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        key, value = match[1].lower(), match[2]
        if key == "slave interface":
            at = {"name": value}
            members.append(at)
        else:
            # A member repeats some keys for its partner further down: the first is its own.
            at.setdefault(key, value)
    return {"head": head, "members": members}


def probe(context: Context, options: Options) -> Facts:
    """Read every bond, as the kernel reports it."""
    folder = context.path("/proc/net/bonding")
    bonds = {
        name: parse(small_files.read_text(folder / name, 1 << 16)) for name in small_files.names(folder)[:_MAX_BONDS]
    }
    # The module makes an empty bond0 when it is loaded.
    return {"bonds": {name: bond for name, bond in bonds.items() if bond["members"]}}


def _up(member: dict[str, str]) -> bool:
    return member.get("mii status", "up") == "up"


def _faults(name: str, bond: Facts, options: Options) -> Faults:
    head, members = bond["head"], bond["members"]
    down = [member["name"] for member in members if not _up(member)]
    remedy = f"`cat /proc/net/bonding/{name}`; look at cable and switch port"
    if len(down) == len(members):
        yield Fault.warn("bond_down", f"no member of {name} has a link ({some(down)})", remedy)
        return
    if down:
        sentence = f"{some(down)} of {name} has no link, {len(members) - len(down)} of {len(members)} members carry it"
        yield Fault.warn("bond_member_down", sentence, remedy)
    expected = options["members"].get(name, options["members"].get("default", 0))
    if isinstance(expected, int) and len(members) < expected:
        sentence = f"{name} has {len(members)} members, {expected} are expected"
        yield Fault.warn("bond_member_missing", sentence, remedy)
    mode, wanted = head.get("bonding mode", ""), options["mode"].get(name, options["mode"].get("default", ""))
    if mode and isinstance(wanted, str) and wanted.lower() not in mode.lower():
        sentence = f"{name} runs in mode {mode}, {wanted} is expected"
        yield Fault.warn("bond_mode", sentence, f"correct the bond's configuration: mode={wanted}")
    up = [member for member in members if _up(member)]
    speeds = {member["speed"] for member in up if "Mbps" in member.get("speed", "")}
    if len(speeds) > 1:
        sentence = f"members of {name} run at different speeds ({', '.join(sorted(speeds, key=small_files.natural))})"
        yield Fault.warn("bond_speeds", sentence, remedy)
    if "802.3ad" in mode:
        yield from _lacp(name, head, up)


def _lacp(name: str, head: dict[str, str], up: list[dict[str, str]]) -> Faults:
    remedy = f"look at the switch's port channel; `cat /proc/net/bonding/{name}`"
    if head.get("partner mac address") == _NO_PARTNER:
        sentence = f"{name} has no LACP partner: only one member is used"
        yield Fault.warn("bond_no_partner", sentence, remedy)
    aggregators = {member["aggregator id"] for member in up if member.get("aggregator id")}
    if len(aggregators) > 1:
        sentence = f"members of {name} are in {len(aggregators)} LACP groups: only one of them is used"
        yield Fault.warn("bond_split", sentence, remedy)


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: a bond carries on with its members; `ethernet` judges a bond without any link."""
    bonds = facts["bonds"]
    if not bonds:
        return Finding.skip("no_bond", "the node has no bond")
    evidence = {
        name: {member["name"]: member.get("mii status", "") for member in bond["members"]}
        for name, bond in bonds.items()
    }
    said = ", ".join(f"{name} ({len(bond['members'])} members)" for name, bond in bonds.items())
    healthy = Finding.passed("bonds_whole", said, evidence)
    return conclude((f for name, bond in bonds.items() for f in _faults(name, bond, options)), healthy, evidence)


check = Check(
    **Check.parts_of(__name__),
    reads="/proc/net/bonding/*",
    cost="one read a bond, under 1 ms",
    lane="files",
    options={
        "members": Option({}, "members that bonds must have: {bond or `default`: number}", "ours: empty"),
        "mode": Option({}, "mode that bonds must run in: {bond or `default`: `802.3ad`}", "ours: empty", items=(str,)),
    },
)
