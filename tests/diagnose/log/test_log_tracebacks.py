"""Tracebacks stay whole and have their rank, however the lines of many ranks are mixed."""

from __future__ import annotations

import random
from pathlib import Path

from log_material import TRACEBACK, entry, healthy, page_of

from slurm_robust.diagnose.log.interest import Interest

CHAINED = (
    *TRACEBACK,
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    "Traceback (most recent call last):",
    '  File "/opt/x.py", line 1, in f',
    "    g()",
    "ValueError: cannot go on",
    "",
)
CPP = (
    *TRACEBACK,
    "CUDA kernel errors might be asynchronously reported at some other API call",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "",
    "Exception raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:43 (most recent call first):",
    "frame #0: c10::Error::Error(c10::SourceLocation) + 0x96 (0x7f12 in /opt/libc10.so)",
    "frame #1: c10::cuda::check() + 0x64 (0x7f13 in /opt/libc10.so)",
)


def without_blanks(lines: tuple[str, ...]) -> tuple[str, ...]:
    """As they are kept."""
    return tuple(line for line in lines if line)


def test_a_chain_is_one_traceback(tmp_path: Path) -> None:
    """Both exceptions, in their order; the last one is what it ended with."""
    page = page_of(tmp_path, [*healthy(10), *CHAINED, *healthy(10, 11)])
    (trace,) = page.tracebacks
    assert trace.lines == without_blanks(CHAINED)
    assert (trace.exception, trace.whole, trace.first.line) == ("ValueError: cannot go on", True, 31)


def test_frames_of_cpp_belong_to_it(tmp_path: Path) -> None:
    """PyTorch prints them below the exception."""
    page = page_of(tmp_path, [*CPP, "next"])
    assert page.tracebacks[0].lines == without_blanks(CPP)
    assert page.tracebacks[0].exception.startswith(("RuntimeError", "Compile", "Exception raised"))


def test_equal_tracebacks_of_many_ranks_are_one(tmp_path: Path) -> None:
    """However their labelled lines are mixed; addresses differ."""
    queues = {rank: list(CPP) for rank in range(64)}
    for rank, lines in queues.items():
        lines[-1] = lines[-1].replace("0x7f13", f"0x7f{rank:02x}")
    shuffle = random.Random(3)
    mixed = []
    while queues:
        rank = shuffle.choice(list(queues))
        mixed.append(f"[rank{rank}]: {queues[rank].pop(0)}")
        if not queues[rank]:
            del queues[rank]
    page = page_of(tmp_path, mixed)
    (trace,) = page.tracebacks
    assert trace.lines[:-1] == without_blanks(CPP)[:-1]
    assert (trace.ranks, trace.count) == (tuple(range(64)), 64)


def test_different_tracebacks_of_two_ranks_that_are_mixed(tmp_path: Path) -> None:
    """Each has its own."""
    other = (*TRACEBACK[:-1], "ValueError: x")
    mixed = [f"[rank{n}]: {line}" for pair in zip(TRACEBACK, other, strict=True) for n, line in enumerate(pair)]
    page = page_of(tmp_path, mixed)
    assert {t.ranks: t.lines for t in page.tracebacks} == {(0,): TRACEBACK, (1,): other}


def test_others_lines_between_do_not_end_it(tmp_path: Path) -> None:
    """Without labels, bars and log lines of other ranks may come in between."""
    lines = [line for text in TRACEBACK for line in (text, "[2024-05-01 12:00:00] INFO: still here")]
    page = page_of(tmp_path, lines)
    assert page.tracebacks[0].lines == TRACEBACK
    assert entry(page, "still here").count == len(TRACEBACK)


def test_two_that_are_mixed_without_labels_lose_nothing(tmp_path: Path) -> None:
    """Nobody can tell them apart: they are one block with all lines."""
    other = (*TRACEBACK[:-1], "ValueError: x")
    page = page_of(tmp_path, [line for pair in zip(TRACEBACK, other, strict=True) for line in pair])
    assert sorted(line for t in page.tracebacks for line in t.lines) == sorted(TRACEBACK + other)


def test_a_rank_that_falls_silent_leaves_what_it_printed(tmp_path: Path) -> None:
    """It is not whole."""
    page = page_of(tmp_path, [*(f"[rank1]: {line}" for line in TRACEBACK[:3]), *healthy(9000)])
    (trace,) = page.tracebacks
    assert (trace.lines, trace.whole, trace.ranks) == (TRACEBACK[:3], False, (1,))


def test_interesting_lines_within_are_entries_too(tmp_path: Path) -> None:
    """A rule looks at entries; they say that a traceback shows them already."""
    page = page_of(tmp_path, TRACEBACK, Interest(words=(b"illegal memory",)))
    assert [(e.line, e.in_traceback) for e in page.entries] == [(TRACEBACK[-1], True)]


def test_groups_and_fatal_errors(tmp_path: Path) -> None:
    """An exception group's indented header; faulthandler's threads."""
    group = ("  + Exception Group Traceback (most recent call last):", '  |   File "/x.py", line 1, in f', "  | E: two")
    fatal = (
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f1 (most recent call first):",
        '  File "/x.py", line 3 in f',
        "",
        "Extension modules: numpy.core (total: 1)",
    )
    page = page_of(tmp_path, [*group, "", "", "", "between", *fatal, "after"])
    assert [t.lines for t in page.tracebacks] == [group, without_blanks(fatal)]


def test_a_very_long_one_keeps_both_ends(tmp_path: Path) -> None:
    """And says how many lines are left out."""
    frames = [line for n in range(1000) for line in (f'  File "/x.py", line {n}, in f{n}', "    f()")]
    page = page_of(tmp_path, [TRACEBACK[0], *frames, "RecursionError: too deep"])
    (trace,) = page.tracebacks
    assert (trace.lines[0], trace.lines[-1]) == (TRACEBACK[0], "RecursionError: too deep")
    assert "... 1762 lines are left out ..." in trace.lines


def test_what_other_processes_hand_on(tmp_path: Path) -> None:
    """A data loader's worker, a pool's worker: a traceback within the message, or within quotes."""
    loader = (
        *TRACEBACK[:-1],
        "KeyError: Caught KeyError in DataLoader worker process 0.",
        "Original Traceback (most recent call last):",
        '  File "/x.py", line 1, in f',
        "KeyError: 7",
    )
    pool = (
        "multiprocessing.pool.RemoteTraceback: ",
        '"""',
        *TRACEBACK,
        '"""',
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *TRACEBACK,
    )
    page = page_of(tmp_path, [*loader, "between", *pool, "after", f"ERROR train: {TRACEBACK[0]}", *TRACEBACK[1:]])
    assert [t.lines for t in page.tracebacks] == [
        loader,
        without_blanks(pool[2:]),
        (f"ERROR train: {TRACEBACK[0]}", *TRACEBACK[1:]),
    ]
    assert [t.whole for t in page.tracebacks] == [True, True, True]
