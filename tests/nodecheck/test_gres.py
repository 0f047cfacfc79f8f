from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.checks.gpu import gpu_count
from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import slurm_conf


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("gpu:8", 8),
        ("gpu:h100:8", 8),
        ("gpu:h100:4(S:0),gpu:h100:4(S:1),nic:2", 8),
        ("gpu", 1),
        ("gpu:a100", 1),
        ("gpu:a100:no_consume:4", 4),
        ("gpu:1g.10gb:56", 0),
        ("gpu:2K", 0),
        ("shard:64,gpu:8", 8),
        ("craynetwork:4", 0),
        ("(null)", 0),
        ("", 0),
    ],
)
def test_what_gres_says_of_gpus(value: str, number: int) -> None:
    """Summed over types; parts of a GPU, and what is no plain number, say nothing."""
    assert slurm_conf.gpu_count(value) == number


CONF = """ClusterName=c  # NodeName=n1 Gres=gpu:2
NodeName=DEFAULT RealMemory=1000 Gres=gpu:4
nodename=cpu[1-3] Gres=craynetwork:4
NodeName=n[1-4],m1 CPUs=8 \\
  Gres=gpu:h100:8
NodeName=old[01-10] CPUs=4
NodeName=broken[1-
"""


@pytest.mark.parametrize(("node", "number"), [("n3", 8), ("m1", 8), ("old07", 4), ("cpu2", 0), ("n5", 0), ("", 0)])
def test_a_node_s_own_line_counts(node: str, number: int) -> None:
    """A default holds for the lines behind it; a node that is not named has nothing said of it."""
    assert slurm_conf.gpus(CONF, node) == number


@given(st.text(max_size=200), st.text(max_size=20))
def test_any_text_is_read_without_an_error(text: str, node: str) -> None:
    """Whatever stands there."""
    assert slurm_conf.gpus(f"NodeName={text}", node) >= 0
    assert slurm_conf.gpu_count(text) >= 0


def test_fewer_gpus_than_slurm_gives_the_node_warn(tmp_path: Path) -> None:
    """Outside of prologs, and not where the site says a number itself."""
    for number in range(7):
        (tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version")
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text(CONF)

    def look(stage: str, node: str = "n1", **options: int) -> tuple[str, str]:
        context = Context(node, stage, root=tmp_path)
        finding = runner.run([gpu_count.check], context, {"gpu_count": options}, 10.0).results[0].finding
        return finding.status.value, finding.reason

    assert look("periodic") == ("warn", "gpu_fewer_than_gres")
    assert look("prolog") == ("pass", "gpus_present")
    assert look("periodic", "n9") == ("pass", "gpus_present")
    assert look("periodic", expected=7) == ("pass", "gpus_present")
    assert look("periodic", expected=8) == ("fail", "gpu_missing")


NODES = """SlurmdParameters=l3cache_as_socket
NodeName=DEFAULT RealMemory=1000 ThreadsPerCore=2
NodeName=n[1-4] Sockets=2 CoresPerSocket=32 RealMemory=512000 Gres=gpu:8
NodeName=m1 CPUs=64
NodeName=k1 Boards=2 SocketsPerBoard=2 CoresPerSocket=8 ThreadsPerCore=1
NodeName=j1 CPUs=x RealMemory=12G
"""


@pytest.mark.parametrize(
    ("node", "expected"),
    [("n3", (128, 512000)), ("m1", (64, 1000)), ("k1", (32, 1000)), ("j1", (0, 0)), ("absent", (0, 0))],
)
def test_what_slurm_conf_says_of_cpus_and_memory(node: str, expected: tuple[int, int]) -> None:
    """As numbers or by sockets, cores and threads; what is no number says nothing."""
    assert (slurm_conf.cpus(NODES, node), slurm_conf.memory_mb(NODES, node)) == expected


def test_a_node_that_pretends_to_have_more_is_not_held_to_it() -> None:
    """`config_overrides` is for test clusters: Slurm itself does not compare then."""
    text = NODES.replace("l3cache_as_socket", "l3cache_as_socket,config_overrides")
    assert (slurm_conf.cpus(text, "n3"), slurm_conf.memory_mb(text, "n3")) == (0, 0)
    assert slurm_conf.gpus(text, "n3") == 8


@given(st.text(max_size=300), st.text(max_size=10))
def test_any_slurm_conf_is_read_without_an_error(text: str, node: str) -> None:
    """The parser is total, also behind a line that is whole."""
    for conf in (text, f"NodeName=n1 {text}", NODES + text):
        for name in (node, "n1"):
            assert slurm_conf.cpus(conf, name) >= 0
            assert slurm_conf.memory_mb(conf, name) >= 0
            assert slurm_conf.gpus(conf, name) >= 0
