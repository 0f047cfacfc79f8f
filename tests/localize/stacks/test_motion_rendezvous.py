"""Ranks that wait in torch's start-up: the bytes of a polled store are no motion; whatever else moves bytes is.

Frames and figures are of torch 2.13 over gloo on one machine, from two looks 30 s apart; torchrun's
stack is shortened. Not measured but made up: TORCHRUN_ASKS, and a host that is polled while it makes a group.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from localize_scenes import IMPORT, USER, WORKER_IDLE, frames, process, rank

from slurm_robust.localize.evidence import StackFrame
from slurm_robust.localize.stacks.motion import Motion, compare
from slurm_robust.localize.stacks.process_tree import place

_INIT = (
    "<module> /home/u/train.py:5",
    "_exception_logger.<locals>.wrapper torch/distributed/c10d_logger.py:83",
    "_time_logger.<locals>.wrapper torch/distributed/c10d_logger.py:97",
)
STORE = frames(
    *_INIT,
    "init_process_group torch/distributed/distributed_c10d.py:1892",
    "_env_rendezvous_handler torch/distributed/rendezvous.py:280",
    "_create_c10d_store torch/distributed/rendezvous.py:199",
)
GROUP = frames(
    *_INIT,
    "init_process_group torch/distributed/distributed_c10d.py:1899",
    "_new_process_group_helper torch/distributed/distributed_c10d.py:2169",
)
_TORCHRUN = (
    "<module> torch/distributed/run.py:1032",
    "main torch/distributed/run.py:1028",
    "run torch/distributed/run.py:1019",
    "elastic_launch.__call__ torch/distributed/launcher/api.py:194",
    "SimpleElasticAgent.run torch/distributed/elastic/agent/server/api.py:745",
    "SimpleElasticAgent._rendezvous torch/distributed/elastic/agent/server/api.py:528",
)
_NEXT = (
    *_TORCHRUN,
    "DynamicRendezvousHandler.next_rendezvous torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1171",
)
TORCHRUN = frames(
    *_NEXT,
    "_DistributedRendezvousOpExecutor.run torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:685",
    "_delay torch/distributed/elastic/rendezvous/utils.py:181",
)
TORCHRUN_ASKS = frames(
    *_NEXT,
    "_DistributedRendezvousOpExecutor.run torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:643",
    "_BackendRendezvousStateHolder.sync torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:424",
    "C10dRendezvousBackend._call_store torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py:154",
)
MIB = 1 << 20


def moves(stack: tuple[StackFrame, ...], used_s: float, moved: int, then: tuple[StackFrame, ...] = ()) -> Motion:
    """The motion of a rank that uses this much processor time and moves these bytes in 30 s."""
    before = process(stack, cpu_s=1.26, io_bytes=24_376_824)
    after = process(then or stack, cpu_s=1.26 + used_s, io_bytes=24_376_824 + moved)
    return compare(rank(0, before, step=None), rank(0, after, step=None), 30.0).motion


@pytest.mark.parametrize(
    ("stack", "used_s", "moved"),
    [(STORE, 0.21, 134_826), (GROUP, 0.06, 0), (GROUP, 0.21, 134_826), (TORCHRUN, 0.12, 26_508)],
    ids=["host of the store", "client of the store", "host that makes a group", "torchrun"],
)
def test_a_polled_store_is_no_motion(stack: tuple[StackFrame, ...], used_s: float, moved: int) -> None:
    """Not even of the host, which answers itself and all others; as bytes did move, it is not sure to be still."""
    assert moves(stack, used_s, moved) is (Motion.UNSURE if moved else Motion.STILL)
    assert place(process(stack)).in_rendezvous


def test_a_rendezvous_is_one_place_wherever_its_polling_is_caught() -> None:
    """It sleeps for a second, and asks the store for a moment."""
    assert moves(TORCHRUN, 0.12, 26_508, TORCHRUN_ASKS) is Motion.UNSURE


@pytest.mark.parametrize("stack", [USER, IMPORT, WORKER_IDLE], ids=["user", "import", "loader"])
def test_the_same_bytes_elsewhere_are_motion(stack: tuple[StackFrame, ...]) -> None:
    """A slow download or a loader moves no more."""
    assert moves(stack, 0.21, 134_826) is Motion.MOVING
    assert not place(process(stack)).in_rendezvous


def test_who_moves_data_while_it_waits_moves() -> None:
    """A thread that fetches data beside the rendezvous, and a child that does; and the one who goes on."""
    assert moves(STORE, 0.21, 60 * MIB) is Motion.MOVING
    child = process(USER, 101)
    before, after = (rank(0, process(STORE), c, step=None) for c in (child, replace(child, io_bytes=100_000)))
    assert compare(before, after, 30.0).motion is Motion.MOVING
    assert moves(STORE, 0.21, 134_826, GROUP) is Motion.MOVING
