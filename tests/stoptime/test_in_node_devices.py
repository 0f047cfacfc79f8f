"""What ranks within the nodes tell, judged."""

from __future__ import annotations

from typing import Any

from slurm_robust.stoptime import in_node


def rank(device: str = "cuda:0", rate: float = 50.0, **wrong: int) -> dict[str, Any]:
    """The result of a rank."""
    return {"device": device, "wrong": {"products": 0, "h2d": 0} | wrong, "gb_per_s": {"h2d": rate}}


def test_healthy_devices_are_no_finding() -> None:
    """Also where rates differ a little."""
    verdict = in_node.judge({"n1": [rank(), rank("cuda:1", 41.0)], "n2": [rank(rate=60.0)]})
    assert verdict == in_node.InNodeVerdict()


def test_each_wrong_number_names_its_node_with_the_device() -> None:
    """Products, copies, and what the other GPUs sent."""
    verdict = in_node.judge({"n1": [rank(), rank("cuda:1", products=3, h2d=9)], "n2": [rank(all_to_all=5)]})
    assert verdict.broken == {
        "n1": "cuda:1 computes wrong products: 3 numbers or sums in 5 products; "
        "cuda:1 9 bytes are wrong after a copy from the host",
        "n2": "cuda:0 receives 5 wrong numbers from the other GPUs of its node",
    }


def test_a_copy_at_less_than_half_of_the_usual_rate_names_its_node() -> None:
    """Only where there are three GPUs to compare, and never in the memory of a host."""
    told = {"n1": [rank(), rank("cuda:1", 12.0)], "n2": [rank()]}
    reason = in_node.judge(told).broken["n1"]
    assert reason == "cuda:1 copies from the host at 12 GB/s, the median of all GPUs is 50 GB/s"
    assert in_node.judge({"n1": [rank(), rank("cuda:1", 12.0)]}).broken == {}
    asked = in_node.judge({"n1": [rank()]}, least={"h2d": 52.0, "d2h": 99.0})
    assert asked.broken == {"n1": "cuda:0 copies from the host at 50 GB/s, the site asks for 52 GB/s"}
    hosts = {
        f"n{i}": [{"device": "cpu", "wrong": {}, "gb_per_s": {"memory": rate}}] for i, rate in enumerate((9, 9, 1))
    }
    assert in_node.judge(hosts) == in_node.InNodeVerdict()


def test_a_crash_counts_where_two_others_come_to_a_result() -> None:
    """A CUDA error or a signal; a lack of memory or time says nothing."""
    crash = {"device": "cuda:0", "error": "RuntimeError: CUDA error: an illegal memory access was encountered"}
    short = {"device": "cuda:0", "error": "OutOfMemoryError: CUDA out of memory"}
    verdict = in_node.judge({"n1": [crash], "n2": [rank()], "n3": [rank()], "n4": [short], "n5": [{"device": "cpu"}]})
    assert set(verdict.broken) == {"n1"}
    assert set(verdict.untested) == {"n4", "n5"}
    assert in_node.judge({"n1": [crash], "n2": [rank()]}).broken == {}


def test_what_tools_say_is_told_once_for_all_nodes() -> None:
    """A tool that is missing everywhere is one note; a node that does not answer has one of its own."""
    missing = {"failed": "", "notes": "", "missing": "dcgmi; nvbandwidth"}
    failed, notes = in_node.of_tools({"n1": missing, "n2": missing, "n3": {}, "n4": {**missing, "failed": "bad"}})
    assert failed == {"n4": "bad"}
    assert notes == (
        "not installed: dcgmi; nvbandwidth (n1, n2, n4)",
        "dcgmi diag and nvbandwidth did not end in time (n3)",
    )
