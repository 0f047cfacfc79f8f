"""The supervisor judges records of kernel logs that agents send: findings as the root service would write them."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest
from supervised import World

from slurm_robust.config.site import NodecheckConfig
from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.supervise.agent.messages import KernelRecords, from_agent
from slurm_robust.supervise.reported.kernel_records import KernelRecordJudge

BOOTED_S = 1_000_000.0
GPUS = {"0000:9b:00": 3}
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."
MLX5 = (
    "mlx5_core 0000:3b:00.0: wait_func:1088:(pid 9): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource"
)


def records(*texts: str, first: int = 1, at_s: float = 50.0, **more: object) -> KernelRecords:
    """What the agent of n1 sends of lines that were logged at this time after boot."""
    made = tuple(f"3,{first + n},{int(at_s * 1e6)},-;{text}" for n, text in enumerate(texts))
    values = {"driver": 570, **more}
    return KernelRecords("n1", BOOTED_S + at_s + 1, at_s + 1, made, GPUS)._replace(**values)


@pytest.fixture
def judge() -> KernelRecordJudge:
    """With the catalogue's own options."""
    return KernelRecordJudge(NodecheckConfig(), ("n1", "n2"))


def told(judge: KernelRecordJudge, message: KernelRecords) -> list[tuple[str, str]]:
    """Kind and urgency of what these records tell."""
    return [(finding.kind, finding.urgency) for finding in judge.judge(message).findings]


def test_an_xid_is_the_finding_that_the_service_would_write(judge: KernelRecordJudge) -> None:
    """With the number of the GPU on its node, and the time by that node's clock."""
    (found,) = judge.judge(records(XID.replace("79", "48"))).findings
    assert found == NodeFinding(1, BOOTED_S + 50.0, "agent", "xid", "now", found.text, (3,), "", 48)
    assert "double-bit ECC" in found.text


def test_a_record_is_no_older_than_its_agent_says(judge: KernelRecordJudge) -> None:
    """It had read the log to its end by then; an older agent says nothing. Nothing is later than now."""
    (found,) = judge.judge(records(XID, since_s=BOOTED_S + 45.0, since_boot_s=2000.0)).findings
    assert found.at_s == BOOTED_S + 45.0
    (found,) = judge.judge(records(XID, first=7, since_s=BOOTED_S + 9999.0, since_boot_s=2000.0)).findings
    assert found.at_s == BOOTED_S + 51.0
    (found,) = judge.judge(records(XID, first=8, since_boot_s=2000.0)).findings
    assert found.at_s == BOOTED_S + 51.0 - 1950.0


def test_records_that_are_sent_again_are_judged_once(judge: KernelRecordJudge) -> None:
    """By an agent that was started anew. After a reboot the kernel counts from 0 again."""
    assert ("xid", "now") in told(judge, records(XID))
    assert told(judge, records(XID)) == []
    assert ("xid", "now") in told(judge, records(XID, at_s=20.0))
    assert ("xid", "now") in told(judge, records(XID, first=2, at_s=20.0))


def test_the_judgement_is_that_of_the_checks(judge: KernelRecordJudge) -> None:
    """What is told when it comes often, what a program causes, what counts when it is repeated, a harmless line."""
    often = "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0"
    assert [told(judge, records(*[often] * 20, first=20 * n)) for n in range(4)] == [[]] * 4
    assert told(judge, records(*[often] * 20, first=80)) == [("pcie_corrected", "at_next_checkpoint")]
    assert told(judge, records(XID.replace("79", "31"), first=200)) == [("xid", "note")]
    assert ("command_timeout", "if_repeated") in told(judge, records(MLX5, first=210))
    assert told(judge, records("NVRM: loading NVIDIA UNIX x86_64 Kernel Module", first=220)) == []


@pytest.mark.parametrize(("driver", "expected"), [(535, "now"), (570, "note"), (0, "note")])
def test_the_nodes_driver_counts(judge: KernelRecordJudge, driver: int, expected: str) -> None:
    """XID 109 is a fault of the GPU on old drivers."""
    text = "NVRM: Xid (PCI:0000:9b:00): 109, pid=1, name=python, Ch 00000008, errorString CTX SWITCH TIMEOUT"
    assert told(judge, records(text, driver=driver)) == [("xid", expected)]


