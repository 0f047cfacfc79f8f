"""Each of the kernel's formats that repeats a user's words gives no evidence, whatever these words are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.catalogue import kernel_patterns
from slurm_robust.nodecheck.checks.gpu import xid
from slurm_robust.nodecheck.checks.network import nic_log
from slurm_robust.nodecheck.sources.kmsg import KernelLog

# As of Linux 4.18 to 6.12 and NVIDIA's open driver: C is a name of 15 bytes, F a file's name, W a word without blanks.
FORMATS = [
    "{C}[4711]: segfault at 0 ip 0000000000401656 sp 00007ffe59288340 error 6 in {F}[401000+78000]",
    "{C}[4711]: segfault at 0 ip 0000000000401656 sp 00007ffe59288340 error 6 in {F}[1656,401000+7] likely on CPU 0",
    "{C}[4711] general protection fault ip:401656 sp:7ffe error:0 in {F}[401000+78000]",
    "{C}[4711] bad frame in rt_sigreturn frame:0000 ip:401656 sp:7ffe orax:ffffffffffffffff in {F}[401000+78000]",
    "{C}[4711] vsyscall attempted with vsyscall=none ip:ffffffffff600000 cs:33 sp:7ffe ax:0 si:0 di:0",
    "{C}[4711]: unhandled exception: DABT (lower EL), ESR 0x92000046, level 2 translation fault in {F}[400000+1000]",
    "{C}[4711]: unhandled signal 11 (11) at 0000 nip 1000 lr 1000 code 1 in {F}[1000+1000]",
    "traps: {C}[4711] trap invalid opcode ip:401656 sp:7ffe error:0 in {F}[401000+78000]",
    "traps: {C}[4711] general protection fault ip:401656 sp:7ffe error:0 in {F}[401000+78000]",
    "{C}/4711: potentially unexpected fatal signal 11.",
    "{C}: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL|__GFP_COMP|__GFP_ZERO), nodemask=(null)",
    "{C}: vmalloc error: size 4096, page order 0, failed to allocate pages, mode:0xcc2(GFP_KERNEL), nodemask=(null)",
    "{C} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "{C} (4711): Using mlock ulimits for SHM_HUGETLB is deprecated",
    "{C} (4711) used greatest stack depth: 11111 bytes left",
    "{C} uses obsolete (PF_INET,SOCK_PACKET)",
    "{C} calls setitimer() with new_value NULL pointer. Misfeature support will be removed",
    "{C} sent an empty control message without MSG_MORE.",
    "{C} wrote to /proc/sys/net/ipv4/ip_forward when file position was not 0!",
    "{C} using unsupported default IPA limit, upgrade your VMM",
    "{C}(4711): Attempt to set a LOCK_MAND lock via flock(2).",
    "[   4711]  1000  4711     1234       99    45056        0             0 {C}",
    "process '{F}' started with executable stack",
    'audit: type=1701 audit(1763686800.1:7): auid=1 uid=1 ses=1 pid=4711 comm="{C}" exe="/tmp/{F}" sig=11 res=1',
    "task:{C} state:D stack:0     pid:4711  ppid:1      flags:0x00000002",
    "{C} D    0  4711      1 0x00000000",
    "{C} D ffff88003e2fbbc8     0  4711      1 0x00000000",
    "CPU: 3 PID: 4711 Comm: {C} Not tainted 6.1.0 #1",
    "tmpfs: Unknown parameter '{F}'",
    "overlay: Unknown parameter '{F}'",
    "overlayfs: failed to resolve '{F}': -2",
    "overlayfs: missing 'lowerdir'",
    "fuse: Unknown parameter '{F}'",
    "tmpfs: Bad value for '{F}'",
    "cgroup: fork rejected by pids controller in /slurm/uid_1000/job_1/{F}",
    "Tasks in /slurm/uid_1000/job_1/{F} are going to be killed due to memory.oom.group set",
    "Memory cgroup stats for /slurm/uid_1000/job_1/{F}:",
    "{W}: renamed from {W}",
    "{W} {W}: renamed from eth0",
    "IPv6: ADDRCONF(NETDEV_CHANGE): {W}: link becomes ready",
    "device {W} entered promiscuous mode",
    "{W}: port 1({W}) entered blocking state",
    "{W}: Caught tx_queue_len zero misconfig",
    "NVRM: API mismatch: the client '{C}' (pid 4711)\\x0aNVRM: has the version {F}, but this kernel module has",
    "NVRM: API mismatch: the client has the version {F}, but this kernel module has the version 550.1.",
    "XFS (vda): {C}(4711) possible memory allocation deadlock size 65552 in kmem_realloc (mode:0x2400240)",
    "program {C} is using a deprecated SCSI ioctl, please convert it to SG_IO",
    "EXT4-fs warning (device vda): ext4_dx_add_entry:2516: Directory (ino: 2) index full, comm {C}: {F}",
    'EXT4-fs (vda): Unrecognized mount option "{F}" or missing value',
    "warning: `{C}' uses wireless extensions which will stop working for Wi-Fi 7 hardware",
    "SELinux: unrecognized netlink message: protocol=0 nlmsg_type=0 sclass=1 pid=4711 comm={C}",
    "netlink: 4 bytes leftover after parsing attributes in process `{C}'.",
    'ptrace attach of "{F}"[1] was attempted by "{F}"[2]',
    "request_module: modprobe binfmt-464c cannot be processed, kmod busy with 50 threads, {C}",
]
OOM = [
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={F},mems_allowed=0,task_memcg=/{F},task={C},pid=1,uid=1",
    "Memory cgroup out of memory: Killed process 4711 ({C}) total-vm:1kB, anon-rss:1kB",
]
"""These tell of memory that a job used up, and of nothing else."""
KNOWN = [
    "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.",
    "NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x62:0x40:2393)",
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12020, Fatal, Link 32",
    "NVRM: nvAssertOkFailedNoLog: Assertion failed [NV_ERR_RESET_REQUIRED]",
    "NVRM: rm_init_adapter failed",
    "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out",
    "mlx5_core 0000:3b:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count",
    "mlx5_core 0000:3b:00.0: wait_func:1137:(pid 7): ACCESS_REG(0x805) timeout. Will cause a leak of a",
    "a 0000:3b:00.0: AER: Uncorrected (Fatal) error received",
    "pcieport 0000:00:01.0: DPC: containment event, status:0x1f01 source:0x0000",
    "XFS (vda): Shutting down filesystem",
    "XFS (vda): log I/O error -5; Forced shutdown",
    "XFS (vda): Metadata corruption detected",
    "EXT4-fs (vda): Remounting filesystem read-only",
    "EXT4-fs error (device vda): x",
    "BTRFS info (device vda): forced readonly",
    "kernel BUG at mm/slub.c:305!",
    "Kernel panic - not syncing: Fatal exception",
    "mce: Machine check: fatal",
    "Machine check: Fatal",
    "mce: [Hardware Error]: Uncorrected error",
    "mce: CPU1: Core temperature above threshold",
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0 (channel:0 slot:0 page:0x1f)",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0 (channel:0 slot:0 page:0x1f)",
    "EDAC MC0: 1 UE on any memory (page:0x1f offset:0x0 grain:8)",
    "I/O error, dev vda, sector 1",
    "Buffer I/O error on dev vda, logical block 1",
    "nvme nvme0: Disabling device after reset failure: -19",
    "nvme0: I/O Cmd I/O Error (sct 1",
    "sd a: rejecting I/O to dead device",
    "md/raid1: Disk failure on vda",
    "block nvme0n1: no available path - failing I/O",
    "ata1.00: failed command: READ FPDMA QUEUED",
    "attempt to access beyond end of device",
    "SQUASHFS error: Unable to read page, block 1c0, size 2f",
    "BUG: unable to handle page fault",
    "BUG: Bad page state in process x  pfn:1",
    "Oops: 0000 [#1] SMP",
    "Internal error: Oops",
    "INFO: rcu_sched detected stall",
    "watchdog: BUG: soft lockup - CPU#3",
    "INFO: task x:1 blocked for more than 120 seconds",
    "Out of memory: Killed process 1",
    "oom-kill:x",
    "nfs: server x not responding",
    "nfs: server x OK",
    "TCP: out of memory",
    "VFS: file-max limit 1 reached",
    "neighbour: arp_cache: neighbor table overflow",
    "clocksource: x Marking clocksource 'tsc' as unstable",
    "thermal thermal_zone0: critical temperature",
    "DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0x0",
    "LustreError: 1:0:(a.c:1:b()) LBUG",
    "LustreError: x This client was evicted by y",
    "Lustre: x: Connection to y was lost",
    "Memory failure: 0x12ab: Killing x due to hardware memory corruption",
    "Linux version 6.1.0",
    "-- Reboot --",
]
_START = st.builds(lambda line, at: line[:at], st.sampled_from(KNOWN), st.integers(1, 15))
NAMES = _START | st.text(max_size=15)
_TAIL = st.builds(lambda line, at: line[at:], st.sampled_from(KNOWN), st.integers(0, 60))
FILES = _TAIL | st.builds("{}{}".format, st.sampled_from(["x\n", "\n", ": ", "): ", ""]), _TAIL) | st.text(max_size=255)


def escaped(text: str) -> str:
    """As `/dev/kmsg` writes it (`msg_print_ext_body`): what cannot be printed, and the backslash, by its number."""
    return "".join(chr(b) if 32 <= b < 127 and b != 92 else f"\\x{b:02x}" for b in text.encode("utf-8", "replace"))


def filled(form: str, name: str, file: str) -> str:
    """A line of the kernel with these words in it."""
    name = name.encode("utf-8", "replace")[:15].decode("utf-8", "ignore").replace("\0", "")
    word = re.sub(r"[\s/:]", "", name) or "x"
    parts = {"{C}": escaped(name), "{F}": escaped(file.replace("\0", "")), "{W}": escaped(word)}
    return re.sub(r"\{[CFW]\}", lambda match: parts[match[0]], form)


def found(text: str) -> list[object]:
    """What the three readers find in a raw record with this text."""
    texts: list[str] = []
    KernelLog(f"6,7,7,-;{text}\0".encode()).since(texts.append, {})
    said = [kernel_patterns.sort(text) for text in texts]
    boots = [text for text in texts if text.startswith(("Linux version ", "-- Reboot --", "-- Boot "))]
    return [s for s in said if s] + xid.events(texts) + list(nic_log.count(texts)) + boots


@given(st.sampled_from(FORMATS), NAMES, FILES)
def test_no_name_makes_a_line_evidence(form: str, name: str, file: str) -> None:
    """For any name of a process, a file or a network device, at any place where the kernel prints one."""
    assert found(filled(form, name, file)) == []


@pytest.mark.parametrize("form", FORMATS)
def test_nor_does_any_beginning_of_a_real_line(form: str) -> None:
    """Each real line, cut at each place: what stands before as a process's name, the rest as a file's."""
    for line in KNOWN:
        for at in (1, 8, 12, 14, 15):
            for rest in (line[at:], line[at:].lstrip(), ": " + line):
                assert found(filled(form, line[:at], rest)) == [], (line, at)


_UNKNOWN = (
    " does what nobody foresaw",
    ": does what nobody foresaw on a node (x)",
    " does [#1] on x",
    "",
)
"""How a line could go on behind a process's name, in a format that is not in `FORMATS`."""


@pytest.mark.parametrize("line", [line for line in KNOWN if kernel_patterns.sort(line)])
def test_the_words_of_a_real_line_are_longer_than_a_name(line: str) -> None:
    """So a format that nobody has thought of gives no evidence either: 15 bytes are too few for any kind."""
    for at in range(1, 16):
        for rest in _UNKNOWN:
            assert found(escaped(line[:at]) + rest) == [], (line[:at], rest)


@given(st.sampled_from(OOM), NAMES, FILES)
def test_a_kill_for_memory_is_that_and_nothing_else(form: str, name: str, file: str) -> None:
    """Names in the lines of a kill for memory change nothing of what they tell: a job used too much."""
    assert [said[0] for said in found(filled(form, name, file))] in ([], ["oom_kill"])  # type: ignore[index]
