"""The root among the errors of a log: which line it is, whose fault it is, and what only followed from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.diagnose.findings import findings
from slurm_robust.diagnose.root import diagnose
from slurm_robust.diagnose.signature import signature
from slurm_robust.diagnose.taxonomy import Blame

TIMEOUT = "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"
LOST = "[rank2]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:5003"
CHAINED = "During handling of the above exception, another exception occurred:"
SUMMARY = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"


def traceback(error: str, file: str = "/w/train.py", rank: int = 3) -> list[str]:
    """A traceback of one rank, as torchrun labels it."""
    return [
        f"[rank{rank}]: Traceback (most recent call last):",
        f'[rank{rank}]:   File "{file}", line 12, in loss',
        f"[rank{rank}]:     raise ValueError('no error at all')",
        f"[rank{rank}]: {error}",
    ]


@pytest.mark.parametrize(
    ("lines", "category", "root"),
    [
        ([TIMEOUT, *traceback("TypeError: boom"), LOST, SUMMARY], "type", "[rank3]: TypeError: boom"),
        ([LOST, TIMEOUT, SUMMARY], "peer_lost", LOST),
        (
            [TIMEOUT, "RuntimeError: CUDA error: unspecified launch failure", SUMMARY],
            "cuda_error",
            "RuntimeError: CUDA error: unspecified launch failure",
        ),
        (
            [*traceback("RuntimeError: CUDA error: an illegal memory access was encountered"),
             "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."],
            "gpu_lost",
            "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
        ),
        (
            [*traceback("KeyError: 'x'"), "", CHAINED, "", *traceback("ValueError: no x")],
            "key",
            "[rank3]: KeyError: 'x'",
        ),
        (
            [*traceback("OSError: [Errno 39] Directory not empty"), CHAINED,
             *traceback("FileNotFoundError: [Errno 2] No such file or directory: 'a'")],
            "file_not_found",
            "[rank3]: FileNotFoundError: [Errno 2] No such file or directory: 'a'",
        ),
        (["WARNING: ImportError: no apex, falling back", *traceback("ValueError: a")], "value", None),
        (["exits with return code = -11"], "crashed", "exits with return code = -11"),
        (
            ["slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***"],
            "time_limit",
            "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
        ),
        (
            ["DistNetworkError: The server socket has failed to listen. port: 26159, code: -98, name: EADDRINUSE"],
            "address_in_use",
            None,
        ),
    ],
)  # fmt: skip
def test_the_root_is_found(lines: list[str], category: str, root: str | None) -> None:
    """Consequences, code in tracebacks and warnings are passed over."""
    found = diagnose(findings(lines))
    assert found.category.name == category
    assert found.root is not None
    assert root is None or found.root.text == root


def test_what_followed_is_told_apart_from_what_may_be_a_root_too() -> None:
    """Each rule once, in order."""
    lines = [
        *traceback("KeyError: 'x'"),
        LOST,
        LOST,
        *traceback("OSError: [Errno 5] Input/output error", rank=4),
        TIMEOUT,
    ]
    found = diagnose(findings(lines))
    assert [f.rule.id for f in found.followed] == ["peer-lost", "nccl-watchdog"]
    assert [f.rule.id for f in found.also] == ["io-error"]


def test_nothing_known_is_either() -> None:
    """Unknown is never the program's fault."""
    found = diagnose(findings(["step 1 loss 2.0", "RuntimeError: something that no rule knows"]))
    assert (found.category.name, found.blame) == ("runtime", Blame.EITHER)
    found = diagnose(findings(["step 1 loss 2.0", "step 2 loss 1.9"]))
    assert (found.root, found.category.name, found.blame) == (None, "unknown", Blame.EITHER)


def test_a_signature_is_the_same_elsewhere_and_differs_for_another_failure() -> None:
    """The class of an exception alone is no signature."""

    def of(*lines: str) -> str:
        root = diagnose(findings(lines)).root
        assert root is not None
        return signature(root)

    one = of(*traceback("RuntimeError: shard 17 of /data/a is gone (0x7f2a)", "/home/ann/train.py"))
    assert one == of(*traceback("RuntimeError: shard 4 of /data/b is gone (0x11)", "/scratch/bob/train.py", rank=0))
    assert one != of(*traceback("RuntimeError: shard 17 of /data/a is late (0x7f2a)", "/home/ann/train.py"))
    assert one != of(*traceback("RuntimeError: shard 17 of /data/a is gone (0x7f2a)", "/home/ann/other.py"))
    assert "train.py:loss" in one


@given(st.lists(st.text(max_size=200), max_size=40))
def test_no_text_breaks_it(lines: list[str]) -> None:
    """Any lines at all: the root, if there is one, is one of them."""
    found = diagnose(findings(lines))
    assert found.root is None or 0 <= found.root.number < len(lines)


def test_our_own_lines_are_not_read() -> None:
    """The story in a job's output quotes what ranks have printed."""
    lines = [
        "srobust: 21:22:59 stopped, exit code 139: the same failure (died: SIGSEGV) came on n2 and now on n3",
        "0: srobust run: KeyError: 'x'",
        "RuntimeError: CUDA error: unspecified launch failure",
    ]
    assert [finding.number for finding in findings(lines)] == [2]
