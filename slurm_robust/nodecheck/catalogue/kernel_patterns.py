"""Lists the kernel's words for each kind of trouble, and what to do about each kind.

No kind alone makes a node unfit: a job that eats all memory is killed on a healthy node, corrected errors are normal,
and lasting damage is seen by the check that looks at the device itself. Words are those of Linux 4.18 to 6.12 (mlx5:
drivers/net/ethernet/mellanox/mlx5/core/health.c), of Lustre 2.12 to 2.15 and of NVIDIA's open driver 595, matched at
the beginning of a message, by words of the kernel's own that are longer than a process's name. Users' own texts in the
log are left out before (`kmsg_line.KernelRecord.evidence`). Pure; patterns are compiled only when a line holds the
plain word beside them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

_MAX_EXAMPLE_CHARS = 200
_MAX_NAMES = 32


class Trouble(NamedTuple):
    """A kind of trouble.

    Attributes:
        remedy: The next action of a person.
        lines: (word in each such line, its pattern); the group `name` is the device or server that the line is about.
        over: Word and pattern of the line that takes the trouble back, for the same `name`.
        often: The number of lines since the last look from which on the trouble is told; more than 1 for errors that
            are corrected anyway.
    """

    remedy: str
    lines: tuple[tuple[str, str], ...]
    over: tuple[str, str] | None = None
    often: int = 1


_PCI = r"(?P<name>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])"
_PCI_DRIVER = rf"[\w-]{{1,20}} {_PCI}: "
_PCI_NIC = rf"[\w-]{{1,20}} {_PCI}(?: [\w.@-]{{1,15}})?: "
"""`netdev_err` puts the interface's name behind the address."""
_FS = r"(?:EXT[234]-fs|XFS|BTRFS|F2FS-fs)"
# What users bring images on: a damaged one is no fault of the node.
_DISK = r"(?P<name>(?!sr\d|fd\d|loop\d|nbd\d|ram\d)[\w-]+)"
_GHES = r"(?:\{\d+\}|mce: )?\[Hardware Error\]: "
_TARGET = r"(?P<name>[\w.-]{1,80})"
_LIBCFS = r"(?:Lustre|LNet)(?:Error)?: \d+:\d+:\([\w.-]{1,40}:\d+:\w{1,60}\(\)\) "
_WHY = r"(?:[\w /-]{1,45}(?: \(0x[0-9a-f]+\) detected at [^'\"]{1,120})?[.;] +)?"
"""XFS says first why it shuts down (xfs_fsops.c)."""
_DIE = r"(?<=: )[0-9a-f]{4,16} \[#\d+\] (?:PREEMPT\w* )?SMP\b"
_UC = r"[abef][0-9a-f]{15}\b"
"""A bank's status that is valid (bit 63) and uncorrected (bit 61): IA32_MCi_STATUS, Intel SDM volume 3B."""
_MEMORY = "have the memory looked at if it repeats"
_DISKS = "look at the disk: `smartctl -a` or `nvme smart-log`"
_NIC = "look at the adapter, its cable and slot; reset or update it if it repeats"
_HEAT = "look at fans, inlet temperature and heat sinks"

