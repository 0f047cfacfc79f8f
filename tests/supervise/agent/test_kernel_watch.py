"""An agent reads the kernel log itself where it may: which lines it sends, and what never disturbs it."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from agent_stage import AgentStage

from slurm_robust.nodecheck.catalogue import kernel_patterns
from slurm_robust.nodecheck.checks.gpu import xid
from slurm_robust.nodecheck.checks.network import nic_log
from slurm_robust.nodewatch import urgency
from slurm_robust.supervise.agent import kernel_watch
from slurm_robust.supervise.agent.clock import SystemClock
from slurm_robust.supervise.agent.gpu_use import GpuUse
from slurm_robust.supervise.agent.kernel_watch import KernelWatch
from slurm_robust.supervise.agent.messages import FromAgent, KernelRecords, RankFound, encode, from_agent
from slurm_robust.supervise.agent.ranks import Rank, StepProcess

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."
OF_DISKS = {"disk_lost", "fs_shutdown", "remount_ro"}
"""What these mean depends on the node's mounts."""


class Clock(SystemClock):
    """It stands until the test moves it."""

    at_s = 1000.0

    def now_s(self) -> float:
        """Wall time."""
        return 1_790_000_000.0 + self.at_s

    def monotonic_s(self) -> float:
        """The same, from boot on."""
        return self.at_s

    def since_boot_s(self) -> float:
        """The same."""
        return self.at_s


def rank(*gpus: int, pid: int = 2**30) -> Rank:
    """A rank that was given these GPUs."""
    process = StepProcess(pid, 1, 0, "python", 0, 0, "0", 1, 1, "", gpus=gpus)
    return Rank(0, "0", 1, process, (process,))


def raw(seq: int, uptime_s: float, text: str = XID) -> str:
    """A record of /dev/kmsg."""
    return f"3,{seq},{int(uptime_s * 1e6)},-;{text}\n"


class Log:
    """A node's kernel log, a pipe that stands in for the device, and what its agent sends."""

    def __init__(self, folder: Path, look_back_s: float = 10.0) -> None:
        self.path = folder / "kmsg"
        os.mkfifo(self.path)
        self.pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        driver = folder / "gpus"
        for number, bus in enumerate(("0000:3b:00.0", "0000:9b:00.0")):
            (driver / bus).mkdir(parents=True)
            (driver / bus / "information").write_text(f"Model: \t H100\nDevice Minor: \t {number}\n")
        (folder / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\n")
        self.clock = Clock()
        self.sent: list[FromAgent] = []
        use = GpuUse(self.clock, devices=str(folder / "nvidia"), driver=str(driver))
        self.watch = KernelWatch("n1", look_back_s, self.sent.append, use, path=str(self.path), clock=self.clock)

    def write(self, *records: str | bytes) -> None:
        """The kernel logs this."""
        for record in records:
            os.write(self.pipe, record if isinstance(record, bytes) else record.encode())

    def polls(self, *ranks: Rank, watched: bool = False) -> list[KernelRecords]:
        """What a poll sends."""
        self.sent.clear()
        self.watch.poll(ranks, watched=watched)
        return [message for message in self.sent if isinstance(message, KernelRecords)]

    def numbers(self, *ranks: Rank, watched: bool = False) -> list[int]:
        """The numbers of the records that a poll sends."""
        return [int(r.split(",")[1]) for m in self.polls(*ranks, watched=watched) for r in m.records]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """An empty one."""
    return Log(tmp_path)


def test_a_line_that_may_tell_of_a_fault_is_sent_once_as_it_is(log: Log) -> None:
    """With what its judgement needs to know of the node; others are not sent."""
    log.write(raw(1, 999.0, "eth0: link up"), raw(2, 999.5), " SUBSYSTEM=pci\n")
    (message,) = log.polls(rank(1))
    gpus = {"0000:3b:00": 0, "0000:9b:00": 1}
    assert message == KernelRecords("n1", 1_790_001_000.0, 1000.0, (raw(2, 999.5).strip(),), gpus, 535)
    assert from_agent(encode(message)) == message
    assert log.polls(rank(1)) == []


def test_what_was_logged_before_the_job_belongs_to_others(log: Log) -> None:
    """The look back is by the records' own times; what comes after the first reading is new whatever its time."""
    log.write(raw(1, 980.0), raw(2, 995.0))
    assert log.numbers(rank(1)) == [2]
    log.write(raw(3, 900.0))
    (message,) = log.polls(rank(1))
    assert [record.split(",")[1] for record in message.records] == ["3"]
    assert message.at_s - 20 <= message.since_s < message.at_s, "and it is no older than that"


def test_a_gpu_of_another_job_is_none_of_ours(log: Log) -> None:
    """A line without an address of a known GPU is about all that use GPUs; one about a card, about all."""
    log.write(raw(1, 999.0), raw(2, 999.0, XID.replace("9b", "aa")), raw(3, 999.0, "nvidia-nvswitch0: SXid (PCI): 1"))
    log.write(raw(4, 999.0, "mlx5_core 0000:9b:00.0: health compromised"))
    device = log.path.parent / "nvidia0"
    with device.open("w"):
        assert log.numbers(rank(0, pid=os.getpid())) == [2, 3, 4]
    assert log.numbers(rank(1)) == [], "it was not kept"


def test_a_line_waits_until_a_rank_has_shown_its_gpus(log: Log) -> None:
    """A rank without any yet: the line is sent when there is one that uses the GPU, for an hour."""
    log.write(raw(1, 999.0))
    assert log.numbers(rank()) == []
    assert log.numbers(rank(1)) == [1]
    log.write(raw(2, 999.0))
    assert log.numbers(rank()) == []
    log.clock.at_s += 3700
    assert log.numbers(rank()) == []
    assert log.numbers(rank(1)) == []


def test_a_node_without_ranks_sends_what_is_about_gpus(log: Log) -> None:
    """It is no replacement where a GPU is lost; once a rank is there, the line is sent again if it concerns it."""
    log.write(raw(1, 999.0), raw(2, 999.0, "mlx5_core 0000:3b:00.0: health compromised"))
    messages = log.polls()
    assert [(len(m.records), m.unused) for m in messages] == [(1, True), (1, False)]
    assert log.numbers(rank(1)) == [1]


def test_a_service_that_comes_and_goes_is_not_doubled(log: Log) -> None:
    """While a root service watches, the log is closed; afterwards it is read from there on."""
    assert log.numbers(rank(1)) == []
    log.clock.at_s = 1100
    assert log.numbers(rank(1), watched=True) == []
    log.write(raw(1, 1050.0), raw(2, 1101.0))
    log.clock.at_s = 1102
    assert log.numbers(rank(1)) == [2]


def test_a_flood_is_sent_in_portions(log: Log) -> None:
    """The rest waits in the log, here a file; a long line is cut, and one at the border of two readings is whole."""
    log.path.unlink()
    text = "".join(raw(n, 999.0, f"{XID} {'x' * 2000 if n % 10 == 0 else ''}") for n in range(1000))
    log.path.write_text(text)
    sent = [log.polls(rank(1)) for _ in range(40)]
    assert max(sum(len(message.records) for message in messages) for messages in sent) < 150
    records = [record for messages in sent for message in messages for record in message.records]
    assert all(len(message.records) <= 32 for messages in sent for message in messages)
    assert [int(record.split(",")[1]) for record in records] == list(range(1000))
    assert max(len(record) for record in records) == 1024


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 4096,
        b"\xff\xfe NVRM\n",
        b"NVRM: Xid\n",
        b"1,2;NVRM\n",
        b"3,1,99999999999999999999999,-;NVRM\n",
        b"NVRM" * 9,
    ],
)
def test_garbage_is_skipped(log: Log, data: bytes) -> None:
    """It has no number and time; a record behind it is read."""
    log.write(data, b"\n", raw(7, 999.0))
    assert log.numbers(rank(1)) == [7]


