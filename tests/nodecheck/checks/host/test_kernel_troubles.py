"""Words of the kernel: sorted by kind, told once, and never a fault of the node by themselves."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.catalogue import kernel_patterns
from slurm_robust.nodecheck.checks.host import kernel_log
from slurm_robust.nodecheck.engine import registry, runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.registry import CheckError

LINES: dict[str, list[str]] = {
    "oom_kill": [
        "Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB",
        "Out of memory: Killed process 4711 (python)",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)",
    ],
    "hung_task": [
        "INFO: task python:4711 blocked for more than 120 seconds.",
        "INFO: task kworker/u256:3:99 blocked in I/O wait for more than 120 seconds.",
    ],
    "nfs_server": [
        "nfs: server nas1.cluster not responding, still trying",
        "nfs: server 10.0.0.5 not responding, timed out",
    ],
    "lnet_timeout": [
        "LNetError: 2431:0:(o2iblnd_cb.c:3422:kiblnd_check_txs_locked()) Timed out tx: active_txs, 1 seconds",
        "LNetError: 2431:0:(o2iblnd_cb.c:3498:kiblnd_check_conns()) Timed out RDMA with 10.1.1.1@o2ib (5): c: 8, oc: 0",
        "LNet: 2431:0:(o2iblnd_cb.c:3174:kiblnd_check_conns()) Timed out tx for 172.31.126.87@o2ib: 403055 seconds",
    ],
    "lustre_lost": [
        "Lustre: scratch-OST0003-osc-ffff9d: Connection to scratch-OST0003 (at 10.1.1.2@o2ib) was lost; in progress",
    ],
    "lustre_evicted": [
        "LustreError: 167-0: scratch-MDT0000-mdc-ffff9d: This client was evicted by scratch-MDT0000; in progress",
    ],
    "limit_reached": [
        "VFS: file-max limit 9223372 reached",
        "nf_conntrack: nf_conntrack: table full, dropping packet",
        "neighbour: arp_cache: neighbor table overflow!",
        "TCP: out of memory -- consider tuning tcp_mem",
    ],
    "clock_unstable": [
        "clocksource: timekeeping watchdog on CPU3: Marking clocksource 'tsc' as unstable because the skew is too large"
    ],
    "throttled": [
        "mce: CPU12: Package temperature above threshold, cpu clock throttled (total events = 1)",
        "CPU3: Core temperature is above threshold, cpu clock is throttled (total events = 9)",
    ],
    "overheated": [
        "thermal thermal_zone0: acpitz: critical temperature reached, shutting down",
        "mlx5_core 0000:3b:00.0: Port module event[error]: module 0, Cable error, High Temperature",
    ],
    "pcie_corrected": [
        "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
        "pcieport 0000:00:01.0: AER: Multiple Corrected error message received from 0000:01:00.0",
        "nvme 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    ],
    "memory_corrected": [
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1f)",
        "{1}[Hardware Error]: event severity: corrected",
        "[Hardware Error]: Corrected error, no action required.",
    ],
    "iommu_fault": [
        "DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0x0",
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=c1:00.0 domain=0x0024 address=0x0 flags=0x0020]",
        "nvidia 0000:c1:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0024 address=0x0 flags=0x0020]",
    ],
    "slot_power": [
        "mlx5_core 0000:3b:00.0: mlx5_pcie_event:301:(pid 9): Detected insufficient power on the PCIe slot (27W)."
    ],
    "nic_timeout": [
        "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out",
        "NETDEV WATCHDOG: CPU: 9: ens1f0np0 (ice): transmit queue 3 timed out 5000 ms",
        "mlx5_core 0000:3b:00.0: eth0: TX timeout detected",
    ],
    "nic_firmware": [
        "mlx5_core 0000:3b:00.0: poll_health:821:(pid 0): Fatal error 1 detected",
        "mlx5_core 0000:3b:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count",
        "mlx5_core 0000:3b:00.0: wait_func:1137:(pid 7): ACCESS_REG(0x805) timeout. Will cause a leak of a command",
        "mlx5_core 0000:3b:00.0: print_health_info:431:(pid 0): Health issue observed, firmware internal error, sever",
        "mlx5_core 0000:3b:00.0: Health issue observed, firmware internal error, severity(3) ERROR:",
        "mlx5_core 0000:3b:00.1: mlx5_health_try_recover:381:(pid 1): health recovery flow aborted, PCI reads still",
    ],
    "gpu_driver": [
        "NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x62:0x40:2393)",
        "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:9b:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed\\x0aNVRM: fallen off the bus",
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned",
        "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        "NVRM: None of the NVIDIA devices were initialized.",
    ],
    "disk_reset": [
        "nvme nvme0: I/O 12 QID 3 timeout, reset controller",
        "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
        "ata1.00: failed command: READ FPDMA QUEUED",
    ],
    "io_error": [
        "blk_update_request: I/O error, dev sda, sector 1",
        "I/O error, dev nvme0n1, sector 2 op 0x0:(READ)",
        "critical medium error, dev sdb, sector 3",
        "Buffer I/O error on dev dm-0, logical block 5, lost async page write",
        "nvme0n1: I/O Cmd(0x2) @ LBA 9, 8 blocks, I/O Error (sct 0x2 / sc 0x81) DNR",
    ],
    "disk_lost": [
        "nvme nvme0: Disabling device after reset failure: -19",
        "nvme nvme0: Removing after probe failure status: -19",
        "block nvme0n1: no available path - failing I/O",
        "md/raid1:md0: Disk failure on sdb1, disabling device.",
        "sd 0:0:0:0: rejecting I/O to offline device",
    ],
    "fs_error": [
        "EXT4-fs error (device sda1): ext4_find_entry:1463: inode #2: comm python: reading directory lblock 0",
        "XFS (dm-0): Metadata corruption detected at xfs_agf_read_verify+0x70/0x120 [xfs]",
        "XFS (dm-0): Metadata CRC error, corruption",
        "BTRFS error (device sda1): bdev /dev/sda1 errs: wr 1, rd 0",
        "python: attempt to access beyond end of device",
    ],
    "stall": [
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]",
        "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3",
        "watchdog: Watchdog detected hard LOCKUP on cpu 3",
        "rcu: INFO: rcu_sched self-detected stall on CPU",
        "INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-.... }",
    ],
    "lustre_bug": [
        "LustreError: 4711:0:(osc_cache.c:2519:osc_teardown_async_page()) LBUG",
        "LustreError: 4711:0:(osc_cache.c:2519:osc_teardown_async_page()) ASSERTION( ext->oe_state == 9 ) failed: bad",
        "LNetError: 99:0:(lib-md.c:60:lnet_md_unlink()) LBUG",
    ],
    "oops": [
        "BUG: unable to handle page fault for address: ffffa1",
        "Oops: 0000 [#1] SMP NOPTI",
        "general protection fault, probably for non-canonical address 0xdead: 0000 [#1] PREEMPT SMP",
        "kernel BUG at mm/slub.c:305!",
        "BUG: Bad page state in process python  pfn:1",
    ],
    "panic": ["Kernel panic - not syncing: Fatal exception"],
    "pcie_error": [
        "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
        "pcieport 0000:00:01.0: AER: Multiple Uncorrectable (Non-Fatal) error message received from 0000:01:00.0",
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
        "pcieport 0000:00:01.0: DPC: containment event, status:0x1f01 source:0x0000",
    ],
    "memory_failure": [
        "Memory failure: 0x12ab: recovery action for dirty LRU page: Failed",
        "Memory failure: 0x12ab: Killing python:4711 due to hardware memory corruption",
    ],
    "machine_check": [
        "mce: [Hardware Error]: Uncorrected error, 1 severity",
        "mce: [Hardware Error]: CPU 2: Machine Check Exception: 5 Bank 3: be00000000800400",
        "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 5: be00000000800400",
        "mce: [Hardware Error]: CPU 7: Machine Check: 0 Bank 12: ac00004000010092",
        "mce: Uncorrected hardware memory error in user-access at 10a0d6000",
        "{3}[Hardware Error]: event severity: recoverable",
        "EDAC MC0: 1 UE memory read error on CPU (channel:0 slot:0 page:0x1f)",
    ],
    "fs_shutdown": [
        "XFS (dm-0): Shutting down filesystem",
        "XFS (dm-0): log I/O error -5; Forced shutdown",
    ],
    "remount_ro": ["EXT4-fs (sda1): Remounting filesystem read-only", "BTRFS info (device sda1): forced readonly"],
}
QUIET = [
    "mce: [Hardware Error]: Machine check events logged",
    "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 7: 8c00004000010092",
    "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 7: cc00004000010092",
    "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 7: 9c2000400001017a",
    "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 7: 3e00000000800400",
    "mce: CPU0: Machine Check Exception reporting enabled",
    "mlx5_core 0000:3b:00.0: Health issue observed, firmware internal error, severity(6) INFO:",
    "mlx5_core 0000:3b:00.0: mlx5_health_try_recover:330:(pid 9): starting health recovery flow",
    "mlx5_core 0000:3b:00.0: mlx5_health_try_recover:340:(pid 9): health recovery succeeded",
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: Invalid argument [NV_ERR_INVALID_ARGUMENT] (0x0000001F) returned",
    "Lustre: Lustre: Build Version: 2.15.5",
    "LNet: Added LNI 10.1.1.2@o2ib [8/256/0/180]",
    "LNet: 2431:0:(o2iblnd_cb.c:3174:kiblnd_check_conns()) Skipped 24 previous similar messages",
    "LustreError: 11-0: fs-MDT0000-mdc-ffff9d: operation obd_ping to node 10.1.1.2@o2ib failed: rc = -107",
    "blk_update_request: I/O error, dev sr0, sector 0",
    "I/O error, dev loop3, sector 0 op 0x0:(READ)",
    "EXT4-fs error (device loop0): ext4_find_entry:1463: inode #2: comm python: reading directory lblock 0",
    "XFS (loop1): Metadata CRC error detected at xfs_agi_read_verify+0x8d/0x110 [xfs], xfs_agi block 0x2",
    "python: attempt to access beyond end of device\\x0aloop0: rw=524288, sector=200, nr_sectors = 8 limit=128",
    "Buffer I/O error on dev nbd0, logical block 0, async page read",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode",
    "EXT4-fs (sda1): re-mounted. Opts: (null)",
    "EXT4-fs (loop3): Remounting filesystem read-only",
    "XFS (sda1): Ending clean mount",
    "python[4711]: segfault at 0 ip 0 sp 0 error 4 in libnccl.so.2.18.3[7f0+100]",
    "traps: Out of memory: Kill",
    "traps: python[4711] general protection fault ip:7f sp:7f error:0 in libtorch.so",
    "clocksource: timekeeping watchdog on CPU1: Marking clocksource 'tsc-early' as unstable because the skew is",
    "NVRM: API mismatch: the client has the version 535.1, but this kernel module has the version 550.2",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
    "mlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged",
    "mlx5_core 0000:3b:00.0: mlx5_pcie_event:299:(pid 9): PCIe slot advertised sufficient power (27W).",
    "pcieport 0000:00:01.0: AER: enabled with IRQ 25",
    "pcieport 0000:00:01.0: DPC: enabled with IRQ 25",
    "AMD-Vi: Interrupt remapping enabled",
    "DMAR: IOMMU enabled",
    "CPU12: Package temperature/speed normal",
    "rcu: Hierarchical RCU implementation.",
    "EDAC MC0: Giving out device to module i10nm_edac controller",
    "nvme nvme0: 64/0/0 default/read/poll queues",
    "nfs: server nas1 OK",
    "md/raid1:md0: active with 2 out of 2 mirrors",
    "cgroup: fork rejected by pids controller in /slurm/uid_1000/job_17",
]


@pytest.mark.parametrize("kind", kernel_patterns.KINDS)
def test_each_kind_has_its_words(kind: str) -> None:
    """Each known line of Linux or a driver is of its kind, alone."""
    assert LINES[kind]
    for line in LINES[kind]:
        assert list(kernel_patterns.count([line])[0]) == [kind], line


@pytest.mark.parametrize("line", QUIET)
def test_what_is_no_trouble_has_no_kind(line: str) -> None:
    """Boot messages, what an application or a container's image did, corrected single machine checks."""
    assert kernel_patterns.count([line])[0] == {}


