"""What verifying, sealing and choosing checkpoints cost, beside reading the same files with cat and one stat a file.

Everything is read from the page cache, where a checkpoint that was just written is; for the part that says otherwise
the kernel is asked to drop the file first, which measures the disk more than anybody's program. What is compared is run
in turn, round after round, so that whatever else the machine does meets all of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib import ROOT

from slurm_robust import checkpoint

ONE, LOOKUP = "one file", "lookup"
CAT, VERIFY, LATEST = "cat FILE >/dev/null", "verify, sealed", "latest, one checkpoint of 10,000 files"
FILES = 10_000
"""As many as the design's target for a lookup speaks of."""
COMMAND = [sys.executable, "-c", "from slurm_robust.cli.main import main; main()", "ckpt"]


def make_file(path: Path, size_bytes: int) -> None:
    """One `torch.save` file of about this size, without torch: the same zip of stored records."""
    import torch  # noqa: PLC0415 (only here)

    part = torch.frombuffer(bytearray(os.urandom(1 << 20)), dtype=torch.float32)
    torch.save({"step": 7, "w": part.repeat(max(1, size_bytes >> 20))}, path)


def make_folder(path: Path, files: int, file_bytes: int) -> None:
    """A checkpoint of plain files."""
    path.mkdir()
    block = os.urandom(min(file_bytes, 1 << 20))
    for n in range(files):
        with (path / f"shard-{n:05d}").open("wb") as file:
            for _ in range(max(1, file_bytes >> 20)):
                file.write(block)


def forget(path: Path) -> None:
    """Have the kernel drop the file's pages."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(*argv: object) -> None:
    """Run a command, which has to succeed."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([str(arg) for arg in argv], stdout=subprocess.DEVNULL, env=env, check=True)


def check(report: checkpoint.Report, *, sealed: bool) -> None:
    """Measure nothing that did not do what it should."""
    assert (report.verified, report.sealed) == (True, sealed), report


def times(
    cases: dict[str, Callable[[], Any]], rounds: int, before: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Seconds of each, round after round; a first round does not count."""
    took: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(rounds + 1):
        for name, do in cases.items():
            before()
            began_s = time.perf_counter()
            do()
            if round_:
                took[name].append(time.perf_counter() - began_s)
    return took


def reading(folder: Path, size_bytes: int, rounds: int, *, cold: bool) -> dict[str, list[float]]:
    """One file: cat, and whatever of ours reads all of it."""
    plain, sealed = folder / "plain-step-7.pt", folder / "step-7.pt"
    make_file(plain, size_bytes)
    os.link(plain, sealed)
    checkpoint.seal(sealed)
    cases: dict[str, Callable[[], Any]] = {
        CAT: lambda: run("cat", sealed),
        VERIFY: lambda: check(checkpoint.verify(sealed), sealed=True),
        "verify, no seal (CRC-32)": lambda: check(checkpoint.verify(plain), sealed=False),
        "seal": lambda: checkpoint.seal(sealed),
        "srobust ckpt verify, sealed": lambda: run(*COMMAND, "verify", sealed),
    }
    if cold:
        cases = {name: cases[name] for name in (CAT, VERIFY)}
    took = times(cases, rounds, (lambda: forget(sealed)) if cold else (lambda: None))
    for path in (plain, sealed):
        path.unlink()
    return took


def several(folder: Path, size_bytes: int, rounds: int) -> dict[str, list[float]]:
    """The same bytes in eight files, which are read several at once."""
    path = folder / "step-8"
    make_folder(path, 8, size_bytes // 8)
    checkpoint.seal(path)
    took = times(
        {
            "cat DIR/* >/dev/null": lambda: run("cat", *sorted(path.glob("shard-*"))),
            VERIFY: lambda: check(checkpoint.verify(path), sealed=True),
        },
        rounds,
    )
    for one in path.iterdir():
        one.unlink()
    return took


def lookup(folder: Path, rounds: int) -> dict[str, list[float]]:
    """10,000 files, in one checkpoint and in a hundred: choosing looks at sizes and times only."""
    one, many = folder / "one", folder / "many"
    one.mkdir()
    many.mkdir()
    make_folder(one / "step-1", FILES, 1)
    checkpoint.seal(one / "step-1")
    for n in range(FILES // 100):
        make_folder(many / f"step-{n}", 100, 1)
        checkpoint.seal(many / f"step-{n}")

    def stat_all(path: Path) -> None:
        for name in sorted(os.listdir(path)):  # noqa: PTH208 (the least that a lookup could do)
            os.stat(path / name)  # noqa: PTH116 (the same)

    return times(
        {
            "one stat a file": lambda: stat_all(one / "step-1"),
            LATEST: lambda: checkpoint.latest(one),
            "latest, 100 checkpoints of 100 files": lambda: checkpoint.latest(many),
            "srobust ckpt latest, one of 10,000 files": lambda: run(*COMMAND, "latest", one),
        },
        rounds,
    )


def measure(gb: float, rounds: int, where: Path, say: Callable[[str], None]) -> dict[str, dict[str, list[float]]]:
    """Seconds of everything, by part."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="srobust-verify-", dir=where) as name:
        folder = Path(name)
        parts: dict[str, Callable[[], dict[str, list[float]]]] = {
            ONE: lambda: reading(folder, int(gb * 1e9), rounds, cold=False),
            "one file, not in memory": lambda: reading(folder, int(gb * 2.5e8), min(rounds, 3), cold=True),
            "eight files": lambda: several(folder, int(gb * 1e9), rounds),
            LOOKUP: lambda: lookup(folder, rounds),
        }
        for part, do in parts.items():
            say(f"verify, {gb:g} GB: {part}")
            found[part] = do()
    return found