def test_records_that_were_overwritten_end_nothing(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device says EPIPE once, and goes on with the oldest that is left."""
    real, errors = os.read, [BrokenPipeError(), BrokenPipeError()]

    def read(fd: int, size: int) -> bytes:
        if errors:
            raise errors.pop()
        return real(fd, size)

    log.write(raw(9, 999.0))
    monkeypatch.setattr(kernel_watch.os, "read", read)  # type: ignore[attr-defined]
    assert log.numbers(rank(1)) == [9]


@pytest.mark.parametrize("error", [errno.EPERM, errno.EACCES, errno.ENOENT])
def test_a_log_that_is_not_for_this_user_is_tried_once(log: Log, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """With dmesg_restrict, or in a container."""
    tries = []

    def opened(path: str, flags: int) -> int:
        tries.append(path)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(kernel_watch.os, "open", opened)  # type: ignore[attr-defined]
    assert [log.numbers(rank(1)) for _ in range(3)] == [[], [], []]
    assert len(tries) == 1


def test_another_device_in_its_place_is_not_read(tmp_path: Path) -> None:
    """A container may have a terminal there."""
    sent: list[FromAgent] = []
    watch = KernelWatch("n1", 10, sent.append, GpuUse(), path="/dev/zero")
    watch.poll([rank(1)], watched=False)
    assert sent == []
    assert watch._fd == -1


def test_a_log_that_breaks_is_left(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody expects ends the reading, not the agent."""

    def read(fd: int, size: int) -> bytes:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(kernel_watch.os, "read", read)  # type: ignore[attr-defined]
    log.write(raw(1, 999.0))
    assert log.numbers(rank(1)) == []
    monkeypatch.undo()
    assert log.numbers(rank(1)) == []


def test_the_filter_keeps_all_that_the_catalogue_finds_urgent() -> None:
    """Every word by which the checks find such a line has one of ours, but for disks and file systems."""
    words = set(xid._WORDS)
    for kind in urgency.KERNEL:
        if kind not in OF_DISKS:
            trouble = kernel_patterns.KINDS.get(kind)
            words |= {word for word, _ in trouble.lines} if trouble else set()
            words |= set(nic_log._WORDS.get(kind, ()))
    assert [word for word in sorted(words) if not any(ours in word for ours in kernel_watch.WORDS)] == []
    assert [ours for ours in kernel_watch.WORDS if not any(ours in word for word in words)] == [], "not needed"


def test_an_idle_tick_costs_next_to_nothing(log: Log) -> None:
    """One read that finds nothing."""
    log.numbers(rank(1))
    began_s = time.process_time()
    for _ in range(1000):
        log.watch.poll((), watched=False)
    assert time.process_time() - began_s < 0.1, "100 µs a tick"


def test_a_real_agent_sends_what_the_kernel_logs(stage: AgentStage, tmp_path: Path) -> None:
    """A file in the shape of the device stands in for it."""
    path = tmp_path / "n1"
    path.write_text(raw(1, 1.0))
    stage.victim(0, SLURM_STEP_GPUS="0")
    stage.start_agent(kernel_log=str(tmp_path / "%n"))
    stage.receive(RankFound)
    with path.open("a") as log:
        log.write(raw(2, time.clock_gettime(time.CLOCK_BOOTTIME)))
    message = stage.receive(KernelRecords)
    assert [record.split(",")[1] for record in message.records] == ["2"]