def test_a_server_that_answers_again_is_no_trouble() -> None:
    """What was taken back is not told; what came after is."""
    lost, back = LINES["nfs_server"][0], "nfs: server nas1.cluster OK"
    other = LINES["nfs_server"][1]
    assert kernel_patterns.count([lost, lost, back])[0] == {}
    assert kernel_patterns.count([lost, other, back])[0]["nfs_server"]["names"] == ["10.0.0.5"]
    assert kernel_patterns.count([lost, back, lost])[0]["nfs_server"]["names"] == ["nas1.cluster"]
    restored = "Lustre: scratch-OST0003-osc-ffff9d: Connection restored to scratch-OST0003 (at 10.1.1.2@o2ib)"
    assert kernel_patterns.count([*LINES["lustre_lost"], restored])[0] == {}


KNOWN = [line for lines in LINES.values() for line in lines]


@given(st.lists(st.text(max_size=200), max_size=10))
def test_any_words_are_sorted_without_an_error(lines: list[str]) -> None:
    """Whatever is logged, counting is total."""
    assert sum(entry["count"] for entry in kernel_patterns.count(lines)[0].values()) <= len(lines)


@given(st.sampled_from(KNOWN), st.integers(0, 200), st.text(max_size=20), st.integers(0, 200))
def test_garbled_words_are_sorted_without_an_error(line: str, start: int, garbage: str, end: int) -> None:
    """A known line cut or with other characters in it has a kind or none; names stay short."""
    seen, _ = kernel_patterns.count([line[:start] + garbage + line[end:]])
    for entry in seen.values():
        assert all(len(name) <= 220 for name in entry["names"])


