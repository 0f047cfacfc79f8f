"""The network checks over a tree of which any file may be missing, truncated, not text, or absurd."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from network_trees import BOOT, REAL, ROCE, UP, device, garble, interface, no_crash, write

from slurm_robust.nodecheck.checks.network.ethernet_errors import LIMITS as STATISTICS
from slurm_robust.nodecheck.checks.network.rdma_errors import LIMITS as ERRORS
from slurm_robust.nodecheck.checks.network.rdma_transport import LIMITS as TRANSPORT
from slurm_robust.nodecheck.engine import check_state, registry, runner
from slurm_robust.nodecheck.engine.context import Context

NETWORK = [name for name in registry.NAMES if registry.GROUP_OF[name] == "network"]
FILES = {
    BOOT: "boot-1\n",
    "/proc/net/route": "Iface Destination Gateway Flags R U M Mask\nbond0 00000000 010200C0 0003 0 0 0 00000000\n",
    "/proc/net/ipv6_route": f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} 00000400 00000001 00000000 00000003     bond0\n",
    "/proc/net/arp": "IP address HW type Flags HW address Mask Device\n192.0.2.1 0x1 0x2 02:fc:00:00:00:05 * bond0\n",
    "/proc/net/stat/arp_cache": "entries table_fulls\n00000002 00000000\n",
    "/proc/net/stat/ndisc_cache": "entries table_fulls\n00000002 00000000\n",
    "/proc/net/stat/nf_conntrack": "entries drop early_drop\n00000002 00000000 00000000\n",
    "/proc/net/bonding/bond0": "Bonding Mode: 802.3ad\n\nSlave Interface: eth0\nMII Status: up\nSpeed: 1000 Mbps\n",
    "/proc/sys/net/ipv4/neigh/default/gc_thresh3": "1024\n",
    "/proc/sys/net/ipv6/neigh/default/gc_thresh3": "1024\n",
    "/proc/sys/net/netfilter/nf_conntrack_count": "1\n",
    "/proc/sys/net/netfilter/nf_conntrack_max": "262144\n",
    "/sys/class/net/lo/flags": "0x9\n",
    "/etc/resolv.conf": "nameserver 10.0.0.1\n",
    "/etc/hosts": "10.0.0.1 ctl1\n",
    "/etc/slurm/slurm.conf": "SlurmctldHost=ctl1\nSlurmctldPort=6817\n",
    "/kmsg": "6,1,1,-;mlx5_core 0000:01:00.0 eth0: Link up\n",
    "/sys/module/ib_uverbs/refcnt": "8\n",
}


def healthy(root: Path) -> None:
    """A node with four InfiniBand and two bonded RoCE cards, complete."""
    write(root, FILES)
    for number in range(6):
        name, pci = f"mlx5_{number}", f"0000:{number:02x}:00.0"
        folder = device(root, name, UP if number < 4 else ROCE, pci=pci, ids=("0x15b3\n", "0x1021\n"))
        write(folder / "ports/1/counters", dict.fromkeys(("link_downed", *ERRORS), "3\n"))
        write(folder / "ports/1/hw_counters", dict.fromkeys(TRANSPORT, "3\n"))
        write(folder / "ports/1", {"gids/0": "fe80::1\n", "gid_attrs/types/0": "RoCE v2\n"})
        write(folder / "ports/1", {"gids/1": "::ffff:10.0.0.1\n", "gid_attrs/types/1": "RoCE v2\n"})
        write(root / f"sys/class/infiniband_verbs/uverbs{number}", {"ibdev": f"{name}\n"})
        write(root / "dev/infiniband", {f"uverbs{number}": ""})
        (root / f"dev/infiniband/uverbs{number}").chmod(0o666)
        bus = root / "sys/bus/pci/devices" / pci
        link = {"current_link_speed": "32.0 GT/s PCIe\n", "current_link_width": "16\n", "class": "0x020700\n"}
        write(bus, link | {"max_link_speed": "32.0 GT/s PCIe\n", "max_link_width": "16\n", f"infiniband/{name}/x": ""})
        write(bus, {"aer_dev_fatal": "TOTAL_ERR_FATAL 0\n", "aer_dev_correctable": "TOTAL_ERR_COR 0\n"})
        write(root / "sys/bus/pci/drivers/mlx5_core" / pci, {"uevent": ""})
        if number >= 4:
            own = interface(root, f"eth{number - 4}", type="1", carrier_changes="2", carrier_down_count="1")
            write(own / "statistics", dict.fromkeys((*STATISTICS, "rx_packets", "tx_packets"), "3\n"))
            (bus / "net" / f"eth{number - 4}").mkdir(parents=True)
    bond = interface(root, "bond0", type="1")
    (bond / "device").rmdir()
    for name in ("eth0", "eth1"):
        (bond / f"lower_{name}").symlink_to(f"../{name}")


def test_the_tree_that_is_garbled_below_is_healthy(tmp_path: Path) -> None:
    """Whole, it has no finding above pass or skip, at the first look and at the next ones."""
    healthy(tmp_path)
    context = Context("n1", "full", tmp_path, tmp_path / "kmsg", tmp_path / "cache")
    checks = [registry.get(name) for name in NETWORK]
    for _ in range(3):
        for result in runner.run(checks, context, {}, 20.0).results:
            assert result.finding.status.value in ("pass", "skip"), result
    looked = {
        result.name for result in runner.run(checks, context, {}, 20.0).results if result.finding.status == "pass"
    }
    assert looked >= {name for name in NETWORK if name not in ("own_name", "chrony", "network_sysctls")}


@pytest.mark.parametrize("seed", range(15))
def test_whatever_the_files_hold_there_is_a_finding(tmp_path: Path, seed: int) -> None:
    """No exception in any probe, judge or memory; what was remembered of a healthy look does not change that."""
    healthy(tmp_path)
    context = Context("n1", "full", tmp_path, tmp_path / "kmsg", tmp_path / "cache")
    for name in NETWORK:
        check = registry.get(name)
        facts = check.probe(context, check.settings({}))
        if check.remember is not None and (kept := check.remember(facts, check.settings({}))):
            assert check_state.save(tmp_path / "cache", name, kept)
    random_ = random.Random(seed)
    garble(tmp_path, random_, share=random_.choice([0.05, 0.3, 0.9]))
    no_crash(NETWORK, tmp_path, tmp_path / "cache")
    no_crash(NETWORK, tmp_path, None)


def test_facts_and_memory_are_plain_json(tmp_path: Path) -> None:
    """They cross a pipe, and a file."""
    healthy(tmp_path)
    context = Context("n1", "full", tmp_path, tmp_path / "kmsg", tmp_path / "cache")
    for name in NETWORK:
        check = registry.get(name)
        facts = check.probe(context, check.settings({}))
        assert json.loads(json.dumps(facts)) == facts, name
        finding = check.judge(facts, check.settings({}))
        json.dumps(dict(finding.evidence))
        if check.remember is not None:
            kept = check.remember(facts, check.settings({}))
            assert json.loads(json.dumps(kept)) == kept, name
            assert kept is not None, name


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    """A prolog has no time for it."""
    healthy(tmp_path)
    context = Context("n1", "full", tmp_path, tmp_path / "kmsg", tmp_path / "cache")
    for name in ("rdma_ports", "rdma_rate", "ethernet", "default_route"):
        check = registry.get(name)
        facts = check.probe(context, check.settings({}))
        assert check.remember is not None
        assert check_state.save(tmp_path / "cache", name, check.remember(facts, check.settings({})) or {})
        facts = check.probe(replace(context, shared={}), check.settings({}))
        assert check.remember(facts, check.settings({})) is None, name


@pytest.mark.parametrize("seed", range(4))
def test_real_material_garbled(tmp_path: Path, seed: int) -> None:
    """The same with a copy of a real machine's files."""
    if not REAL.is_dir():
        pytest.skip(f"real material is not here: {REAL}")
    shutil.copytree(REAL, tmp_path / "sys/class/infiniband")
    for path in tmp_path.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    garble(tmp_path, random.Random(seed))
    no_crash(NETWORK, tmp_path, None)


def test_a_card_that_hangs_holds_up_no_other_check(tmp_path: Path) -> None:
    """Reading a port asks its firmware, which may never answer: the RDMA checks say so, the others look."""
    healthy(tmp_path)
    rate = tmp_path / "sys/class/infiniband/mlx5_3/ports/1/rate"
    rate.unlink()
    os.mkfifo(rate)
    context = Context("n1", "full", tmp_path, tmp_path / "kmsg")
    names = ("rdma_ports", "rdma_rate", "rdma_errors", "ethernet", "bonding", "nic_log")
    report = runner.run([registry.get(name) for name in names], context, {}, 1.0)
    said = {result.name: result.finding.status.value for result in report.results}
    assert said == dict.fromkeys(names[:3], "unknown") | dict.fromkeys(names[3:], "pass")
