from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xid_node import GPU, Node, line, with_two_gpus

from slurm_robust.nodecheck.checks.gpu import xid
from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Fitness, Status

# `../shared/data` beside the repository, or beside the folder of its worktrees.
SAVED = next(
    (
        found
        for parent in Path(__file__).parents
        if (found := parent / "shared/data/kernel_log/dmesg-with-xid-119.log").exists()
    ),
    None,
)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A healthy node."""
    return Node(tmp_path)


def test_a_quiet_log_passes(node: Node) -> None:
    """No XID, no finding."""
    assert node.look().status is Status.PASS


def test_application_xids_pass_and_are_told_once(node: Node) -> None:
    """They stand in the evidence of the first prolog behind them, and not in the next one's."""
    node.say(line(31) * 3 + line(45) + line(43))
    finding = node.look()
    assert (finding.status, finding.reason) == (Status.PASS, "xid_harmless")
    assert [event["count"] for event in finding.evidence["events"]] == [3, 1, 1]
    assert node.look().reason == "no_xid"


def test_a_hardware_xid_stays_until_an_operator_clears_it(node: Node) -> None:
    """Latched over further looks, also when the log has forgotten the line (gpud could not be cleared at all)."""
    node.say(line(79, "GPU has fallen off the bus."))
    for _ in range(2):
        finding = node.look()
        assert (finding.status, finding.reason) == (Status.FAIL, "xid_79")
        assert "fallen off the bus" in finding.sentence
        assert GPU in finding.sentence
    node.log.write_text("Linux version 6.1.0\n")
    assert node.look().reason == "xid_79"
    assert xid.clear(node.context, "PCI:0000:9B:00", xid.check.settings({})) == 1
    assert node.look().status is Status.PASS


def test_clearing_one_gpu_leaves_the_other(node: Node) -> None:
    """Clear takes the GPU that is named, `all` takes every one."""
    node.say(line(79) + line(95, gpu="0000:1b:00"))
    assert xid.clear(node.context, "00000000:9B:00.0", xid.check.settings({})) == 1
    finding = node.look()
    assert finding.reason == "xid_95"
    assert xid.clear(node.context, "all", xid.check.settings({})) == 1
    assert node.look().status is Status.PASS


def test_a_new_boot_clears(node: Node) -> None:
    """A boot id that changed drops what was latched, and the lines before it are not read again."""
    node.say(line(79))
    assert node.look().status is Status.FAIL
    node.boot.write_text("boot-2\n")
    assert node.look().status is Status.PASS
    node.say(line(79))
    assert node.look().status is Status.FAIL


def test_only_a_prolog_moves_on(node: Node) -> None:
    """A periodic look between two prologs takes nothing away from the next prolog, and latches all the same."""
    node.say(line(13))
    assert node.look("periodic").reason == "xid_harmless"
    assert node.look("prolog").reason == "xid_harmless"
    node.say(line(79))
    assert node.look("periodic").reason == "xid_79"
    node.log.write_text("")
    assert node.look("periodic").reason == "xid_79"


def test_a_recovery_line_is_no_fault_and_withdraws_its_own_demand(node: Node) -> None:
    """154 `changed to None` passes; it takes back an earlier 154, and no other XID."""
    wants, none = (
        "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        "changed from 0x1 (x) to 0x0 (None)",
    )
    node.say(line(154, none))
    assert node.look().status is Status.PASS
    node.say(line(154, wants))
    assert node.look().reason == "xid_154"
    node.say(line(154, none))
    assert node.look().status is Status.PASS
    node.say(line(154, wants) + line(119) + line(154, none))
    finding = node.look()
    assert finding.reason == "xid_119"


def test_the_worst_names_the_finding(node: Node) -> None:
    """Of several, the one that needs most is said first, with the number of the others."""
    node.say(line(154, "changed from 0x0 (None) to 0x2 (Node Reboot Required)") + line(95) + line(79) + line(45))
    finding = node.look()
    assert finding.reason == "xid_79"
    assert "and 2 more" in finding.sentence
    assert "power-cycle" in finding.remedy


