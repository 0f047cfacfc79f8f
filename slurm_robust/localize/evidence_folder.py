"""Reads a folder of saved evidence: archives of nodes, and raw py-spy dumps, one for each rank.

A bad file does not keep other files from being used: it becomes a sentence beside the evidence.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_robust.core.text import NODE_NAME
from slurm_robust.localize import circumstances, ras
from slurm_robust.localize.circumstances import CIRCUMSTANCES_FILE, Circumstances, CircumstancesError
from slurm_robust.localize.evidence import CapturedProcess, Evidence, RankCapture
from slurm_robust.localize.layout import LayoutError, parse
from slurm_robust.localize.ranks import name, strays
from slurm_robust.localize.ras import RasView
from slurm_robust.localize.recorder.dump import DumpPairs
from slurm_robust.localize.stacks import pyspy
from slurm_robust.localize.stacks.archive import MAX_FILE_BYTES, ArchiveError, NodeArchive, decode, rounds
from slurm_robust.wire import plain_file

MAX_FILES = 65536

_RANK_FILE = re.compile(r"rank-(\d{1,7})\.(json|txt)")
LAYOUT_FILE = "layout.txt"
"""File with the layout that was known when the incident was judged, in the form that `--layout` takes."""
_RAS_FILE = re.compile(r"ras-\d{1,7}\.json")
_HEADER = re.compile(r"#\s*(node|state|at_s)\s*[:=]\s*(\S{1,63})\s*")


@dataclass(frozen=True)
class Saved:
    """A folder's evidence, and a sentence for each file or part of it that could not be used."""

    evidence: Evidence
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Files:
    """The files of a folder, by incident."""

    archives: dict[Path, list[NodeArchive]]
    answers: dict[Path, dict[str, RasView]]
    circumstances: dict[Path, Circumstances]
    problems: list[str]

    @property
    def incidents(self) -> set[Path]:
        """The incidents with enough evidence to be judged."""
        return set(self.archives) | {path for path, known in self.circumstances.items() if known.exits or known.signals}

    def last_at_s(self, incident: Path) -> float:
        """Return the time of the newest evidence of an incident; 0 if there is none."""
        known = self.circumstances.get(incident)
        ends = [] if known is None else [e.at_s for e in known.exits] + [r.at_s for r in known.rounds]
        return max([archive.at_s for archive in self.archives.get(incident, ())] + ends, default=0.0)


def read_folder(folder: Path, world_size: int | None = None) -> Saved:
    """Read what a folder holds: archives (`*.json.gz`), and `rank-<r>.json` or `rank-<r>.txt` dumps of py-spy.

    Beside the archives, read answers of NCCL's RAS service (`ras-<n>.json`), the layout (`layout.txt`) and
    `circumstances.json`, with what else the supervisor knew: missing nodes, ends of ranks, signals.

    Raw dumps are one round of their own. A text dump may begin with `# node: n1` and `# state: T`; a JSON dump may be
    `{"node": "n1", "state": "T", "dump": […]}`. A dump without a node belongs to the node after which its folder
    `<node>/` is named.

    Raises:
        ArchiveError: no such folder, or nothing usable in it.
    """
    if not folder.is_dir():
        raise ArchiveError(f"{folder}: no such folder")
    files = _read_all(folder)
    problems = files.problems
    if not files.incidents:
        why = problems[0] if problems else "no *.json.gz and no rank-<r>.json or rank-<r>.txt in it"
        where = "where they are, type: srobust localize --stacks FOLDER"
        raise ArchiveError(f"{folder}: nothing to localise from: {why}; {where}")
    last = max(files.incidents, key=files.last_at_s)
    if len(files.incidents) > 1:
        problems.append(f"{folder}: {len(files.incidents)} incidents are in it; the last one, {last}, is judged")
    known, answers = files.circumstances.get(last), files.answers.get(last, {})
    believed = max(world_size or 0, known.world_size if known is not None else 0)
    archives, stray = _without_strays(files.archives.get(last, []), believed)
    problems.extend(stray)
    seen, clashes = rounds(archives)
    rank_nodes = {rank.rank: rank.node for capture in seen.values() for rank in capture.ranks}
    size = max(world_size or 0, max(rank_nodes, default=-1) + 1)
    recorder = DumpPairs()
    for archive in sorted(archives, key=lambda a: a.round):
        recorder.add(archive.recorder)
        problems.extend(archive.problems)
    if known is not None:
        answers = {name: replace(view, at_s=known.ras_at_s.get(name, view.at_s)) for name, view in answers.items()}
    views = tuple(sorted(answers.values(), key=lambda view: view.at_s))
    captures = tuple(seen.values())
    evidence = Evidence(size, rank_nodes, captures, recorder=recorder.latest, ras=views)
    evidence = replace(evidence, recorder_before=recorder.before)
    if known is not None:
        evidence = circumstances.with_circumstances(evidence, seen, known)
    return Saved(_laid_out(evidence, last / LAYOUT_FILE, problems), (*problems, *clashes))


def _read_all(folder: Path) -> _Files:
    files = _Files({}, {}, {}, [])
    for path in sorted(path for path in folder.rglob("*") if path.is_file())[:MAX_FILES]:
        read = _one(path, folder)
        if isinstance(read, NodeArchive):
            files.archives.setdefault(_incident(path, folder), []).append(read)
        elif isinstance(read, RasView):
            files.answers.setdefault(path.parent, {})[path.name] = read
        elif isinstance(read, Circumstances):
            files.circumstances[path.parent] = read
        elif read:
            files.problems.append(f"{path}: {read}")
    return files


def _laid_out(evidence: Evidence, path: Path, problems: list[str]) -> Evidence:
    """Return the evidence with the layout that was known, if it was kept."""
    if not path.is_file():
        return evidence
    try:
        sizes, order = parse(_read(path).decode("utf-8", "replace").strip())
    except (ArchiveError, LayoutError) as error:
        problems.append(f"{path}: {error}")
        return evidence
    return replace(evidence, layout=sizes, layout_order=order)


def _without_strays(archives: list[NodeArchive], world_size: int) -> tuple[list[NodeArchive], list[str]]:
    """Return the archives without ranks that cannot belong to this job, and a sentence for each such rank."""
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
    """Return the incident's folder to which a file belongs: a supervisor keeps rounds in `<incident>/stacks-<n>/`."""
    return path.parent.parent if path.parent.name.startswith("stacks-") and path.parent != folder else folder


def _one(path: Path, folder: Path) -> NodeArchive | RasView | Circumstances | str:
    """Return what one file holds, or why it cannot be used; an empty text for files of other kinds."""
    match = _RANK_FILE.fullmatch(path.name)
    try:
        if match is not None:
            return _raw_dump(path, int(match[1]), folder)
        if _RAS_FILE.fullmatch(path.name):
            return ras.read(_read(path))
        if path.name == CIRCUMSTANCES_FILE:
            return circumstances.decode(_read(path))
        return decode(_read(path)) if path.name.endswith(".json.gz") else ""
    except (ArchiveError, CircumstancesError, pyspy.PySpyDumpError, ras.RasError) as error:
        return str(error)
    except (ValueError, OverflowError, RecursionError) as error:
        # A garbled file may raise any of these errors: the other files are judged all the same.
        return f"cannot be read ({type(error).__name__}: {str(error)[:80]})"


def _read(path: Path) -> bytes:
    try:
        data = plain_file.read(path, MAX_FILE_BYTES + 1)
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
