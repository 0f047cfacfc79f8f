"""How long it takes to compress a job's output, how much memory, and whether what matters is on the page.

    python benchmarks/compress_log.py [--quick] [--json] [--megabytes 1000] [--kinds mixed,words,tracebacks]

A log is made in a temporary folder: steps, bars that are redrawn, chatter and warnings of labelled ranks, with needles
(rare lines and tracebacks of single ranks). It is read in a process of its own, after `cat` and `wc -l` have read the
same file. `mixed` is a usual log; `words` and `tracebacks` are as bad as can be: each line, or traceback,
is one that never came before.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lib
from rich.console import Console

from slurm_robust.diagnose.log.compress import MEMORY_BYTES, compress
from slurm_robust.diagnose.log.interest import USUAL_WORDS, Interest
from slurm_robust.diagnose.log.lines import LogFile
from slurm_robust.diagnose.log.render import DEFAULT_BYTES, render

FULL_MB, QUICK_MB = 1000, 50
RANKS = 64
STEPS_A_BLOCK = 200
NEEDLES = (
    "NVRM: Xid (PCI:0000:4e:00): 79, pid=4121, name=python, GPU has fallen off the bus.",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=4.0. Some of the step tasks have been OOM Killed.",
    "OSError: [Errno 116] Stale file handle: '/shared/data/index.json'",
    "[rank17]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited",
    "srun: error: node42: task 17: Segmentation fault (core dumped)",
)
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/opt/project/train.py", line {n}, in <module>',
    "    main(config)",
    '  File "/opt/project/train.py", line 204, in step',
    "    loss.backward()",
    "RuntimeError: CUDA error: an illegal memory access was encountered, needle {name}",
)
RULE_WORDS = (b"nccl error", b"illegal memory access")
"""What rules look for: in a flood of other errors, only a word of its own keeps a line."""
NAMES = ("alpha", "beta", "gamma")
"""Digits alone would make them one template."""
NOTE = "One process on one core. The log is invented. Seconds are of the processor, but for cat and wc."


def _mixed_block(dice: random.Random) -> bytes:
    """Some hundred steps of a chatty training; its numbers of steps are placeholders of one width."""
    lines = []
    for step in range(STEPS_A_BLOCK):
        at = f"2024-05-01 12:{step // 60 % 60:02}:{step % 60:02},{dice.randrange(1000):03}"
        rank = dice.randrange(RANKS)
        lines += [
            (
                f"[rank0]: {at} INFO train.py step @@@@{step:03} loss {dice.random() * 3:.4f} "
                f"lr {dice.random() * 1e-4:.3e} grad_norm {dice.random() * 9:.3f} tokens/s {dice.randrange(99999)}\n"
            ),
            *(
                f"[rank{dice.randrange(RANKS)}]: {at} DEBUG loader.py:88 fetched {dice.randrange(999)} items in "
                f"{dice.random():.3f} s from /shared/data/part-{dice.randrange(99999):05}/items.tar\n"
                for _ in range(4)
            ),
            (
                f"[rank{rank}]: {at} DEBUG allocator: {dice.randrange(9)} retries, {dice.randrange(80000)} MiB, "
                f"buffer 0x{dice.getrandbits(40):010x}\n"
            ),
            (
                f"\r {step // 2:3}%|{'█' * (step // 20)}{' ' * (10 - step // 20)}| {step}/200 "
                f"[00:{step % 60:02}<00:10, {dice.random() * 10:.2f}it/s, loss={dice.random():.3f}]"
            ),
            "\n" if step % 20 == 0 else "",
            f"[rank{rank}]: /opt/env/torch/warn.py:12: UserWarning: deprecated call {step}\n" if step % 50 == 0 else "",
        ]
    return "".join(lines).encode()


def _tracebacks_block(dice: random.Random) -> bytes:
    """Ranks that each print a traceback whose exception nobody else has: 10^6 of them are 260 MB."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    lines = []
    for _ in range(300):
        label, word = f"[rank{dice.randrange(RANKS)}]: ", "".join(dice.choices(letters, k=12))
        lines += [f"{label}{line}\n" for line in (*TRACEBACK[:-1], f"ValueError: no {word} in @@@@")]
    return "".join(lines).format(n=7).encode()


