"""`srobust test` over real faults: wrong bits in BLAS, a proxy between two ranks, memory that others stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from real_faults import LinkProxy, linked_python, memory_hogs, one_bit_python, pinned_python
from stoptime_cluster import TestedCluster

from slurm_robust.devcluster.cluster import DevCluster, Spec

pytest.importorskip("torch")
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]
ALL = "n[1-6]"


@pytest.fixture(scope="module")
def tested() -> Iterator[TestedCluster]:
    """Six nodes: three pairs, so that slow ones can be told."""
    cluster = DevCluster.up(Spec(nodes=6))
    yield TestedCluster(cluster)
    cluster.down()


def test_one_wrong_bit_in_blas_names_its_node_in_both_tests_of_arithmetic(
    tested: TestedCluster, tmp_path: Path
) -> None:
    """In the known answers within the node, and beside the other nodes' bits."""
    python = one_bit_python(tmp_path, "n3")
    code, report = tested.test("-w", ALL, "--tests", "in-node,alignment", "--python", python)
    assert (code, report["failed_nodes"]) == (1, ["n3"]), report
    reasons = {finding["test"]: finding["reason"] for finding in report["findings"]}
    assert "cpu computes wrong products" in reasons["in-node"]
    assert "cpu computed other bits in 5 of 5 steps; 5 of 6 devices" in reasons["alignment"]


@pytest.mark.variant
def test_a_bit_that_flips_only_later_is_found_by_the_repeats(tested: TestedCluster, tmp_path: Path) -> None:
    """The first step is right, a later one is not."""
    python = one_bit_python(tmp_path, "n2", first_call=40)
    code, report = tested.test("-w", ALL, "--tests", "alignment", "--python", python)
    assert (code, report["failed_nodes"]) == (1, ["n2"]), report
    assert "of 5 steps" in report["findings"][0]["reason"]
    assert "in 5 of 5 steps" not in report["findings"][0]["reason"]


def test_one_flipped_bit_between_two_nodes_is_their_link(tested: TestedCluster, tmp_path: Path) -> None:
    """A proxy flips one bit of what n3 and n4 send each other: neither node is named."""
    with LinkProxy(("n3", "n4")) as proxy:
        code, report = tested.test("-w", ALL, "--tests", "pairs", "--python", linked_python(tmp_path, proxy))
    assert proxy.relayed >= 2, "they met twice"
    assert (code, report["failed_nodes"]) == (1, []), report
    assert [(f["kind"], f["nodes"]) for f in report["findings"]] == [("link", ["n3", "n4"])]
    assert "wrong numbers in all_gather" in report["findings"][0]["reason"]


def test_steps_in_the_shape_of_the_job_find_a_link_too(tested: TestedCluster, tmp_path: Path) -> None:
    """Each device alone comes to the right bits; with `--layout` the link between n3 and n4 fails in alignment."""
    with LinkProxy(("n3", "n4")) as proxy:
        python, words = linked_python(tmp_path, proxy), ("-w", "n[1-4]", "--tests", "alignment", "--python")
        code, report = tested.test(*words, python, "--layout", "tp=2,pp=2,ep=2")
        assert proxy.relayed >= 2, "they met twice"
    assert (code, report["failed_nodes"]) == (1, []), report
    assert [(f["test"], f["kind"], f["nodes"]) for f in report["findings"]] == [("alignment", "link", ["n3", "n4"])]
    assert "parallel step" in report["findings"][0]["reason"]


def test_a_stranger_between_two_ranks_is_no_link(tested: TestedCluster, tmp_path: Path) -> None:
    """It passes on whatever they prove to each other, and flips a bit behind that: their pair did not run."""
    with LinkProxy(("n3", "n4")) as proxy:
        python = linked_python(tmp_path, proxy, shown=True)
        _, report = tested.test("-w", "n[3-4]", "--tests", "pairs", "--python", python)
    assert proxy.relayed, "they met through it"
    assert report["failed_nodes"] == []
    assert {f["kind"] for f in report["findings"]} == {"untested"}, report
    assert "in the place of a rank" in report["findings"][0]["reason"]


@pytest.mark.variant
def test_a_link_of_five_megabytes_a_second_is_slow(tested: TestedCluster, tmp_path: Path) -> None:
    """The others' median is more than five times as fast on this machine."""
    with LinkProxy(("n1", "n2"), bytes_per_s=5e6) as proxy:
        code, report = tested.test("-w", ALL, "--tests", "pairs", "--python", linked_python(tmp_path, proxy))
    assert (code, report["failed_nodes"]) == (1, []), report
    assert [(f["kind"], f["nodes"]) for f in report["findings"]] == [("link", ["n1", "n2"])]
    assert "the median of the round is" in report["findings"][0]["reason"]


@pytest.mark.variant
def test_a_node_whose_memory_others_stream_is_slower_and_not_blamed(tested: TestedCluster, tmp_path: Path) -> None:
    """Its ranks share one processor and its memory with three processes: the tests take longer, and pass."""
    with memory_hogs(0, 3):
        code, report = tested.test("-w", ALL, "--python", pinned_python(tmp_path, "n5", 0), "--budget", "200")
    assert (code, report["verdict"], report["findings"]) == (0, "passed", []), report