# In the order of their weight: of several, the last is told first.
KINDS: dict[str, Trouble] = {
    "oom_kill": Trouble(
        "a job used more memory than there is; nothing is wrong with the node",
        (
            ("ut of memory", r"(?:Memory cgroup out of memory|Out of memory)[:,].*Kill"),
            ("oom-kill:", r"oom-kill:constraint="),
        ),
    ),
    "hung_task": Trouble(
        "a process waited long in the kernel: look for a slow or dead file system",
        (("blocked ", r"INFO: task .{1,40}:\d+ blocked (?:in I/O wait )?for more than \d+ seconds"),),
    ),
    "nfs_server": Trouble(
        "look at the file server and the way to it",
        (("nfs: server", r"nfs: server (?P<name>\S{1,200}) (?:not responding|timed out)"),),
        over=("nfs: server", r"nfs: server (?P<name>\S{1,200}) OK"),
    ),
    "lnet_timeout": Trouble(
        "look at the way to the Lustre servers: `lnetctl net show -v`, `lnetctl peer show`",
        (("Timed out ", rf"{_LIBCFS}Timed out (?:tx|RDMA|AH)\b(?:.{{0,20}}? (?P<name>[\w.:-]{{1,60}}@\w{{2,10}}))?"),),
    ),
    "lustre_lost": Trouble(
        "look at the Lustre servers and the way to them: `lfs check servers`",
        (("Connection to", rf"Lustre: (?:[\w:]{{1,30}}: )?{_TARGET}: Connection to .{{1,100}} was lost"),),
        over=("Connection restored", rf"Lustre: (?:[\w:]{{1,30}}: )?{_TARGET}: Connection restored to "),
    ),
    "lustre_evicted": Trouble(
        "a job that wrote there lost data; look at the Lustre servers and the way to them",
        (("was evicted by", rf"LustreError: (?:[\w:-]{{1,80}}: ){{0,3}}This client was evicted by {_TARGET}"),),
    ),
    "limit_reached": Trouble(
        "a limit of the kernel was met: raise it with sysctl, or look for who uses so much",
        (
            ("file-max limit", r"VFS: file-max limit \d+ reached"),
            ("table full", r"nf_conntrack: (?:nf_conntrack: )?table full"),
            ("table overflow", r"neighbou?r: \w+: neighbor table overflow"),
            ("TCP: out of memory", r"TCP: out of memory"),
        ),
    ),
    "clock_unstable": Trouble(
        "time is read slowly from now on: reboot; look for firmware faults if it repeats",
        (("clocksource: ", r"clocksource: .*Marking clocksource '(?!tsc-early)[^']{1,20}' as unstable"),),
    ),
    "throttled": Trouble(
        _HEAT, (("temperature", r"(?:mce: )?CPU\d+: (?:Core|Package) temperature (?:is )?above threshold"),), often=10
    ),
    "overheated": Trouble(
        _HEAT,
        (
            ("critical temperature", r"thermal thermal_zone\d+: .*critical temperature"),
            ("High Temperature", rf"{_PCI_DRIVER}.*Port module event.*High Temperature"),
            ("over temperature", rf"{_PCI_DRIVER}.*[Ff]irmware over temperature"),
        ),
    ),
    "pcie_corrected": Trouble(
        "reseat the card if it goes on; the link repeats what it corrects, and is slower for it",
        (
            ("orrected error", rf"{_PCI_DRIVER}(?:AER: )?(?:Multiple )?Corrected error (?:message )?received"),
            ("severity=Corrected", rf"{_PCI_DRIVER}(?:AER: )?PCIe Bus Error: severity=Corrected"),
        ),
        often=100,
    ),
    "memory_corrected": Trouble(
        _MEMORY,
        (
            (" CE ", r"EDAC (?P<name>MC\d+): \d+ CE .{0,900}\bpage:0x"),
            ("no action required", rf"{_GHES}Corrected error, no action required"),
            ("event severity: corrected", rf"{_GHES}event severity: corrected"),
        ),
        often=24,
    ),
    "iommu_fault": Trouble(
        "a device wrote where it may not: look at its driver; peer-to-peer transfers meet ACS and the IOMMU so",
        (
            ("DMAR: [DMA", r"DMAR: \[DMA (?:Read|Write)[^\]]{0,40}\] Request device "),
            ("IO_PAGE_FAULT", r"(?:AMD-Vi: |[\w-]+ [0-9a-f:.]+: AMD-Vi: )Event logged \[IO_PAGE_FAULT"),
        ),
    ),
    "slot_power": Trouble(
        "look at the slot's power setting and cable",
        (("insufficient power", rf"{_PCI_DRIVER}.*Detected insufficient power on the PCIe slot"),),
    ),
    "nic_timeout": Trouble(
        _NIC,
        (
            (
                "NETDEV WATCHDOG",
                r"NETDEV WATCHDOG: (?:CPU: \d+: )?(?P<name>[\w.-]{1,15}) \([^)]{0,40}\): transmit queue ",
            ),
            ("NETDEV WATCHDOG", rf"{_PCI_NIC}.{{0,40}}NETDEV WATCHDOG"),
            ("TX timeout", rf"{_PCI_NIC}.{{0,40}}TX timeout detected"),
        ),
    ),
    "nic_firmware": Trouble(
        _NIC,
        (
            ("Fatal error", r"mlx[45]_core " + _PCI + r": .*Fatal error \d+ detected"),
            ("health compromised", r"mlx[45]_core " + _PCI + r": .*health compromised"),
            ("internal error", r"mlx[45]_core " + _PCI + r": .*[Ii]nternal error (?:state|detected)"),
            # Its severity is syslog's: from 5 on it is told and is no error.
            (
                "Health issue observed",
                r"mlx5_core " + _PCI + r": .*Health issue observed, firmware internal error(?!, severity\([5-7]\))",
            ),
            ("recovery flow aborted", r"mlx5_core " + _PCI + r": .*health recovery flow aborted"),
            ("timeout. Will cause a leak", r"mlx[45]_core " + _PCI + r": .*timeout\. Will cause a leak"),
            ("firmware", rf"bnxt_en {_PCI}.*(?:[Ff]irmware (?:not responding|fatal|reset)|fw fatal)"),
        ),
    ),
    "gpu_driver": Trouble(
        "look at `nvidia-smi` and `dmesg | grep NVRM`; a GPU that cannot be started needs a power cycle",
        (
            ("nitAdapter failed", rf"NVRM: (?:GPU {_PCI}: )?RmInitAdapter failed"),
            ("rm_init_adapter failed", r"NVRM: .*rm_init_adapter failed"),
            ("fallen off the bus", rf"NVRM: (?:(?:The NVIDIA )?GPU (?:at )?{_PCI}\b)?(?!Xid).*fallen off the bus"),
            ("NV_ERR_RESET_REQUIRED", r"NVRM: .*\[NV_ERR_RESET_REQUIRED\]"),
            ("probe routine failed", r"NVRM: The NVIDIA probe routine failed"),
            (
                "devices were initialized",
                r"NVRM: None of the NVIDIA (?:graphics )?(?:adapters|devices) were initialized",
            ),
        ),
    ),
    "disk_reset": Trouble(
        _DISKS,
        (
            ("timeout, ", r"nvme (?P<name>nvme\d+): I/O .*timeout, (?:reset|abort|disable)"),
            ("controller is down", r"nvme (?P<name>nvme\d+): controller is down"),
            ("failed command", r"(?P<name>ata\d+)\.\d+: failed command"),
        ),
    ),
    "io_error": Trouble(
        _DISKS,
        (
            ("error, dev ", rf"(?:\w+: )?(?:critical \w+ error|I/O error), dev {_DISK}, sector "),
            ("Buffer I/O error", rf"Buffer I/O error on dev(?:ice)? {_DISK}"),
            ("I/O Error (sct", r"(?P<name>nvme\w+): I/O Cmd.* I/O Error \(sct"),
        ),
    ),
    "disk_lost": Trouble(
        "a disk is gone: drain and have it replaced where jobs use it",
        (
            ("reset failure", r"nvme (?P<name>nvme\d+): Disabling device after reset failure"),
            ("probe failure", r"nvme (?P<name>nvme\d+): Removing after probe failure"),
            ("available path", r"block (?P<name>nvme\w+): no available path - failing I/O"),
            ("Disk failure on", r"md/raid\S*: ?Disk failure on (?P<name>\w+)"),
            ("rejecting I/O", r"sd \S+: (?:\[(?P<name>\w+)\] )?rejecting I/O to (?:offline|dead) device"),
        ),
    ),
    "fs_error": Trouble(
        "a file system is damaged: drain, run fsck or xfs_repair",
        (
            ("EXT4-fs error", rf"EXT4-fs error \(device {_DISK}\)"),
            (
                "XFS (",
                rf"XFS \({_DISK}\): (?:Metadata (?:corruption|CRC error)|Corruption (?:of (?:in-|on-)|det))",
            ),
            ("BTRFS", rf"BTRFS (?:error|critical) \(device {_DISK}"),
            (
                "beyond end of device",
                r"(?:(?:\\x..|[^\\]){1,15}: )?attempt to access beyond end of device(?!\\x0a(?:loop|nbd|ram|sr|fd)\d)",
            ),
            ("SQUASHFS error", r"SQUASHFS error: .{0,60}?(?:\bread\b|failed|corrupt|\berror\b)"),
        ),
    ),
    "stall": Trouble(
        "a CPU was stuck in the kernel: look at the lines behind it; reboot if it repeats",
        (
            ("soft lockup", r"(?:watchdog: |NMI watchdog: )?BUG: soft lockup"),
            ("hard LOCKUP", r"(?:NMI )?watchdog: (?:BUG: )?(?:Watchdog detected )?hard LOCKUP"),
            ("detected", r"(?:rcu: )?INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stall"),
        ),
    ),
    "lustre_bug": Trouble(
        "the Lustre client met a bug of its own and its thread never ends: reboot; report the lines behind it",
        (("LBUG", rf"{_LIBCFS}LBUG"), ("ASSERTION(", rf"{_LIBCFS}ASSERTION\(.{{0,200}}failed")),
    ),
    "oops": Trouble(
        "the kernel met a bug of its own and goes on without surety: reboot; report the lines behind it",
        (
            (
                "[#",
                rf"(?:Oops|general protection fault|invalid opcode|divide error|stack segment)[:,] .{{0,120}}?{_DIE}",
            ),
            ("BUG: ", r"BUG: (?:unable to handle|kernel NULL pointer|Bad page (?:state|map|cache))"),
            ("kernel BUG at", r"kernel BUG at [\w./-]{1,200}:\d+!"),
            ("Internal error: Oops", r"Internal error: Oops"),
        ),
    ),
    "panic": Trouble(
        "the kernel gave up: look at the lines before it", (("Kernel panic", r"Kernel panic - not syncing"),)
    ),
    "pcie_error": Trouble(
        "look at the card and its slot: `lspci -vvs` on it; reseat it if it repeats",
        (
            ("Uncorrect", rf"{_PCI_DRIVER}(?:AER: )?(?:Multiple )?Uncorrect(?:ed|able) \("),
            ("severity=Uncorrect", rf"{_PCI_DRIVER}(?:AER: )?PCIe Bus Error: severity=Uncorrect"),
            ("DPC: containment", rf"pcieport {_PCI}: DPC: containment event"),
        ),
    ),
    "memory_failure": Trouble(
        f"a memory page is bad; {_MEMORY}",
        (
            ("Memory failure", r"Memory failure: 0x[0-9a-f]+: .*(?:[Ff]ailed|Ignored)"),
            ("memory corruption", r"Memory failure: 0x[0-9a-f]+: Killing .* due to hardware memory corruption"),
        ),
    ),
    "machine_check": Trouble(
        f"read `journalctl -k | grep -i 'hardware error'`; {_MEMORY}",
        (
            ("Uncorrected", rf"{_GHES}.*Uncorrected"),
            ("uncorrected", rf"{_GHES}.*uncorrected"),
            ("Machine Check", rf"{_GHES}CPU \d+: Machine Check(?: Exception)?: (?:[1-9a-f]|0 Bank \d+: {_UC})"),
            ("event severity", rf"{_GHES}event severity: (?:fatal|recoverable)"),
            ("Uncorrected hardware", r"(?:mce: )?Uncorrected hardware memory error"),
            ("achine check:", rf"(?:{_GHES}|mce: )(?:CPU \d+ )?Machine check: .*[Ff]atal"),
            (" UE ", r"EDAC (?P<name>\S+): \d+ UE .{0,900}\bpage:0x"),
        ),
    ),
    "fs_shutdown": Trouble(
        "a file system gave up after an error: drain, unmount it, run xfs_repair, look at the disk",
        (
            ("hutting down", rf"{_FS} \({_DISK}\): {_WHY}[Ss]hutting down filesystem"),
            ("orced shutdown", rf"{_FS} \({_DISK}\): {_WHY}[Ff]orced shutdown(?!\()"),
        ),
        over=("ounting ", rf"{_FS} \((?:device )?{_DISK}\): (?:[Uu]nmounting|Mounting V)"),
    ),
    "remount_ro": Trouble(
        "a file system met an error: drain, run fsck, look at the disk",
        (
            ("emounting filesystem", rf"{_FS} \({_DISK}\): (?:error: )?[Rr]emounting filesystem read-only"),
            (
                "orced readonly",
                rf"BTRFS (?:info|warning|error|critical) \(device {_DISK}[^)]{{0,20}}\): forced readonly",
            ),
        ),
    ),
}
_TABLE = [
    (word, pattern, kind, over)
    for kind, trouble in reversed(KINDS.items())
    for lines, over in ((trouble.lines, False), ((trouble.over,) if trouble.over else (), True))
    for word, pattern in lines
]