@given(st.sampled_from(KNOWN), st.text(min_size=1, max_size=16))
def test_words_behind_a_process_s_name_are_no_evidence(line: str, name: str) -> None:
    """A process may be called anything: its name never stands at the beginning of what the kernel says."""
    said = kernel_patterns.sort(f"traps: {name}[1] {line}")
    assert said is None or "beyond end of device" in line


def judge(seen: dict[str, Any], **options: Any) -> tuple[str, str]:
    """Status and reason for what was counted, nothing of it being mounted."""
    check = registry.get("kernel_log")
    facts = {"error": "", "seen": seen, "flooded": [], "known": [], "back": [], "mounted": {}}
    finding = check.judge(facts, check.settings(options))
    return finding.status.value, finding.reason


@pytest.mark.parametrize("kind", kernel_patterns.KINDS)
def test_no_kind_alone_makes_a_node_unfit(kind: str) -> None:
    """A thousand lines of one kind warn, once; `ignore` silences it."""
    seen, _ = kernel_patterns.count(LINES[kind] * 1000)
    assert judge(seen) == ("warn", kind)
    assert judge(seen, ignore=[kind]) == ("pass", "quiet")


def test_what_is_corrected_is_told_only_in_bursts() -> None:
    """One corrected error is nothing; the site may say how many are something."""
    seen, _ = kernel_patterns.count(LINES["pcie_corrected"])
    assert judge(seen) == ("pass", "quiet")
    assert judge(seen, often={"pcie_corrected": 3}) == ("warn", "pcie_corrected")
    assert judge(kernel_patterns.count(LINES["memory_corrected"] * 8)[0]) == ("warn", "memory_corrected")