def _words_block(dice: random.Random) -> bytes:
    """Lines of words that nobody has seen before."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(dice.choices(letters, k=dice.randrange(3, 10))) for _ in range(20_000)]
    return "".join(f"sample @@@@: {' '.join(dice.choices(words, k=12))}\n" for _ in range(500)).encode()


def _traceback(number: int) -> list[str]:
    return [line.format(n=number, name=NAMES[number]) for line in TRACEBACK]


KINDS = {"mixed": _mixed_block, "words": _words_block, "tracebacks": _tracebacks_block}


def make(path: Path, size_bytes: int, kind: str) -> list[str]:
    """Write a log of at least this size; returns the needles that are in it."""
    dice = random.Random(7)
    block = KINDS[kind](dice)
    blocks = size_bytes // len(block) + 1
    needles = [*NEEDLES, *(TRACEBACK[-1].format(name=name) for name in NAMES)]
    at = {blocks * (n + 1) // (len(needles) + 2): n for n in range(len(needles))}
    letters = "bcdfghjklm"
    with path.open("wb", buffering=1 << 20) as file:
        for number in range(blocks):
            mark = f"{number:04}"
            if kind != "mixed":  # digits would be masked
                mark = "".join(letters[int(c)] for c in mark)
            file.write(block.replace(b"@@@@", mark.encode()))
            if number in at:
                n = at[number]
                file.write(b"\n")
                lines = [NEEDLES[n]] if n < len(NEEDLES) else _traceback(n - len(NEEDLES))
                label = "" if n < len(NEEDLES) else f"[rank{n}]: "
                file.write("".join(f"{label}{line}\n" for line in lines).encode())
    return needles


def measure(path: Path, needles: Sequence[str], rules: int) -> dict[str, Any]:
    """Compress one file, in this process. `rules`: so many words are looked for besides the usual ones."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    words = (*USUAL_WORDS, *RULE_WORDS, *(b"an error text of rule %d" % n for n in range(rules)))
    started, began = time.process_time(), time.monotonic()
    page = compress([LogFile(path)], Interest(words=words))
    read_s, wall_s = time.process_time() - started, time.monotonic() - began
    started = time.process_time()
    text = render(page, DEFAULT_BYTES)
    seen = [line for trace in page.tracebacks for line in trace.lines] + [entry.line for entry in page.entries]
    bare = [needle.split("]: ")[-1] for needle in needles]
    return {
        "seconds": round(read_s, 2),
        "wall_s": round(wall_s, 2),
        "render_s": round(time.process_time() - started, 3),
        "lines": page.lines,
        "ns_a_line": round(read_s / page.lines * 1e9),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "grown_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10,
        "entries": len(page.entries),
        "tracebacks": len(page.tracebacks),
        "routine_lines": page.routine_lines,
        "dropped_lines": page.dropped_lines,
        "page_bytes": len(text.encode()),
        "needles": len(bare),
        "needles_found": sum(any(needle in line for line in seen) for needle in bare),
        "needles_printed": sum(needle in text for needle in bare),
    }


def _timed(command: Sequence[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def one(kind: str, size_bytes: int, folder: Path, rules: int) -> dict[str, Any]:
    """Make a log, read it with other programs, and compress it in a process of its own."""
    path = folder / f"{kind}.log"
    needles = make(path, size_bytes, kind)
    cat_s, wc_s = min(_timed(["cat", str(path)]) for _ in range(2)), _timed(["wc", "-l", str(path)])
    again = [sys.executable, __file__, "--here", str(path), "--rules", str(rules)]
    done = subprocess.run(again, check=True, capture_output=True, text=True, input=json.dumps(needles))
    found: dict[str, Any] = json.loads(done.stdout)
    megabytes = path.stat().st_size / 1e6
    path.unlink()
    return {
        "kind": kind,
        "megabytes": round(megabytes, 1),
        **found,
        "mb_per_s": round(megabytes / max(found["seconds"], 0.001), 1),
        "s_a_gb": round(found["seconds"] * 1000 / megabytes, 2),
        "cat_s": round(cat_s, 3),
        "wc_s": round(wc_s, 3),
        "times_wc": round(found["wall_s"] / max(wc_s, 1e-6), 1),
    }


def targets(found: Sequence[dict[str, Any]]) -> list[lib.Target]:
    """1 GB in half a minute on one core, in bounded memory, with nothing lost."""
    mixed = next((f for f in found if f["kind"] == "mixed"), None)
    return [
        lib.Target("1 GB of a usual log", 30, "s", None if mixed is None else mixed["s_a_gb"]),
        lib.Target("memory above the interpreter's", MEMORY_BYTES >> 20, "MiB", max(f["grown_mib"] for f in found)),
        lib.Target("needles lost", 0, "", sum(f["needles"] - f["needles_found"] for f in found)),
        lib.Target("the printed page", DEFAULT_BYTES, "bytes", max(f["page_bytes"] for f in found)),
    ]


COLUMNS = {
    "log": "kind",
    "MB": "megabytes",
    "s": "seconds",
    "MB/s": "mb_per_s",
    "ns a line": "ns_a_line",
    "cat s": "cat_s",
    "wc s": "wc_s",
    "× wc": "times_wc",
    "peak MiB": "peak_mib",
    "entries": "entries",
    "page bytes": "page_bytes",
    "needles": "needles",
    "found": "needles_found",
    "printed": "needles_printed",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each kind of log, and show the figures as a table or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, help=f"size of each log (default: {FULL_MB})")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which logs (default: %(default)s)")
    parser.add_argument("--rules", type=int, default=200, help="words that are looked for, besides the usual ones")
    parser.add_argument("--here", type=Path, help="compress this file in this process; needles come as JSON on stdin")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MB} MB")
    parser.add_argument("--json", action="store_true", help="figures for tools")
    options = parser.parse_args(argv)
    if options.here is not None:
        print(json.dumps(measure(options.here, json.load(sys.stdin), options.rules)))
        return 0
    kinds = options.kinds.split(",")
    if wrong := sorted(set(kinds) - set(KINDS)):
        parser.error(f"{', '.join(wrong)}: there are {', '.join(KINDS)}")
    size_bytes = (options.megabytes or (QUICK_MB if options.quick else FULL_MB)) * 1_000_000
    report = lib.Report("compress_log", options.quick, notes=[NOTE], machine=lib.machine())
    with tempfile.TemporaryDirectory(prefix="compress-log-") as folder:
        found = [one(kind, size_bytes, Path(folder), options.rules) for kind in kinds]
    report.figures = {"logs": found}
    report.targets = targets(found)
    if options.json:
        print(report.to_json())
        return 0
    console = Console()
    lib.show_table(console, "Logs", list(COLUMNS), [[f[key] for key in COLUMNS.values()] for f in found])
    report.show(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
