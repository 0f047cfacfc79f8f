"""Do PCIe switches let GPUs and network cards reach each other directly?"""

from __future__ import annotations

from pathlib import Path

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import pci, small_files

_DOWNSTREAM_PORT = 6
_REDIRECTS = 0x0C
"""P2P Request Redirect and P2P Completion Redirect of the ACS control register."""


def _bridges(gpu: Path) -> list[Path]:
    """Return the PCI devices above this one, nearest first."""
    try:
        return [parent for parent in gpu.resolve().parents if pci.ADDRESS.match(parent.name)]
    except (OSError, RuntimeError):  # a link that leads to itself
        return []


def probe(context: Context, options: Options) -> Facts:
    """Read the switch ports above each GPU, and whether they send traffic between cards up to the processor."""
    ports: dict[str, Facts] = {}
    gpus = 0
    if context.path("/proc/driver/nvidia/version").exists():
        for device in pci.gpus(context):
            gpus += 1
            for bridge in _bridges(device):
                if bridge.name not in ports:
                    config = pci.read_config(bridge)
                    ports[bridge.name] = {
                        "type": pci.port_type(config),
                        "acs": pci.acs_control(config),
                        "bytes": len(config),
                    }
    return {
        "gpus": gpus,
        "ports": ports,
        "virtual": "hypervisor" in small_files.read_text(context.path("/proc/cpuinfo"), 8192),
    }


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: traffic takes the longer way, but arrives."""
    if not facts["gpus"]:
        return Finding.skip("no_gpu", "no GPU of NVIDIA's driver is here")
    if facts["virtual"]:
        return Finding.skip("virtual", "a virtual machine: what lies between its cards is the host's")
    switches = {name: port for name, port in facts["ports"].items() if port["type"] == _DOWNSTREAM_PORT}
    if facts["ports"] and not any(port["bytes"] > 256 for port in facts["ports"].values()):
        return Finding.skip("not_root", "only root may read what PCIe switches do")
    if not switches:
        return Finding.skip("no_switch", "no PCIe switch is above a GPU")
    redirect = sorted(name for name, port in switches.items() if (port["acs"] or 0) & _REDIRECTS)
    if redirect and options["wanted_off"]:
        text = f"{len(redirect)} PCIe switch ports above GPUs send peer traffic to the processor (ACS)"
        remedy = f"`setpci -s {redirect[0]} ECAP_ACS+6.w=0` for each at boot, or disable ACS in the firmware"
        return Finding.warn("acs_redirects", text, remedy, {"ports": redirect})
    return Finding.passed("p2p_direct", f"{len(switches)} PCIe switch ports let peers reach each other")


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/bus/pci/devices/*/{vendor,class}, the config space of the ports above each GPU (root only)",
    cost="one read a device and a port, 1–5 ms",
    lane="files",
    options={"wanted_off": Option(True, "warn where ACS redirects peer traffic", "NCCL's guide: no ACS on bare metal")},
)
