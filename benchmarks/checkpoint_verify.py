"""What verifying, sealing and choosing checkpoints cost, beside reading the same files with cat and one stat a file.

    python benchmarks/checkpoint_verify.py      # about a minute; 4 GB in the folder of --dir

Everything is read from the page cache, where a checkpoint that was just written is; `--cold` asks the kernel to drop
the file first, and then measures the disk more than anybody's program. What is compared is run in turn, round after
round, so that whatever else the machine does meets all of it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib import ROOT, Report, Target, machine, show_table, spread
from rich.console import Console

from slurm_robust import checkpoint

CAT_SHARE, LOOKUP_S = 0.8, 1.0
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
        "cat FILE >/dev/null": lambda: run("cat", sealed),
        "verify, sealed": lambda: check(checkpoint.verify(sealed), sealed=True),
        "verify, no seal (CRC-32)": lambda: check(checkpoint.verify(plain), sealed=False),
        "seal": lambda: checkpoint.seal(sealed),
        "srobust ckpt verify, sealed": lambda: run(*COMMAND, "verify", sealed),
    }
    if cold:
        cases = {name: cases[name] for name in ("cat FILE >/dev/null", "verify, sealed")}
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
            "verify, sealed": lambda: check(checkpoint.verify(path), sealed=True),
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
            "latest, one checkpoint of 10,000 files": lambda: checkpoint.latest(one),
            "latest, 100 checkpoints of 100 files": lambda: checkpoint.latest(many),
            "srobust ckpt latest, one of 10,000 files": lambda: run(*COMMAND, "latest", one),
        },
        rounds,
    )


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="one object of named figures")
    parser.add_argument("--quick", action="store_true", help="small files, two rounds: only shows that it works")
    parser.add_argument("--gb", type=float, default=2.0, help="size of what is read")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where the files are made")
    args = parser.parse_args()
    rounds, gb = (2, 0.05) if args.quick else (args.rounds, args.gb)
    report = Report("checkpoint_verify", args.quick, machine=machine(), notes=[])
    with tempfile.TemporaryDirectory(prefix="srobust-verify-", dir=args.dir) as name:
        folder = Path(name)
        parts = {
            "one file": reading(folder, int(gb * 1e9), rounds, cold=False),
            "one file, not in memory": reading(folder, int(gb * 2.5e8), min(rounds, 3), cold=True),
            "eight files": several(folder, int(gb * 1e9), rounds),
            "lookup": lookup(folder, rounds),
        }
    report.figures["size_gb"] = gb
    medians: dict[tuple[str, str], float] = {}
    for part, took in parts.items():
        found = {what: spread(values) for what, values in took.items()}
        report.figures[part] = {f"{what}, s": told for what, told in found.items()}
        medians |= {(part, what): told.median for what, told in found.items() if told}
    cat = medians["one file", "cat FILE >/dev/null"]
    ratio = {what: medians["one file", what] / cat for what in parts["one file"]}
    report.figures["seconds of cat's, one file"] = {what: round(value, 3) for what, value in ratio.items()}
    report.targets = [
        Target("verify, sealed: of what cat takes", 1 / CAT_SHARE, "×", ratio["verify, sealed"]),
        Target("lookup among 10,000 files", LOOKUP_S, "s", medians["lookup", "latest, one checkpoint of 10,000 files"]),
    ]
    report.notes.append(f"files of {gb:g} GB on {args.dir}; in memory but for the part that says otherwise")
    report.notes.append("srobust ckpt: with the start of Python; cat: with its own")
    if args.json:
        print(report.to_json())
        return
    console = Console()
    report.show(console)
    for part, took in parts.items():
        first = medians[part, next(iter(took))]
        rows = [(what, str(spread(values)), f"{medians[part, what] / first:.2f}") for what, values in took.items()]
        show_table(console, f"{part}: seconds, median (least – most)", ("what", "s", "× the first"), rows)


if __name__ == "__main__":
    main()
