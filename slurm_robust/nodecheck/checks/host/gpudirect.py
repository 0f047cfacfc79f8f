"""May cards talk to each other directly, as GPUDirect wants: ACS off, the IOMMU off or passing through?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import pci, small_files

_BRIDGE = "0x0604"
# Source validation, request and completion redirection, upstream forwarding, egress control (PCIe base specification).
_REDIRECTS = 0x3D


def probe(context: Context, options: Options) -> Facts:
    """Bridges with ACS on, and how the IOMMU maps; nothing if the site asks for nothing."""
    facts: Facts = {"bridges": 0, "redirecting": [], "translating": 0, "groups": 0}
    if options["acs"]:
        for device in small_files.matching(context.path(pci.DEVICES), "*:*"):
            if not small_files.text(device / "class", 16).startswith(_BRIDGE):
                continue
            control = pci.acs_control(pci.read_config(device))
            if control is not None:
                facts["bridges"] += 1
                if control & _REDIRECTS:
                    facts["redirecting"].append(device.name)
    if options["iommu"]:
        for group in small_files.matching(context.path("/sys/kernel/iommu_groups"), "[0-9]*"):
            facts["groups"] += 1
            facts["translating"] += small_files.text(group / "type", 32).startswith("DMA")
    return facts


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: transfers then go by the processor, slower, and a virtual machine may want it so."""
    if not options["acs"] and not options["iommu"]:
        return Finding.skip("not_asked", "the site asks for nothing here (nodecheck.options.gpudirect)")
    if facts["redirecting"]:
        told = ", ".join(facts["redirecting"][:4])
        sentence = f"ACS is on at {len(facts['redirecting'])} PCIe bridges ({told}), off is expected"
        remedy = "switch it off in the firmware, or with `setpci -s BRIDGE ECAP_ACS+6.w=0000` at boot"
        return Finding.warn("acs_on", sentence, remedy, facts)
    wrong = facts["groups"] if options["iommu"] == "off" else facts["translating"]
    if options["iommu"] and wrong:
        sentence = f"the IOMMU is on for {wrong} groups of devices, {options['iommu']} is expected"
        return Finding.warn("iommu_on", sentence, "boot with `iommu=pt`, or switch it off in the firmware", facts)
    return Finding.passed("direct", "cards may talk to each other directly", facts)


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/bus/pci/devices/*/{class,config} (as root), /sys/kernel/iommu_groups/*/type; nothing without an option",
    cost="two small reads a PCIe device, 2–10 ms",
    lane="files",
    options={
        "acs": Option(
            "",
            "`off`: warn where a bridge redirects; empty: any",
            "ours: NVIDIA's NCCL guide wants it off on bare metal, and virtual machines need it",
            ("off",),
        ),
        "iommu": Option("", "`off` or `pt` (passing through); empty: any", "ours: as above", ("off", "pt")),
    },
)
