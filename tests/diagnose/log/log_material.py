"""What the tests of diagnose/log share: files made of lines, and the lines of usual trainings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from slurm_robust.diagnose.log.compress import compress
from slurm_robust.diagnose.log.interest import Interest
from slurm_robust.diagnose.log.lines import LogFile
from slurm_robust.diagnose.log.page import Page, PageEntry

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/home/alice/train.py", line 12, in <module>',
    "    main()",
    '  File "/home/alice/train.py", line 8, in main',
    "    loss.backward()",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
)


def written(folder: Path, lines: Iterable[str] | bytes, name: str = "job.out") -> Path:
    """A file of these lines, or bytes."""
    path = folder / name
    path.write_bytes(lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode())
    return path


def page_of(
    folder: Path,
    lines: Iterable[str] | bytes,
    interest: Interest | None = None,
    step_pattern: re.Pattern[str] | None = None,
) -> Page:
    """The page of one file of these lines."""
    return compress([LogFile(written(folder, lines))], interest, step_pattern)


def healthy(steps: int, begin: int = 1) -> list[str]:
    """Lines of healthy steps, with a chatty program."""
    return [
        text
        for step in range(begin, begin + steps)
        for text in (
            f"2024-05-01 12:{step // 60 % 60:02}:{step % 60:02} step {step} loss {3 / step:.4f}",
            f"fetched item {step * 7} in 0.{step:03} s",
            f"allocator: {step % 3} retries, address 0x{step:08x}",
        )
    ]


def entry(page: Page, part: str) -> PageEntry:
    """The one entry whose first line contains this."""
    found = [e for e in page.entries if part in e.line]
    assert len(found) == 1, f"{part}: {[e.line for e in page.entries]}"
    return found[0]


def shown(page: Page, part: str) -> bool:
    """Whether an entry's first line, or a traceback, contains this."""
    lines = [e.line for e in page.entries] + [line for t in page.tracebacks for line in t.lines]
    return any(part in line for line in lines)
