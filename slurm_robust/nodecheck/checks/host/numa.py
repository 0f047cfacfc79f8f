"""Is the memory spread over the sockets as it should be?"""

from __future__ import annotations

import re

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import small_files

_TOTAL = re.compile(r"MemTotal:\s+(\d{1,15}) kB")


def probe(context: Context, options: Options) -> Facts:
    """Memory (kB) and CPUs of each node. Nodes without CPUs (GPU memory of Grace, CXL, HBM) are named, not judged."""
    nodes = {}
    for folder in small_files.matching(context.path("/sys/devices/system/node"), "node[0-9]*"):
        total = _TOTAL.search(small_files.read_text(folder / "meminfo", 16384))
        if total is None:
            continue
        cpus = len(small_files.cpus(small_files.text(folder / "cpulist", 4096)))
        nodes[folder.name] = {"kb": int(total[1]), "cpus": cpus}
    return {"nodes": nodes}


def judge(facts: Facts, options: Options) -> Finding:
    """Fail only if the site says how many nodes there must be; uneven memory warns."""
    with_cpus = {name: node for name, node in facts["nodes"].items() if node["cpus"]}
    if not with_cpus:
        return Finding.skip("no_numa", "the kernel reports no memory nodes here")
    expected = options["expected_nodes"]
    if expected and len(with_cpus) != expected:
        sentence = f"{len(with_cpus)} memory nodes with CPUs, {expected} are expected"
        remedy = "look at the firmware's settings (NPS, SNC, node interleaving) and for a lost socket"
        return Finding.fail("numa_nodes", sentence, remedy, facts)
    empty = [name for name, node in with_cpus.items() if not node["kb"]]
    if empty:
        sentence = f"no memory at the CPUs of {', '.join(empty)}"
        return Finding.warn("numa_empty", sentence, "look for failed modules: `dmidecode -t memory`", facts)
    least = min(with_cpus, key=lambda name: with_cpus[name]["kb"])
    largest_kb = max(node["kb"] for node in with_cpus.values())
    if with_cpus[least]["kb"] < largest_kb * options["warn_share"]:
        sentence = f"{least} has {with_cpus[least]['kb'] >> 10} MiB, the largest memory node {largest_kb >> 10}"
        return Finding.warn("numa_uneven", sentence, "look for failed modules: `dmidecode -t memory`", facts)
    words = "node" if len(with_cpus) == 1 else "nodes of like size"
    return Finding.passed("numa_even", f"{len(with_cpus)} memory {words}", facts)


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/devices/system/node/node*/{meminfo,cpulist}",
    cost="two small reads a memory node, 1 ms",
    lane="files",
    options={
        "expected_nodes": Option(
            0, "memory nodes with CPUs that there must be; 0: any", "ours: only the site knows its firmware"
        ),
        "warn_share": Option(
            0.85,
            "share of the largest below which the smallest warns",
            "ours: the kernel's and crash dump's share of node 0 is below a tenth; one module of eight is 12 %",
        ),
    },
)
