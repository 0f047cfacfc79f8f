"""What NVIDIA's drivers say without an XID, without a severity, or in words that not every version has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from xid_node import GPU, Node, line, with_two_gpus

from slurm_robust.nodecheck.checks.gpu import xid
from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.finding import Status


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A healthy node."""
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        ("26006, SOE HALTED", Status.FAIL, "sxid_26006"),
        ("10006, TSENSE OVERT Threshold reached. Shutting Down", Status.FAIL, "sxid_10006"),
        ("10004, PMGR OVERT Threshold reached. Shutting Down", Status.FAIL, "sxid_10004"),
        ("10007, IO failure", Status.FAIL, "sxid_10007"),
        ("28003, OSFP Thermal Overt Activated", Status.WARN, "sxid_28003"),
        ("25010, ALI Training failure. Info 0x1234", Status.WARN, "sxid_25010"),
        ("10004, Thermal Slowdown Engaged | Temp higher than WARN Threshold", Status.WARN, "sxid_10004"),
        ("10005, Thermal slowdown Disengaged", Status.PASS, "xid_harmless"),
        ("28004, OSFP Thermal Overt Deactivated", Status.PASS, "xid_harmless"),
        ("10010, TNVL mode is not enabled", Status.PASS, "xid_harmless"),
        ("26006, SOE HALT data[0] = 0x0000000000001234", Status.PASS, "no_xid"),
        ("10007, Severity 5 Engine instance 00 Sub-engine instance 00", Status.PASS, "no_xid"),
        ("12028, Data {0x00000004, 0x00000004, 0x00000000}", Status.PASS, "no_xid"),
    ],
)
def test_switch_errors_that_call_themselves_nothing_are_graded(
    node: Node, text: str, status: Status, reason: str
) -> None:
    """The driver prints some without a severity; an error's registers and what got well again are no faults."""
    node.say(f"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {text}\n")
    finding = node.look()
    assert (finding.status, finding.reason) == (status, reason)


THREE_LINES = (
    "NVRM: The NVIDIA GPU 0000:9b:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)
OLDER_LINES = """NVRM: The NVIDIA GPU 0000:9b:00.0 (PCI ID: 10de:2330)
NVRM: installed in this system has fallen off the bus and is not
NVRM: responding to commands."""
OLD_BOARD = """NVRM: The NVIDIA GPU 0000:9b:00.0
NVRM: (PCI ID: 10de:0fc6) installed in this system is
NVRM: not supported by the NVIDIA 550.54.15 driver release."""


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(THREE_LINES),
        "\\x0a".join(THREE_LINES),
        OLDER_LINES,
        "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.",
        "NVRM: GPU at 0000:9b:00.0 has fallen off the bus.",
    ],
)
def test_a_gpu_off_the_bus_without_an_xid_is_as_one_with_it(node: Node, text: str) -> None:
    """Over several lines, as one record or alone; with the XID beside it, it is counted once."""
    node.say(text + "\n")
    finding = node.look()
    assert (finding.status, finding.reason) == (Status.FAIL, "xid_79")
    assert GPU in finding.sentence
    assert xid.clear(node.context, GPU, xid.check.settings({})) == 1
    assert node.look().status is Status.PASS
    node.say(line(79, "GPU has fallen off the bus.") + text + "\n")
    assert [event["count"] for event in node.look().evidence["events"]] == [1]


@pytest.mark.parametrize(
    "text",
    [
        OLD_BOARD,
        "NVRM: GPU at PCI:0000:9b:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7",
        "NVRM: fallen off the bus and is not responding to commands.",
        "python: NVRM: GPU at 0000:9b:00.0 has fallen off the bus.",
        "nvme nvme0: fallen off the bus",
    ],
)
def test_other_words_of_the_driver_put_no_gpu_off_the_bus(node: Node, text: str) -> None:
    """An old board, a line that names a GPU, words without a GPU, and what a process is called."""
    node.say(text + "\n")
    assert node.look().reason == "no_xid"


@pytest.mark.parametrize(("version", "status"), [("535.183.01", Status.FAIL), ("550.54.15", Status.WARN)])
def test_a_context_switch_timeout_is_judged_by_the_driver(node: Node, version: str, status: Status) -> None:
    """Drivers before R550 never ask for the reset that the GPU needs."""
    folder = node.context.root / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu Feb 22 2024\n")
    node.say(line(109, "Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005"))
    assert node.look().status is status


DRAIN = "GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)"


def test_a_job_starts_only_after_the_peers_were_drained(node: Node) -> None:
    """`Drain P2P` warns while jobs run, refuses the next one, and is over when the driver withdraws it."""
    node.say(line(154, DRAIN))
    assert [node.look(stage).status for stage in ("periodic", "epilog", "periodic")] == [Status.WARN] * 3
    assert [node.look("prolog").reason for _ in range(2)] == ["xid_154"] * 2
    assert node.look("prolog").status is Status.FAIL
    assert node.look("periodic").status is Status.WARN
    node.say(line(154, "GPU recovery action changed from 0x3 (Drain P2P) to 0x0 (None)"))
    assert node.look("prolog").status is Status.PASS


def test_a_job_without_the_gpu_whose_peers_drain_starts(node: Node) -> None:
    """Peers of the other GPU are none of this job's; the next job looks again."""
    two_gpus = with_two_gpus(node)
    two_gpus.say(line(154, DRAIN, gpu="0000:1b:00"))
    (result,) = runner.run([xid.check], two_gpus.context, {}, 10.0).results
    assert (result.finding.status, result.conditions) == (Status.WARN, (("never",),))
    two_gpus.context = replace(two_gpus.context, job_gpus=(0,))
    assert two_gpus.look().status is Status.FAIL
