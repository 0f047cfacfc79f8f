"""A folder of flight-recorder dumps, as PyTorch leaves it: a prefix of the site's choice, and the rank."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_robust.localize.recorder.dump import MAX_DUMP_BYTES, RankDump, RecorderDumpError, read_dump

MAX_FILES = 131072
_RANK = re.compile(r"(?:^|[^0-9])(\d{1,7})(?:\.(?:json|pkl|pickle|pt))?$")


@dataclass(frozen=True)
class SavedDumps:
    """A folder's dumps by rank, and a sentence for each file that could not be used."""

    dumps: Mapping[int, RankDump]
    problems: tuple[str, ...] = ()


def read_dumps(folder: Path) -> SavedDumps:
    """Read all dumps of one incident.

    The rank is the number that a file's name ends with (`nccl_trace_rank_12`, `_dump_12`, `12.json`).

    Raises:
        DumpError: no such folder, or nothing usable in it.
    """
    if not folder.is_dir():
        raise RecorderDumpError(f"{folder}: no such folder")
    dumps: dict[int, RankDump] = {}
    problems: list[str] = []
    for path in sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))[:MAX_FILES]:
        match = _RANK.search(path.name)
        if match is None:
            continue
        rank = int(match[1])
        try:
            with path.open("rb") as stream:
                found = read_dump(stream.read(MAX_DUMP_BYTES + 1), rank)
        except (RecorderDumpError, OSError) as error:
            problems.append(f"{path}: {error}")
            continue
        if rank in dumps:
            problems.append(f"{path}: another dump of rank {rank}; the one that goes on longer is used")
            found = max(found, dumps[rank], key=lambda d: d.last_at_s)
        dumps[rank] = found
    if not dumps:
        why = problems[0] if problems else "no file whose name ends with a rank"
        raise RecorderDumpError(f"{folder}: no flight-recorder dump: {why}")
    return SavedDumps(dumps, tuple(problems))