def test_nothing_of_this_machine_is_looked_up(judge: KernelRecordJudge) -> None:
    """A GPU whose number its node did not say is any of that node's; a file system's mount is not known."""
    (found, *_) = judge.judge(records(XID, gpus={})).findings
    assert found.gpus == ()
    shut = "XFS (sda1): Corruption of in-memory data detected. Shutting down filesystem"
    assert told(judge, records(shut, first=9)) == [("fs_shutdown", "note")]


def test_a_spare_node_tells_of_a_lost_gpu_alone(judge: KernelRecordJudge) -> None:
    """It is not used; what is mild, or is about a card, is told once a rank is there."""
    message = records(XID, MLX5, XID.replace("79", "94"), unused=True)
    answer = judge.judge(message)
    assert answer.unused
    assert {(finding.kind, finding.urgency) for finding in answer.findings} <= {("xid", "now"), ("gpu_driver", "now")}
    assert answer.findings
    once_used = message._replace(unused=False)
    assert ("xid", "now") in told(judge, once_used), "it has turned out to concern the job"
    assert told(judge, once_used) == []


def test_the_sites_options_hold(judge: KernelRecordJudge) -> None:
    """Codes that it ignores, a check that it has switched off; a mistake there costs nothing but the option."""
    ignoring = KernelRecordJudge(NodecheckConfig(options={"xid": {"ignore": [48]}}), ("n1",))
    assert told(ignoring, records(XID.replace("79, pid=1, GPU has fallen off the bus", "48, pid=1"))) == [
        ("xid", "note")
    ]
    assert told(KernelRecordJudge(NodecheckConfig(disable=("nic_log", "kernel_log")), ("n1",)), records(MLX5)) == []
    wrong = KernelRecordJudge(NodecheckConfig(options={"xid": {"nonsense": 1}}), ("n1",))
    assert ("xid", "now") in told(wrong, records(XID))


@pytest.mark.parametrize(
    "record",
    [
        *("", "\0" * 900, "3,1;NVRM", "NVRM: Xid (PCI:0000:9b:00): 79, x", "3,1,5,-;" + "(" * 5000, "\ud800\udfff"),
        *("3,9,5,-;\ud800NVRM: Xid \ud800", "3,9,5,-;NVRM: Xid (PCI:0000:9b:00): 99999, x", "-1,-1,-1,-;NVRM"),
        *("3," + "9" * 5000 + ",5,-;NVRM", "3,9,5,-;" + "NVRM: Xid (" * 90, "3,9,5,-;mlx5_core " + "0" * 1000),
    ],
)
def test_a_hostile_record_is_skipped(judge: KernelRecordJudge, record: str) -> None:
    """The channel belongs to the user's own step."""
    assert [urgency for _, urgency in told(judge, KernelRecords("n1", 1e6, 60.0, (record,), GPUS))] in ([], ["note"])
    assert ("xid", "now") in told(judge, records(XID))


def test_a_hostile_message_is_skipped(judge: KernelRecordJudge) -> None:
    """Times that are none, another job's node, thousands of records and GPUs."""
    assert told(judge, records(XID)._replace(at_s=math.nan)) == []
    assert told(judge, records(XID)._replace(since_boot_s=math.inf)) == []
    assert told(judge, records(XID)._replace(node="other")) == []
    many = records(*[XID.replace("0000:9b", f"{n:04x}:9b") for n in range(5000)])
    found = judge.judge(many._replace(gpus={f"{n:04x}:9b:00": n for n in range(5000)})).findings
    assert len(found) <= 64
    raw = {"t": "kernel", "n": "n1", "at": 1.0, "since_boot_s": 1.0, "records": 7}
    assert type(from_agent(raw)).__name__ == "Malformed"


def test_a_line_of_the_kernel_log_moves_the_job_without_a_service(tmp_path: Path) -> None:
    """From the message to the signal that policy weighs."""

    async def story() -> None:
        world = World(tmp_path, nodes=("n1", "n2", "n3"))
        session = world.session
        now_s = world.clock.at_s
        record = f"3,1,{int(99.5e6)},-;{XID}"
        session.receive(KernelRecords("n2", now_s, 100.0, (record,), GPUS))
        signals: list[object] = []
        session.node_faults.pass_on(signals, session.folder)  # type: ignore[arg-type]
        found = session.node_faults.faulty(("n1", "n2", "n3"), ("n1", "n2"))
        assert set(found.leave_now) == {"n2"}
        assert found.faults["n2"].at_s == now_s - 0.5
        assert found.faults["n2"].source == "agent"

    asyncio.run(story())