def test_the_weightiest_kind_is_the_reason() -> None:
    """Whatever came first, a machine check is told before an OOM kill."""
    lines = [LINES["machine_check"][0], LINES["oom_kill"][0], LINES["io_error"][1]]
    random.Random(7).shuffle(lines)
    assert judge(kernel_patterns.count(lines)[0]) == ("warn", "machine_check")


@pytest.mark.parametrize(
    "options", [{"ignore": ["oom"]}, {"ignore": [7]}, {"often": {"oom_kill": "x"}}, {"often": {"x": 1}}]
)
def test_a_kind_that_does_not_exist_is_said(tmp_path: Path, options: dict[str, Any]) -> None:
    """A mistyped kind silences nothing: the message names the key."""
    check = registry.get("kernel_log")
    with pytest.raises(CheckError, match=rf"kernel_log\.{next(iter(options))}"):
        check.probe(Context("n1", "full", tmp_path), check.settings(options))


class Node:
    """A node with a kernel log and a mount table that a test writes."""

    def __init__(self, root: Path) -> None:
        self.log = root / "kmsg"
        self.mounts = root / "proc/self/mountinfo"
        self.mounts.parent.mkdir(parents=True)
        boot = root / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("b1\n")
        self.log.write_text("")
        self.context = Context("n1", "prolog", root, self.log, root / "cache")

    def look(self) -> tuple[str, str]:
        """Run the check once."""
        finding = runner.run([kernel_log.check], self.context, {}, 10.0).results[0].finding
        return finding.status.value, finding.reason

    def say(self, *lines: str) -> None:
        """Append to the kernel log."""
        with self.log.open("a") as log:
            log.writelines(f"{line}\n" for line in lines)


