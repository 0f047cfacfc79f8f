"""Messages of several lines, lines that call themselves harmless, and what ranks before what among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.diagnose.findings import Matcher, findings
from slurm_robust.diagnose.root import diagnose
from slurm_robust.diagnose.rulebook import read

NCCL = [
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited, NCCL version 2.21.5",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "Last error:",
    "socketProgressOpt: Call to recv from 10.0.0.5<33759> failed : Connection reset by peer",
]
TRACEBACK = ["Traceback (most recent call last):", '  File "/w/train.py", line 12, in loss', "    f()"]
RAY = [
    "ray.exceptions.RayTaskError(ActorDiedError): ray::TaskRunner.run() (pid=5, ip=10.0.0.4)",
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
]
TABLE = [
    "failed (exitcode: -7) local_rank: 0 (pid: 397) of binary: /usr/bin/python",
    "Failures:",
    "[1]:",
    "  traceback : Signal 7 (SIGBUS) received by PID 398",
    "Root Cause (first observed failure):",
    "[0]:",
    "  traceback : Signal 7 (SIGBUS) received by PID 397",
]
PROLOG = "/etc/slurm/prolog.d/helper.sh: line 5: /run/gpustat/0: Permission denied"
WATCHDOG = "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"


@pytest.mark.parametrize(
    ("lines", "root"),
    [
        (NCCL, NCCL[3]),
        ([*TRACEBACK, "KeyError: 'x'", *NCCL], "KeyError: 'x'"),
        ([*TRACEBACK, "KeyError: 'x'", *(f"[rank1]: {line}" for line in NCCL[:-1]),
          "[rank1]: NET/IB : Got completion from peer 10.0.0.4<381> with status=12 opcode=0 len=0 vendor err 129"],
         "KeyError: 'x'"),
        (["rank 2: CUDA error: Could not synchronize CUDA stream:", "CUDA_ERROR_ILLEGAL_INSTRUCTION: an instruction"],
         "CUDA_ERROR_ILLEGAL_INSTRUCTION: an instruction"),
        (TABLE, "traceback : Signal 7 (SIGBUS) received by PID 397"),
        (RAY, RAY[2]),
        ([WATCHDOG, *RAY], WATCHDOG),
        ([PROLOG, *TRACEBACK, "ValueError: no module is given"], "ValueError: no module is given"),
        ([PROLOG, "srun: error: n1: task 0: Exited with exit code 1"], PROLOG),
    ],
)  # fmt: skip
def test_the_line_that_says_most_is_the_root(lines: list[str], root: str) -> None:
    """A header, a launcher's table and a mere line come after what they are about."""
    found = diagnose(findings(lines))
    assert found.root is not None
    assert found.root.text == root


@pytest.mark.parametrize(
    ("line", "mild"),
    [
        ("2026-01-02 03:04:05 INFO prefetch: No space left on device, using memory", True),
        ("[rank0]:[W327 05:20:21.1 socket.cpp:759] [c10d] Connection refused [n1]:29500", True),
        ("/w/parallel.py:46: UserWarning: [Errno 28] No space left on device. It will work in serial", True),
        ("HTTP Error 429 thrown while requesting GET https://huggingface.co/api/models/gpt2", True),
        ("slurmstepd: error: couldn't chdir to `/w': No such file or directory: going to /tmp instead", True),
        ("RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)", False),
        ("OSError: [Errno 28] No space left on device", False),
    ],
)
def test_a_line_that_goes_on_says_so(line: str, mild: bool) -> None:
    """By its level, or in words."""
    assert [finding.mild for finding in findings([line])] == [mild]


def test_a_sites_rule_without_any_literal_word_is_tried_on_every_line(tmp_path: Path) -> None:
    """Lines without a word of any rule are passed over only where all rules have words."""
    path = tmp_path / "site.yaml"
    path.write_text(
        "rules:\n- {id: digits, category: storage, pattern: '^\\d\\d-\\d\\d$', source: https://wiki.example.org,\n"
        "   examples: ['17-42', '11-11']}\n"
    )
    assert [finding.rule.id for finding in findings(["17-42"], rules=Matcher(read([path])))] == ["digits"]
    assert findings(["17-42"]) == []


def test_an_error_that_the_machine_has_corrected_blames_no_node() -> None:
    """Kernels log that they looked, also where nothing was lost."""
    lines = ["mce: [Hardware Error]: Machine check events logged", *TRACEBACK, "KeyError: 'x'"]
    assert diagnose(findings(lines)).category.name == "key"


@pytest.mark.parametrize(
    "line", ["[ERROR] 2026-01-02 the shard is gone", "ERROR: crashed: shard 7", "x: fatal: shard 7"]
)
def test_a_librarys_own_error_line_counts_where_nothing_else_does(line: str) -> None:
    """It comes after consequences that say more, but before nothing at all."""
    alone, after = diagnose(findings([line])), diagnose(findings([line, NCCL[-1]]))
    assert (alone.root and alone.root.text, alone.category.name, after.category.name) == (line, "runtime", "peer_lost")


@pytest.mark.parametrize("road", ["restart in place", "requeue into a seat", "test", "stop"])
def test_what_we_end_ourselves_is_no_failure(road: str) -> None:
    """From the line that decides until training begins again; what ended before or comes later counts."""
    log = [
        "srobust: 09:20:04 suspect: rank 1 on n4, confidence 0.90",
        f"srobust: 09:20:04 {road}: rank 1 on n4: process 27635 is uninterruptible (D)",
        "srun: error: n4: task 1: Killed",
        "slurmstepd-n4: error: *** STEP 13.0 ON n4 CANCELLED AT 2026-11-27T09:20:05 ***",
        "srobust: 09:20:05 srun was started anew for the training step; it may use n2,n4",
    ]
    died = "srun: error: n2: task 0: Killed"
    assert findings(log) == []
    assert [one.number for one in findings([died, *log, died])] == [0, 6]
    next_attempt = ["loading the data", died]
    assert [one.number for one in findings([*log[:4], *next_attempt])] == [5], "also of a job that tells no step"
