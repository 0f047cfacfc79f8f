"""Are the InfiniBand and RoCE ports up that were up before, or that the site expects?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine import check_state, counters
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude, some
from slurm_robust.nodecheck.sources import rdma, small_files

_IFF_UP = 0x1
_WAITING = ("INIT", "ARMED")
_NO_LID = (0, 0xFFFF)


def probe(context: Context, options: Options) -> Facts:
    """Read all ports, and what earlier runs of this boot and of the last one saw."""
    kept = check_state.load(context.cache_dir, check.name)
    found = rdma.devices(context)
    up = {}
    for device in found:
        for port in device["ports"]:
            if port["netdev"]:
                flags = small_files.hexadecimal(
                    small_files.word(context.path("/sys/class/net") / port["netdev"] / "flags")
                )
                up[port["netdev"]] = None if flags is None else bool(flags & _IFF_UP)
    known = _known(kept, context.boot_id()).get("devices", {})
    bus = context.path("/sys/bus/pci/devices")
    return {
        "devices": found,
        "admin_up": up,
        "boot_id": context.boot_id(),
        "at_s": counters.uptime_s(),
        "kept": kept,
        "on_bus": [
            pci for pci in known.values() if isinstance(pci, str) and pci and not small_files.is_gone(bus / pci)
        ],
    }


def _known(kept: Facts, boot_id: str) -> Facts:
    """Return what was kept of this boot, with every part in the expected shape."""
    if kept.get("boot_id") != boot_id:
        return {"active": {}, "devices": {}, "since": {}}
    return {part: kept[part] if isinstance(kept.get(part), dict) else {} for part in ("active", "devices", "since")}


def _last_full(facts: Facts) -> int:
    """Return the most active ports in the boot before this one; 0 if that is not known."""
    kept = facts["kept"]
    full = kept.get("last_full" if kept.get("boot_id") == facts["boot_id"] else "full")
    return full if isinstance(full, int) else 0


def _off(facts: Facts, port: rdma.Port) -> bool:
    """Switched off on purpose.

    A RoCE port without a cable calls itself Disabled too (mlx5, bnxt_re): there the interface's own flag counts.
    """
    if port["layer"] == "InfiniBand":
        return port["phys"] in ("Disabled", "Sleep")
    return facts["admin_up"].get(port["netdev"]) is False


def _age_s(facts: Facts, name: str) -> float:
    """Return how long a port or device has been missing, by earlier looks; since boot if no look saw it up."""
    known = _known(facts["kept"], facts["boot_id"])
    since = known["since"].get(name)
    if isinstance(since, (int, float)) and since <= facts["at_s"]:
        return float(facts["at_s"] - since)
    gone = name in known["devices"] and name not in {device["name"] for device in facts["devices"]}
    return 0.0 if name in known["active"] or gone else float(facts["at_s"])


def _ports(facts: Facts, options: Options) -> list[tuple[str, rdma.Device, rdma.Port]]:
    return [(rdma.label(d, p), d, p) for d, p in rdma.all_ports(facts["devices"], options["ignore"])]


def _gone(facts: Facts, options: Options) -> Faults:
    """Devices of an earlier run in this boot that are no more."""
    there = {device["name"] for device in facts["devices"]}
    addresses = {device["pci"] for device in facts["devices"]} - {""}
    for name, pci in _known(facts["kept"], facts["boot_id"])["devices"].items():
        if name in there or name in options["ignore"] or not isinstance(pci, str) or pci in addresses:
            continue
        if pci and pci not in facts["on_bus"]:
            sentence = f"{name} has left the PCI bus ({pci})"
            remedy = "drain; read `dmesg | grep mlx5`; power-cycle; if it stays away, have the card replaced"
            late = _age_s(facts, name) >= options["grace_s"]
            yield Fault(Status.FAIL if late else Status.WARN, "device_gone", sentence, remedy)
        else:
            remedy = "`rdma link`; was the driver unloaded, or the card bonded or handed to a guest?"
            yield Fault.warn("device_unbound", f"{name} is no RDMA device any more", remedy)


def _bad(facts: Facts, options: Options) -> Faults:
    """Ports that are not active and should be."""
    active = _known(facts["kept"], facts["boot_id"])["active"]
    every = _ports(facts, options)
    alike = {rdma.label(d, p): group for group in rdma.sisters((d, p) for _, d, p in every) for d, p in group}
    for name, _, port in every:
        if rdma.is_active(port):
            continue
        was_active, late = name in active, _age_s(facts, name) >= options["grace_s"]
        said = f"{port['state'] or 'unreadable'}, {port['phys'] or 'unreadable'}"
        group = alike[name]
        odd = 2 * sum(rdma.is_active(other) for _, other in group) > len(group)
        if _off(facts, port):
            if was_active:
                remedy = f"`rdma link`; if that is meant, add {name} to nodecheck.options.rdma_ports.ignore"
                yield Fault.warn("port_disabled", f"{name} has been switched off", remedy)
        elif port["state"] in _WAITING:
            remedy = "look at the subnet manager: `sminfo`, `ibstat`"
            sentence = f"{name} has a link and is not configured by the subnet manager ({said})"
            status = Status.FAIL if was_active and late else Status.WARN
            yield Fault(status, "port_not_configured", sentence, remedy)
        elif not port["state"]:
            yield Fault.unknown("port_unreadable", f"{name} does not report its state", "`ibstat`, `rdma link`")
        elif was_active or odd:
            remedy = f"`ibstat`, `rdma link`; look at cable and switch port; unused? rdma_ports.ignore: [{name}]"
            alone = rdma.may_be_management(port, len(group))
            status = Status.FAIL if was_active and late and not alone else Status.WARN
            yield Fault(status, "port_down", f"no link on {name} ({said})", remedy)


def _few(facts: Facts, options: Options) -> Faults:
    """Fewer active ports than the site expects, or than there were in the last boot."""
    every = _ports(facts, options)
    active = sum(rdma.is_active(port) for _, _, port in every)
    young = sum(not rdma.is_active(p) and _age_s(facts, name) < options["grace_s"] for name, _, p in every)
    expected = options["expected"]
    remedy = "`ibstat`, `rdma link`; look for the missing card in `lspci -d 15b3:`, at cables and switch ports"
    if expected and active < expected:
        sentence = f"{active} of {expected} RDMA ports are active"
        yield Fault(Status.FAIL if active + young < expected else Status.WARN, "ports_missing", sentence, remedy)
    elif not expected and active < _last_full(facts) and facts["at_s"] >= options["boot_grace_s"]:
        sentence = f"{active} RDMA ports are active, {_last_full(facts)} were before this boot"
        yield Fault.warn("fewer_ports_than_before", sentence, remedy)


def _layers(facts: Facts, options: Options) -> Faults:
    for name, device, port in _ports(facts, options):
        wanted = rdma.setting(options["link_layer"], name, device, port)
        if isinstance(wanted, str) and port["layer"] and port["layer"] != wanted:
            sentence = f"{name} runs as {port['layer']}, {wanted} is expected"
            remedy = f"`mlxconfig -d {device['pci'] or device['name']} query LINK_TYPE_P1`; set it and reset the card"
            yield Fault.fail("wrong_link_layer", sentence, remedy)


def _no_lid(facts: Facts, options: Options) -> Faults:
    for name, device, port in _ports(facts, options):
        # A virtual function may have its card's own id.
        if not rdma.is_active(port) or port["layer"] != "InfiniBand" or device["kind"] != "card":
            continue
        if port["lid"] in _NO_LID or port["sm_lid"] in _NO_LID:
            sentence = f"{name} is active and has no local id from the subnet manager"
            yield Fault.warn("no_lid", sentence, "look at the subnet manager: `sminfo`")


def judge(facts: Facts, options: Options) -> Finding:
    """Fail for a port or card that was up in this boot and stays away, and for fewer ports than the site expects.

    A port that was never seen up may be unused on purpose: it warns if most of its sisters are up. An Ethernet port
    without sisters may be for management: it only warns. A flap is no failure: a port that has just gone down gets
    `grace_s`.
    """
    evidence = {
        "ports": {name: [p["layer"], p["state"], p["phys"]] for name, _, p in _ports(facts, options)},
        "expected": options["expected"],
    }
    parts = (_few, _gone, _bad, _layers, _no_lid)
    faults = [fault for part in parts for fault in part(facts, options)]
    names = [name for name, _, port in _ports(facts, options) if rdma.is_active(port)]
    if not facts["devices"]:
        healthy = Finding.skip("no_rdma", "the node has no RDMA device", evidence)
    else:
        said = f"{len(names)} RDMA ports are active" + (f": {some(names)}" if names else "")
        healthy = Finding.passed("ports_active", said, evidence)
    return conclude(faults, healthy, evidence)


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep the ports and devices that were up in this boot, since when others are missing, and the most ever up."""
    known = _known(facts["kept"], facts["boot_id"])
    every = _ports(facts, options)
    active = dict(known["active"])
    now = [name for name, _, port in every if rdma.is_active(port)]
    active.update(dict.fromkeys(now, True))
    devices = {**known["devices"], **{d["name"]: d["pci"] for d in facts["devices"] if d["kind"] in ("card", "guest")}}
    missing = {name for name, _, port in every if not rdma.is_active(port)} & set(active)
    missing |= set(devices) - {device["name"] for device in facts["devices"]}
    since = {name: known["since"].get(name, facts["at_s"]) for name in sorted(missing)}
    same_boot = facts["kept"].get("boot_id") == facts["boot_id"]
    before = facts["kept"].get("full")
    full = max(len(now), before if same_boot and isinstance(before, int) else 0)
    new = {
        "boot_id": facts["boot_id"],
        "active": active,
        "devices": devices,
        "since": since,
        "full": full,
        "last_full": _last_full(facts),
    }
    return None if new == facts["kept"] else new