def test_trouble_warns_once_and_a_read_only_disk_fails_until_it_is_repaired(tmp_path: Path) -> None:
    """An OOM kill is no fault of the node; a file system that an error made read-only is, as long as it is."""
    node = Node(tmp_path)
    mount = "30 1 8:1 / /scratch rw,relatime - ext4 /dev/sda1 {mode}\n"
    node.say(LINES["oom_kill"][0], LINES["remount_ro"][0])
    node.mounts.write_text(mount.format(mode="ro"))
    assert node.look() == ("fail", "remount_ro")
    assert node.look() == ("fail", "remount_ro")
    node.mounts.write_text(mount.format(mode="rw"))
    assert node.look() == ("pass", "quiet")
    node.say(LINES["oom_kill"][0])
    assert node.look() == ("warn", "oom_kill")
    assert node.look() == ("pass", "quiet")


def test_a_file_system_that_shut_down_fails_while_it_is_mounted(tmp_path: Path) -> None:
    """XFS stays mounted `rw` after a shutdown and answers EIO; its name is that of its device, not of its source."""
    node = Node(tmp_path)
    link = tmp_path / "sys/dev/block/253:0"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../devices/virtual/block/dm-0")
    mount = "30 1 253:0 / /scratch rw - xfs /dev/mapper/vg-scratch rw\n"
    node.mounts.write_text(mount)
    node.say(LINES["fs_shutdown"][0])
    assert node.look() == ("fail", "fs_shutdown")
    node.say("nothing new")
    assert node.look() == ("fail", "fs_shutdown")
    node.say("XFS (dm-0): Unmounting Filesystem 4e1b", "XFS (dm-0): Mounting V5 Filesystem 4e1b")
    assert node.look() == ("pass", "quiet")


def test_a_state_file_that_is_not_ours_is_not_believed(tmp_path: Path) -> None:
    """Odd entries in what was kept are passed over."""
    node = Node(tmp_path)
    node.mounts.write_text("30 1 8:1 / /scratch ro - ext4 /dev/sda1 ro\n")
    (tmp_path / "cache").mkdir()
    kept = tmp_path / "cache/kernel_log.json"
    for broken in ("7", '[7, ["remount_ro"], ["x", "sda1"], ["remount_ro", 4]]', '{"a": 1}'):
        kept.write_text('{"boot_id": "b1", "cursor": {"file": 5, "at": "x"}, "broken": ' + broken + "}")
        assert node.look() == ("pass", "quiet")
