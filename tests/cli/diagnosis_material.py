"""A job's traces, as a supervisor leaves them, and a Slurm of scripts that knows the job."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from click.testing import CliRunner, Result

from slurm_robust.cli.commands.diagnose import command
from slurm_robust.core.model import Conclusion, Incident, Plan, Road, Signal, SignalKind, Suspect, Verdict
from slurm_robust.localize.circumstances import encode
from slurm_robust.localize.evidence import Evidence, RankExit
from slurm_robust.supervise.incident.incident_log import to_json

AT_S = 1795228470.0
CUDA = "RuntimeError: CUDA error: unspecified launch failure"
LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."

_SQUEUE = """
import os, sys
job = {job!r}
asked = sys.argv[sys.argv.index("-j") + 1]
if asked != job["jobid"]:
    sys.exit("slurm_load_jobs error: Invalid job id specified")
if "-o" in sys.argv:
    print(job["jobid"], "(null)")
else:
    for field in os.environ["SQUEUE_FORMAT2"].split(","):
        name, _, separator = field.partition(":")
        sys.stdout.write(job.get(name, "0") + separator)
    print()
"""


def slurm_of_scripts(folder: Path, job: Mapping[str, str]) -> Path:
    """A robust.yaml for a Slurm that knows this one job (by squeue's fields), and keeps no accounting."""
    bin_dir = folder / "bin"
    bin_dir.mkdir()
    fields = {"state": "FAILED", "username": "ann", "nodelist": "n[1-2]", "batchflag": "1", "requeue": "1", **job}
    programs = {"squeue": _SQUEUE.format(job=fields), "sacct": "import sys; sys.exit('accounting storage is disabled')"}
    for name, code in programs.items():
        (bin_dir / name).write_text(f"#!{sys.executable}\n{code}")
        (bin_dir / name).chmod(0o755)
    path = folder / "robust.yaml"
    path.write_text(json.dumps({"slurm": {"bin_dir": str(bin_dir)}, "daemon": {"state_dir": str(folder / "state")}}))
    return path


def save_incident(
    job_folder: Path,
    lines: Sequence[str],
    *,
    name: str = "1234-r0-1795228470",
    faults: Mapping[str, str] | None = None,
    cause: Mapping[str, str] | None = None,
    helped: bool = False,
    ends: tuple[RankExit, ...] = (),
    raised: Mapping[int, tuple[str, ...]] | None = None,
) -> Path:
    """An incident in which rank 3 on n2 ended first, with these last lines; `faults` is what nodes reported.

    `ends` replaces those ends; `raised` has the lines of ranks that had not ended yet.
    """
    folder = job_folder / name
    folder.mkdir(parents=True)
    ends = ends or (RankExit(3, "n2", AT_S, 1, 0, tuple(lines)), RankExit(0, "n1", AT_S + 2, 1, 0, ("exit barrier",)))
    signals = tuple(Signal(SignalKind.NODE_FAULT, AT_S - 20, "kernel", d, n) for n, d in (faults or {}).items())
    evidence = Evidence(4, {0: "n1", 1: "n1", 2: "n2", 3: "n2"}, exits=ends, node_signals=signals, raised=raised or {})
    (folder / "circumstances.json").write_bytes(encode(evidence, (), {}))
    suspect = Suspect("n2", (3,), 0.7, "rank 3 on n2 ended first")
    times = {"fault": AT_S, **({"first_new_step": AT_S + 90} if helped else {})}
    incident = Incident(
        name,
        "1234",
        "a",
        AT_S,
        times=times,
        verdict=Verdict(Conclusion.CULPRIT, "rank 3 on n2 ended first", (suspect,)),
        plan=Plan(Road.SPARE_IN_ALLOCATION, "n2 is at fault", ("n2",)),
        outcome="training went on" if helped else "",
    )
    page = json.loads(to_json(incident))
    (folder / "incident.json").write_text(json.dumps({**page, **({"cause": cause} if cause else {})}))
    return folder


def run(*words: object) -> Result:
    """`srobust diagnose WORDS`."""
    return CliRunner().invoke(command, [str(word) for word in words])
