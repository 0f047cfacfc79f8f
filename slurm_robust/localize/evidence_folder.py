"""A folder of saved evidence: archives of nodes, and raw py-spy dumps, one a rank.

One bad file never spoils the others: it becomes a sentence beside the evidence.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_robust.localize import ras
from slurm_robust.localize.evidence import CapturedProcess, Evidence, RankCapture
from slurm_robust.localize.layout import LayoutError, parse
from slurm_robust.localize.ranks import name, strays
from slurm_robust.localize.ras import RasView
from slurm_robust.localize.recorder.dump import RankDump
from slurm_robust.localize.stacks import pyspy
from slurm_robust.localize.stacks.archive import MAX_FILE_BYTES, NODE_NAME, ArchiveError, NodeArchive, captures, decode

MAX_FILES = 65536

_RANK_FILE = re.compile(r"rank-(\d{1,7})\.(json|txt)")
LAYOUT_FILE = "layout.txt"
"""The layout that was known when the incident was judged, as `--layout` takes it."""
_RAS_FILE = re.compile(r"ras-\d{1,7}\.json")
_HEADER = re.compile(r"#\s*(node|state|at_s)\s*[:=]\s*(\S{1,63})\s*")


@dataclass(frozen=True)
class Saved:
    """A folder's evidence, and a sentence for each thing in it that could not be used."""

    evidence: Evidence
    problems: tuple[str, ...] = ()


def read_folder(folder: Path, world_size: int | None = None) -> Saved:
    """Read what a folder holds: archives (`*.json.gz`), and `rank-<r>.json` or `rank-<r>.txt` dumps of py-spy.

    Beside the archives, answers of NCCL's RAS service (`ras-<n>.json`) and the layout (`layout.txt`) are read.

    Raw dumps are one round of their own. A text dump may begin with `# node: n1` and `# state: T`; a JSON one may be
    `{"node": "n1", "state": "T", "dump": […]}`. Where no node is given, the folder `<node>/` that holds it names it.

    Raises:
        ArchiveError: no such folder, or nothing usable in it.
    """
    if not folder.is_dir():
        raise ArchiveError(f"{folder}: no such folder")
    paths = sorted(path for path in folder.rglob("*") if path.is_file())[:MAX_FILES]
    incidents: dict[Path, list[NodeArchive]] = {}
    answers: dict[Path, list[RasView]] = {}
    problems: list[str] = []
    for path in paths:
        read = _one(path, folder)
        if isinstance(read, NodeArchive):
            incidents.setdefault(_incident(path, folder), []).append(read)
        elif isinstance(read, RasView):
            answers.setdefault(path.parent, []).append(read)
        elif read:
            problems.append(f"{path}: {read}")
    if not incidents:
        why = problems[0] if problems else "no *.json.gz and no rank-<r>.json or rank-<r>.txt in it"
        raise ArchiveError(f"{folder}: nothing to localise from: {why}")
    last = max(incidents, key=lambda incident: max(archive.at_s for archive in incidents[incident]))
    if len(incidents) > 1:
        problems.append(f"{folder}: {len(incidents)} incidents are in it; the last one, {last}, is judged")
    archives, stray = _without_strays(incidents[last], world_size or 0)
    problems.extend(stray)
    rounds, clashes = captures(archives)
    rank_nodes = {rank.rank: rank.node for capture in rounds for rank in capture.ranks}
    known = max(rank_nodes, default=-1) + 1
    recorder: dict[int, RankDump] = {}
    for archive in sorted(archives, key=lambda a: a.round):
        recorder.update(archive.recorder)
        problems.extend(archive.problems)
    views = tuple(sorted(answers.get(last, ()), key=lambda view: view.at_s))
    evidence = Evidence(max(world_size or 0, known), rank_nodes, rounds, recorder=recorder, ras=views)
    if (last / LAYOUT_FILE).is_file():
        try:
            sizes, order = parse(_read(last / LAYOUT_FILE).decode("utf-8", "replace").strip())
            evidence = replace(evidence, layout=sizes, layout_order=order)
        except (ArchiveError, LayoutError) as error:
            problems.append(f"{last / LAYOUT_FILE}: {error}")
    return Saved(evidence, (*problems, *clashes))