def test_the_site_may_judge_otherwise(node: Node) -> None:
    """nodecheck.options.xid lays the site's word over the catalogue's."""
    node.say(line(74) + line(94))
    facts = xid.probe(node.context, xid.check.settings({}))
    for options, status in (({}, Status.FAIL), ({"warn": [74]}, Status.WARN), ({"ignore": [74, 94]}, Status.PASS)):
        assert xid.judge(facts, xid.check.settings(options)).status is status
    assert xid.judge(facts, xid.check.settings({"ignore": [74], "fail": [94]})).reason == "xid_94"


def switch_line(code: int, severity: str, switch: int = 3) -> str:
    """A line of the switches' driver."""
    return f"nvidia-nvswitch{switch}: SXid (PCI:0000:c1:00.0): {code}, {severity}, Link 28 some words (First)\n"


@pytest.mark.parametrize(
    ("code", "severity", "status", "reason"),
    [
        (24007, "Non-fatal", Status.PASS, "xid_harmless"),
        (11012, "Non-fatal", Status.PASS, "xid_harmless"),
        (20034, "Fatal", Status.WARN, "sxid_20034"),
        (12028, "Non-fatal", Status.FAIL, "sxid_12028"),
        (19084, "Non-fatal", Status.FAIL, "sxid_19084"),
        (20012, "Non-fatal", Status.WARN, "sxid_20012"),
        (15008, "Correctable", Status.PASS, "xid_harmless"),
        (29999, "Fatal", Status.WARN, "sxid_29999"),
        (29999, "Non-fatal", Status.PASS, "xid_harmless"),
        (23001, "Fatal", Status.FAIL, "sxid_23001"),
        (22003, "Fatal", Status.FAIL, "sxid_22003"),
        (23001, "Non-fatal", Status.PASS, "xid_harmless"),
    ],
)
def test_switch_errors_fail_only_where_all_must_be_reset(
    node: Node, code: int, severity: str, status: Status, reason: str
) -> None:
    """The always-fatal class fails; a fatal error of one port warns (its GPU logs XID 74 itself)."""
    node.say(switch_line(code, severity))
    finding = node.look()
    assert (finding.status, finding.reason) == (status, reason)


def test_a_switch_error_latches_and_is_cleared_by_its_switch(node: Node) -> None:
    """As an XID does; the registers that follow it are not counted again."""
    node.say(switch_line(23001, "Fatal") + "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 23001, Severity 1 Engine 28\n")
    finding = node.look()
    assert finding.evidence["events"][0]["count"] == 1
    assert "nvswitch3" in finding.sentence
    assert "nvidia-smi -r" in finding.remedy
    assert node.look().reason == "sxid_23001"
    assert xid.clear(node.context, "nvswitch3", xid.check.settings({})) == 1
    assert node.look().status is Status.PASS


@pytest.fixture
def two_gpus(node: Node) -> Node:
    """Two GPUs, of which the job was given the second."""
    return with_two_gpus(node)


@pytest.mark.parametrize("code", [95, 48, 64, 154])
def test_a_fault_of_one_gpu_alone_refuses_only_jobs_that_were_given_it(two_gpus: Node, code: int) -> None:
    """The job on the other GPU starts with a warning; any other look at the node fails."""
    two_gpus.say(line(code, "changed from 0x0 (None) to 0x1 (GPU Reset Required)", gpu="0000:1b:00"))
    finding = two_gpus.look()
    assert (finding.status, finding.reason) == (Status.WARN, f"xid_{code}")
    assert "not a GPU of this job" in finding.sentence
    assert two_gpus.look("periodic").status is Status.FAIL
    two_gpus.context = replace(two_gpus.context, job_gpus=(0, 1))
    assert two_gpus.look().status is Status.FAIL


def test_a_fault_that_spared_this_job_lets_no_verdict_stand(two_gpus: Node) -> None:
    """The next job may be given that GPU: its prolog has to look itself."""
    assert runner.run([xid.check], two_gpus.context, {}, 10.0).results[0].conditions == ()
    two_gpus.say(line(95, gpu="0000:1b:00"))
    (result,) = runner.run([xid.check], two_gpus.context, {}, 10.0).results
    assert (result.finding.status, result.conditions) == (Status.WARN, (("never",),))


