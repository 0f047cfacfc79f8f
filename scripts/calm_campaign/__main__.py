"""Run healthy but strange programs under srobust, and say which of them were harmed.

Each program of scripts/calm_programs is run three times as a batch job on a devcluster with the daemon in `mode: act`:
under plain `srun`, under `srobust run`, and under `sbatch --robust`. Nothing is wrong with any of them. So the
supervised runs must end as the plain one does: same exit code, same output, no second start, no requeue, no test run
between, and all nodes in service. A run that was suspected or captured, and otherwise left alone, is called announced.

    scripts/calm                          all programs, in real time, with default settings: about 40 minutes
    scripts/calm --list                   their names and what they do
    scripts/calm --only one-rank waits    some programs, or all of a kind
    scripts/calm --scale 0.1              all times divided by ten, and the limits of `supervise` too
    scripts/calm --load 10                beside ten busy loops
    scripts/calm --json now.json          also write the results; then, without running anything:
    scripts/calm --from now.json --before old.json --table docs/trials.md

Exit code 0: nothing was harmed; 1: something was; 64: the command is wrong. The folder --out keeps each run's script,
output and story.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from calm_campaign import Campaign, Limits, counted, harmed
from calm_catalogue import PROGRAMS
from calm_load import busy
from calm_rules import PLAIN, WAYS
from calm_table import BEGIN, END, drawn, read
from trial_table import fill

_interrupted: list[int] = []


def main() -> int:
    """Run, list, or write the table; the exit code."""
    args = _arguments()
    programs = [p for p in PROGRAMS.values() if not args.only or {p.name, p.kind} & set(args.only)]
    if unknown := set(args.only) - {word for p in PROGRAMS.values() for word in (p.name, p.kind)}:
        print(f"no such program or kind: {', '.join(sorted(unknown))}; see scripts/calm --list", file=sys.stderr)
        return 64
    if args.list:
        for program in programs:
            print(f"{program.kind:10} {program.name:36} {program.what}")
        return 0
    if args.table:
        table = drawn(PROGRAMS.values(), read(args.results), read(args.before))
        args.table.write_text(fill(args.table.read_text(), table, BEGIN, END))
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: _interrupted.append(received))
    able = []
    for program in programs:
        if program.missing or program.least_scale > args.scale:
            why = program.missing or f"it needs --scale {program.least_scale:g}: Slurm's time limits are minutes"
            print(f"{program.name} is left out: {why}", flush=True)
        else:
            able.append(program)
    return _run(able, args)


def _run(programs: list[Any], args: argparse.Namespace) -> int:
    out = args.out or Path(tempfile.mkdtemp(prefix="srobust-calm-out-"))
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o755)
    print(f"{len(programs)} programs in three ways; scripts, outputs and stories are kept in {out}", flush=True)
    begun_s = time.monotonic()
    limits = Limits(args.nodes, args.at_once, args.scale)
    cells = [(program, way) for program in programs for way in WAYS if way == PLAIN or not args.plain]
    campaign = Campaign(cells, out.resolve(), limits)
    with busy(args.load):
        campaign.go(lambda line: print(line, flush=True), lambda: bool(_interrupted))
    if args.json:
        about = {"scale": args.scale, "load": args.load, "took_s": round(time.monotonic() - begun_s)}
        args.json.write_text(json.dumps({**about, "runs": campaign.results}, indent=1) + "\n")
    bad = harmed(campaign.results)
    minutes = (time.monotonic() - begun_s) / 60
    print(f"{len(programs)} programs, {minutes:.0f} min: {counted(campaign.results)}")
    if _interrupted:
        print("interrupted: not all programs were run")
    for name in dict.fromkeys(line["program"] for line in bad):
        print(f"harmed: {name}")
    return 1 if bad or _interrupted else 0


def _arguments() -> argparse.Namespace:
    text = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="scripts/calm", description=__doc__, formatter_class=text)
    parser.add_argument("--only", nargs="*", default=[], help="only these programs or kinds")
    parser.add_argument("--list", action="store_true", help="list the programs, run none")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all times; 1 means default settings")
    parser.add_argument("--load", type=int, default=0, help="so many busy loops run beside the programs")
    parser.add_argument("--nodes", type=int, default=44, help="nodes of the devcluster; 44")
    parser.add_argument("--at-once", type=int, default=20, help="jobs at a time; 20")
    parser.add_argument("--plain", action="store_true", help="only under plain srun: try the programs themselves")
    parser.add_argument("--out", type=Path, help="folder of the results; a new one below the temporary directory")
    parser.add_argument("--json", type=Path, help="write the results into this file")
    parser.add_argument("--table", type=Path, help="write results into this document, run no program")
    parser.add_argument("--from", dest="results", type=Path, help="results for the table, as --json wrote them")
    parser.add_argument("--before", type=Path, help="older results, for the table's column 'before'")
    args = parser.parse_args()
    if args.scale <= 0 or args.load < 0 or args.nodes < 4 or (args.table and not args.results):
        parser.error("--scale is above 0, --load at least 0, --nodes at least 4, and --table needs --from")
    return args


if __name__ == "__main__":
    sys.exit(main())