WORDS = tuple(sorted({word for word, *_ in _TABLE}))
"""A line that tells of trouble has one of them."""


def sort(text: str) -> tuple[str, str, bool] | None:
    """Return (kind, name or empty, whether the line takes the trouble back); None if the line tells no trouble."""
    for word, pattern, kind, over in _TABLE:
        if word in text and (match := re.match(pattern, text)):
            return kind, match.groupdict().get("name") or "", over
    return None


def kinds_of(words: Collection[str]) -> set[str]:
    """Return the kinds whose lines hold one of these words."""
    return {kind for word, _, kind, over in _TABLE if word in words and not over}


class TroubleTally:
    """Counts lines by kind; each line is looked at once.

    Attributes:
        seen: By kind: number of lines, one example, named devices or servers. Trouble that was taken back after its
            last line (a server that answers again) is not counted.
    """

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, Any]] = {}
        self._back: list[list[str]] = []

    @property
    def back(self) -> list[list[str]]:
        """(kind, name) of the last troubles that were taken back."""
        return self._back[-_MAX_NAMES:]

    def add(self, text: str) -> None:
        """Count one line."""
        said = sort(text)
        if said is None:
            return
        kind, name, over = said
        if over:
            self._take_back(kind, name)
            return
        entry = self.seen.setdefault(kind, {"count": 0, "example": text[:_MAX_EXAMPLE_CHARS], "names": []})
        entry["count"] += 1
        if name and name not in entry["names"] and len(entry["names"]) < _MAX_NAMES:
            entry["names"].append(name)

    def _take_back(self, kind: str, name: str) -> None:
        self._back.append([kind, name])
        if kind in self.seen and name in self.seen[kind]["names"]:
            self.seen[kind]["names"].remove(name)
            if not self.seen[kind]["names"]:
                del self.seen[kind]


def count(texts: Iterable[str]) -> tuple[dict[str, dict[str, Any]], list[list[str]]]:
    """Return `TroubleTally.seen` and `back` of these lines."""
    tally = TroubleTally()
    for text in texts:
        tally.add(text)
    return tally.seen, tally.back