@pytest.mark.parametrize("code", [79, 74, 119])
def test_a_fault_that_reaches_other_gpus_refuses_every_job(two_gpus: Node, code: int) -> None:
    """Off the bus, links and firmware: the driver and the fabric are shared."""
    two_gpus.say(line(code, gpu="0000:1b:00"))
    assert two_gpus.look().status is Status.FAIL


@pytest.mark.parametrize("text", ["", "Device Minor: x\n", "Device Minor: \t 7\n"])
def test_where_it_is_not_sure_which_gpus_a_job_has_every_fault_counts(two_gpus: Node, text: str) -> None:
    """No minor number, or numbers with gaps: Slurm's ids may mean other GPUs."""
    (two_gpus.context.root / "proc/driver/nvidia/gpus/0000:1b:00.0/information").write_text(text)
    two_gpus.say(line(95, gpu="0000:1b:00"))
    assert two_gpus.look().status is Status.FAIL


def test_without_a_log_it_is_unknown_only_where_a_driver_is(node: Node) -> None:
    """No GPU, no log: nothing to look at. A GPU and no log: unknown, which drains nothing."""
    node.log.unlink()
    assert node.look().status is Status.SKIP
    (node.context.root / "proc/driver/nvidia").mkdir(parents=True)
    assert node.look().status is Status.UNKNOWN


def test_a_broken_state_file_is_as_none(node: Node) -> None:
    """Garbage in the cache folder gives neither a crash nor a finding."""
    node.look()
    latched = [7, {}, {"gpu": "0", "xid": "79", "grade": "fail", "count": 1, "message": ""}]
    for garbage in (
        "{",
        "[]",
        json.dumps({"boot_id": "boot-1", "cursor": 7, "latched": "x"}),
        json.dumps({"boot_id": "boot-1", "cursor": {}, "latched": latched}),
        "\0" * 10,
    ):
        (node.context.cache_dir or Path()).joinpath("xid.json").write_text(garbage)
        assert node.look().status is Status.PASS, garbage


def test_state_that_anybody_could_have_written_is_not_believed(node: Node) -> None:
    """A cache folder open to all, or a link in it, is passed over."""
    node.say(line(79))
    assert node.context.cache_dir is not None
    node.look()
    node.log.write_text("")
    state = node.context.cache_dir / "xid.json"
    state.rename(node.context.cache_dir / "other.json")
    state.symlink_to(node.context.cache_dir / "other.json")
    assert node.look().status is Status.PASS


def test_the_real_log_of_a_gpu_whose_firmware_hung_is_unfit() -> None:
    """`dmesg -T` of a machine with XID 119: that GPU needs a reset."""
    if SAVED is None:
        pytest.skip("../shared/data/kernel_log/dmesg-with-xid-119.log is not here")
    context = Context("n1", "full", kmsg=SAVED)
    report = runner.run([xid.check], context, {}, 10.0)
    finding = report.results[0].finding
    assert report.verdict is Fitness.UNFIT
    assert finding.reason == "xid_119"
    assert "GPU 0000:9b:00" in finding.sentence
    assert finding.evidence["events"][0]["count"] == 5


@pytest.mark.parametrize(
    ("written", "name"),
    [("0000:9b:00", GPU), ("PCI:0000:9B:00", GPU), ("00000000:9B:00.0", GPU), ("9b:00", GPU), ("9b:00.0", GPU)],
)
def test_a_gpu_has_one_name(written: str, name: str) -> None:
    """As the kernel log, nvidia-smi and lspci write it."""
    assert xid.gpu_name(written) == name


@given(
    st.lists(
        st.text(max_size=120)
        | st.text(max_size=80).map(lambda t: f"NVRM: Xid (PCI:0000:9b:00): 79{t}")
        | st.text(max_size=80).map(lambda t: f"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 23001, {t}")
        | st.text(max_size=80).map(lambda t: f"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): {t}, Fatal, x"),
        max_size=20,
    )
)
def test_any_messages_are_counted_without_an_error(texts: list[str]) -> None:
    """Whatever a driver prints, events come out with a GPU and a code."""
    for event in xid.events(texts):
        assert event["count"] >= 1
        assert isinstance(event["xid"], int)
