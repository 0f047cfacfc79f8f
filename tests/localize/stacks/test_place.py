import pytest
from localize_scenes import (
    ALL_REDUCE,
    BACKWARD,
    BARRIER,
    EVALUATE,
    IMPORT,
    LOADER_WAIT,
    MAIN,
    SAVE,
    SYNC_BUFFERS,
    USER,
    USER_LOCK,
    WORKER_HTTP,
    WORKER_LOCK,
    WORKER_NATIVE,
    frames,
)

from slurm_robust.localize.evidence import StackFrame
from slurm_robust.localize.stacks.known_names import Kind, WaitsOn
from slurm_robust.localize.stacks.place import place_of


@pytest.mark.parametrize(
    ("stack", "kind", "wait"),
    [
        (ALL_REDUCE, Kind.COLLECTIVE, WaitsOn.NONE),
        (BARRIER, Kind.COLLECTIVE, WaitsOn.NONE),
        (SYNC_BUFFERS, Kind.COLLECTIVE, WaitsOn.NONE),
        (BACKWARD, Kind.BACKWARD, WaitsOn.NONE),
        (LOADER_WAIT, Kind.LOADER, WaitsOn.LOCK),
        (WORKER_LOCK, Kind.LOADER, WaitsOn.LOCK),
        (WORKER_HTTP, Kind.LOADER, WaitsOn.NETWORK),
        (SAVE, Kind.CHECKPOINT, WaitsOn.NONE),
        (IMPORT, Kind.STARTUP, WaitsOn.NONE),
        (USER, Kind.USER, WaitsOn.NONE),
        (USER_LOCK, Kind.USER, WaitsOn.LOCK),
        ((), Kind.UNKNOWN, WaitsOn.NONE),
    ],
)
def test_where_a_thread_stands(stack: tuple[StackFrame, ...], kind: Kind, wait: WaitsOn) -> None:
    """Each part of a training program is told by the frames that real dumps show."""
    found = place_of(stack)
    assert (found.kind, found.wait) == (kind, wait)


@pytest.mark.parametrize(
    ("wchan", "wait"),
    [
        ("hrtimer_nanosleep", WaitsOn.SLEEP),
        ("futex_do_wait", WaitsOn.NATIVE_LOCK),
        ("folio_wait_bit_common", WaitsOn.STORAGE),
        ("rpc_wait_bit_killable", WaitsOn.STORAGE),
        ("unix_stream_read_generic", WaitsOn.NETWORK),
        ("poll_schedule_timeout.constprop.0", WaitsOn.NETWORK),
        ("do_wait", WaitsOn.CHILD),
        ("0", WaitsOn.NONE),
    ],
)
def test_the_kernel_tells_what_native_code_waits_for(wchan: str, wait: WaitsOn) -> None:
    """Where the innermost frame is a call into native code, the wait channel says what holds it."""
    assert place_of(WORKER_NATIVE, wchan).wait is wait


def test_visible_wait_beats_the_wait_channel() -> None:
    """Every Python lock is a futex below; the frames know better."""
    assert place_of(WORKER_LOCK, "futex_do_wait").wait is WaitsOn.LOCK


def test_user_code_below_a_collective_is_not_the_collective() -> None:
    """A hook or custom gradient that hangs inside backward is the user's code, not a wait for peers."""
    stack = (*BACKWARD, StackFrame("MyFunction.backward", "/home/u/ops.py", 7))
    assert place_of(stack).kind is Kind.USER


def test_model_code_below_ddp_is_not_a_collective() -> None:
    """DDP's forward stands below every model's forward."""
    stack = frames(
        *MAIN, "DistributedDataParallel.forward torch/nn/parallel/distributed.py:1886", "Net.forward /home/u/m.py:3"
    )
    assert place_of(stack).kind is Kind.USER


def test_names_without_classes() -> None:
    """Python 3.10 shows plain function names."""
    stack = frames(*MAIN, "_sync_buffers torch/nn/parallel/distributed.py:1980")
    assert place_of(stack).kind is Kind.COLLECTIVE


@pytest.mark.parametrize(
    ("stack", "word"),
    [(EVALUATE, "evaluate"), (SAVE, "checkpoint"), (IMPORT, "startup"), (USER, ""), (LOADER_WAIT, "")],
)
def test_slow_by_nature(stack: tuple[StackFrame, ...], word: str) -> None:
    """Work that may rightly take long is marked by its name."""
    assert place_of(stack).slow_by_nature == word


def test_checkpoint_collective_waits_for_peers() -> None:
    """Ranks that wait inside a distributed checkpoint's collective are victims like any others."""
    stack = frames(
        *MAIN,
        "save torch/distributed/checkpoint/state_dict_saver.py:10",
        "all_gather torch/distributed/distributed_c10d.py:1",
    )
    assert place_of(stack).waits_for_peers


def test_anchor_leaves_out_what_varies_while_waiting() -> None:
    """Below the call that waits, frames change from poll to poll; the anchor stops above them."""
    assert LOADER_WAIT[place_of(LOADER_WAIT).anchor - 1].function.endswith("_try_get_data")
    assert SYNC_BUFFERS[place_of(SYNC_BUFFERS).anchor - 1].function.endswith("_sync_buffers")