def valid_while(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """Return the conditions that active ports stay active."""
    ports = [(device, port) for _, device, port in _ports(facts, options) if rdma.is_active(port)]
    return [("says", f"{rdma.CLASS}/{device['name']}/ports/{port['port']}/state", "ACTIVE") for device, port in ports]


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/class/infiniband, /sys/class/net/*/flags, /sys/bus/pci/devices, and what earlier runs saw",
    cost="a dozen small reads a port, some of which ask the card's firmware: 1–5 ms",
    lane=rdma.LANE,
    options={
        "expected": Option(0, "ports that must be active; 0: any", "ours: only the site knows"),
        "ignore": Option(
            [],
            "list of devices, ports (`mlx5_4/1`), interfaces or boards to ignore: management, storage, unused",
            "ours: none is",
        ),
        "link_layer": Option(
            {},
            "`InfiniBand` or `Ethernet`, as ports must run: {port, device, board, model or `default`: layer}",
            "ours: empty; one board may serve as either",
            ("InfiniBand", "Ethernet"),
        ),
        "grace_s": Option(30.0, "s for which a port or card that was up may be away", "ours: links train in seconds"),
        "boot_grace_s": Option(
            120.0,
            "s after boot before fewer ports than in the last boot warn (where nodecheck.cache_dir outlives a boot)",
            "ours: drivers and subnet manager need up to a minute",
        ),
    },
)