def _without_strays(archives: list[NodeArchive], world_size: int) -> tuple[list[NodeArchive], list[str]]:
    """The archives without ranks that cannot belong to this job, and a sentence for those."""
    stray = set(strays((rank.rank for archive in archives for rank in archive.ranks), world_size))
    if not stray:
        return archives, []
    kept = [
        replace(
            archive,
            ranks=tuple(rank for rank in archive.ranks if rank.rank not in stray),
            recorder={rank: dump for rank, dump in archive.recorder.items() if rank not in stray},
        )
        for archive in archives
    ]
    count = len({rank.rank for archive in kept for rank in archive.ranks})
    why = f"too high a number beside {count} others (--world-size N if it is right)"
    return [archive for archive in kept if archive.ranks], [f"{name(stray)}: left out: {why}"]


def _incident(path: Path, folder: Path) -> Path:
    """The incident's folder that a file belongs to: a supervisor keeps each round in `<incident>/stacks-<round>/`."""
    return path.parent.parent if path.parent.name.startswith("stacks-") and path.parent != folder else folder


def _one(path: Path, folder: Path) -> NodeArchive | RasView | str:
    """What one file holds, or why it cannot be used; an empty text for files that are none of ours."""
    match = _RANK_FILE.fullmatch(path.name)
    try:
        if match is not None:
            return _raw_dump(path, int(match[1]), folder)
        if _RAS_FILE.fullmatch(path.name):
            return ras.read(_read(path))
        return decode(_read(path)) if path.name.endswith(".json.gz") else ""
    except (ArchiveError, pyspy.PySpyDumpError, ras.RasError) as error:
        return str(error)
    except (ValueError, OverflowError, RecursionError) as error:
        # Whatever a garbled file makes of itself: the others are judged.
        return f"cannot be read ({type(error).__name__}: {str(error)[:80]})"


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ArchiveError(f"cannot be read: {error.strerror}") from None
    if not data:
        raise ArchiveError("empty")
    return data


def _raw_dump(path: Path, rank: int, folder: Path) -> NodeArchive:
    text = _read(path).decode("utf-8", errors="replace")
    header = {"node": path.parent.name if path.parent != folder else "", "state": "", "at_s": "0"}
    if path.suffix == ".json":
        text = _json_header(text, header)
    else:
        for line in text.splitlines()[:8]:
            if match := _HEADER.fullmatch(line):
                header[match[1]] = match[2]
    node = header["node"] if NODE_NAME.match(header["node"]) else "unknown"
    processes = []
    for index, part in enumerate(_split_processes(text)):
        state = header["state"][:1] if index == 0 else ""
        processes.append(CapturedProcess(index + 1, int(index > 0), state, threads=pyspy.parse(part)))
    try:
        at_s = float(header["at_s"])
    except ValueError:
        at_s = 0.0
    captured = RankCapture(rank, node, tuple(processes))
    return NodeArchive(node, at_s if math.isfinite(at_s) else 0.0, 1, (captured,))


def _json_header(text: str, header: dict[str, str]) -> str:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"not JSON (half written?): {str(error)[:80]}") from None
    if isinstance(raw, dict) and isinstance(raw.get("dump"), list):
        header.update({key: str(raw[key])[:63] for key in header if key in raw})
        return json.dumps(raw["dump"])
    return text


def _split_processes(text: str) -> list[str]:
    if text.lstrip()[:1] in ("[", "{"):
        return [text]
    starts = [match.start() for match in re.finditer(r"^Process \d+:", text, re.MULTILINE)]
    return [text[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)] if starts else [text]
