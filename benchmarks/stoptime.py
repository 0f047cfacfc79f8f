"""How soon stop-time tests come to a verdict, and an update of a job's code to its first new step.

    python benchmarks/stoptime.py [--json] [--quick] [--repeats N] [--only verdict,update] [--nodes 2,8,32]

* `verdict`: a job whose ranks have stopped, on a devcluster of so many nodes. From the moment at which `srobust test
  --job` is typed to its verdict, by stage. Beside it, in the same run, the bare cost of one collective: `srun` of as
  many tasks that import torch, meet over gloo and make one all-reduce.
* `update`: `srobust update --when now` of a running job to its first new step, beside `scancel` and `sbatch` of the
  same job with the same edit, to its first new step. Both go on from the last checkpoint.

All nodes share the processors of one machine: 32 nodes load PyTorch 32 times on them. What a devcluster leaves out of
the second part: the queue's wait for nodes after `scancel`, a container's start, checkpoints and data on a network file
system, and the person who types.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lib import CPU_ONLY, ROOT, Report, Target, first_job_id, machine, show_table, spread, wait_for
from rich.console import Console
from training import STEP_TIME_S, Training

from slurm_robust.devcluster.cluster import DevCluster, Spec

PARTS = ("verdict", "update")
SIZES = (2, 8, 32)
FIRST_S, ALL_S, TIMES_FASTER = 30.0, 120.0, 11.0
_BUDGET_S = 300
_FIRST_STAGES = ("full check", "load PyTorch", "in-node", "pairs")
"""In-node and pairs: the ladder's first verdict."""
_COLLECTIVE = """
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{os.environ['BARE_PORT']}",
                        rank=int(os.environ["SLURM_PROCID"]), world_size=int(os.environ["SLURM_NTASKS"]))
dist.all_reduce(torch.ones(1 << 18))
dist.destroy_process_group()
"""
_SMALL = "--layers 1 --width 16 --heads 2 --context 16 --batch 2 --eval-every 0 --checkpoint-every 5"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def verdict(nodes: int, repeats: int) -> dict[str, Any]:
    """Times of the tests on so many nodes, and of a bare collective on as many."""
    cluster = DevCluster.up(Spec(nodes=nodes, slurm_conf_extra=first_job_id()))
    tests: list[dict[str, float]] = []
    bare: list[float] = []
    try:
        job = _stopped_job(cluster, nodes)
        for _ in range(repeats):
            bare.append(_bare_collective(cluster, job, nodes))
            tests.append(_one_test(cluster, job))
            _say(f"{nodes} nodes: bare collective {bare[-1]:.1f} s, tests {tests[-1]}")
    finally:
        cluster.down()
    stages = {name: spread(t[name] for t in tests if name in t) for name in tests[0]}
    first = spread(t["first verdict"] for t in tests)
    assert first is not None
    alone = spread(bare)
    assert alone is not None
    return {"nodes": nodes, "bare_collective_s": alone, **stages, "ratio": round(first.median / alone.median, 2)}


def _stopped_job(cluster: DevCluster, nodes: int) -> str:
    """A job whose step has ended, as after a supervisor has stopped the ranks."""
    job: str = cluster.run(["sbatch", "--parsable", f"-N{nodes}", "--exclusive", "--wrap", "sleep 3600"]).stdout.strip()
    wait_for(lambda: "RUNNING" in cluster.run(["squeue", "-h", "-o", "%T", "-j", job]).stdout, 60, "the job")
    return job


def _bare_collective(cluster: DevCluster, job: str, nodes: int) -> float:
    port = 20_000 + int(time.time()) % 8_000
    command = ["srun", "--overlap", f"--jobid={job}", f"-N{nodes}", f"-n{nodes}", "--mem=0", "--mpi=none"]
    command += ["--cpu-bind=none", sys.executable, "-c", _COLLECTIVE]
    began_s = time.monotonic()
    cluster.run(command, env={**cluster.env, "BARE_PORT": str(port), "OMP_NUM_THREADS": "1"}, timeout_s=300)
    return time.monotonic() - began_s


def _one_test(cluster: DevCluster, job: str) -> dict[str, float]:
    began_s = time.monotonic()
    command = [sys.executable, "-m", "slurm_robust.cli.main", "test", "--job", job, "--json", f"--budget={_BUDGET_S}"]
    done = subprocess.run(command, env=cluster.env, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    whole_s = time.monotonic() - began_s
    report = json.loads(done.stdout)
    if report["verdict"] != "passed":
        raise RuntimeError(f"healthy nodes did not pass: {report}")
    stages = {stage["name"]: float(stage["took_s"]) for stage in report["stages"]}
    before_s = whole_s - sum(stages.values())
    first_s = before_s + sum(stages.get(name, 0.0) for name in ("start", *_FIRST_STAGES))
    return {"command": before_s, **stages, "first verdict": first_s, "all": whole_s}


def update(repeats: int) -> dict[str, Any]:
    """Seconds from the command to the first new step, both ways."""
    cluster = DevCluster.up(Spec(nodes=2, slurm_conf_extra=first_job_id()))
    ours: list[float] = []
    by_hand: list[float] = []
    try:
        with tempfile.TemporaryDirectory(prefix="srobust-update-") as folder:
            project = Path(folder)
            for name in ("train.py", "faults.py"):
                shutil.copy(ROOT / "examples" / name, project)
            job = _train(cluster, project, "first")
            for number in range(repeats):
                ours.append(_in_place(cluster, job, project, number))
                began_s = time.time()
                job.cancel()
                job = _train(cluster, project, f"again{number}", checkpoints=job)
                by_hand.append(job.told("training")[0]["at_s"] - began_s)
                _say(f"update in place {ours[-1]:.2f} s, by hand {by_hand[-1]:.2f} s")
            job.cancel()
    finally:
        cluster.down()
    mine, theirs = spread(ours), spread(by_hand)
    assert mine is not None
    assert theirs is not None
    return {"in_place_s": mine, "by_hand_s": theirs, "times_faster": round(theirs.median / mine.median, 2)}


def _train(cluster: DevCluster, project: Path, name: str, *, checkpoints: Training | None = None) -> Training:
    """Submit the job, and wait for its first new step and for proof that its code makes progress."""
    job = Training(cluster, name)
    saved = (checkpoints or job).folder / "ck"
    if checkpoints is not None and checkpoints.folder.joinpath("saved").exists():
        saved = Path(checkpoints.folder.joinpath("saved").read_text())
    (job.folder / "saved").write_text(str(saved))
    run = f"srobust run --robust-code={project} --robust-checkpoint-dir={saved}"
    train = f"{sys.executable} {project}/train.py --checkpoint-dir {saved} --steps 100000 --step-time-s {STEP_TIME_S}"
    job.submit(f"{run} {train} {_SMALL}", 2)
    job.hears("training", 120)
    wait_for(lambda: _shown(cluster, job)["proven"], 60, "a version that makes progress")
    return job


def _shown(cluster: DevCluster, job: Training) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.run(["srobust", "update", job.id, "--show", "--json"]).stdout)
    return found


def _in_place(cluster: DevCluster, job: Training, project: Path, number: int) -> float:
    with (project / "train.py").open("a") as code:
        code.write(f"# edit {number}\n")
    began_s = time.time()
    cluster.run(["srobust", "update", job.id, "--when", "now"])
    return float(job.hears("resumed", 120)["at_s"]) - began_s


def measure(parts: set[str], sizes: list[int], *, quick: bool, repeats: int) -> Report:
    """Run the parts one after the other."""
    report = Report("stoptime", quick, machine=machine(), notes=[CPU_ONLY])
    if "verdict" in parts:
        report.figures["verdict"] = [verdict(nodes, repeats) for nodes in sizes]
        for found in report.figures["verdict"]:
            nodes = found["nodes"]
            report.targets += [
                Target(f"{nodes} nodes: in-node and pairs", FIRST_S, "s", found["first verdict"].median),
                Target(f"{nodes} nodes: all tests", ALL_S, "s", found["all"].median),
            ]
        report.notes.append(
            "All nodes share this machine's processors: what they do in parallel elsewhere adds up here."
        )
    if "update" in parts:
        report.figures["update"] = found = update(repeats)
        share = round(1 / TIMES_FASTER, 4)
        report.targets.append(
            Target("update in place, of what it takes by hand", share, "", round(1 / found["times_faster"], 3))
        )
        report.notes.append("By hand: no wait in a queue, no container, local files, nobody who types.")
    return report


def show(report: Report, console: Console) -> None:
    """The tables, for people."""
    sizes = report.figures.get("verdict", [])
    if sizes:
        names = list(dict.fromkeys(name for found in sizes for name in found if name != "nodes"))
        rows = [(name, *(found.get(name) for found in sizes)) for name in names]
        columns = ("stage", *(f"{found['nodes']} nodes" for found in sizes))
        show_table(console, "Seconds from the command to the verdict; ratio: first verdict / collective", columns, rows)
    if found := report.figures.get("update"):
        show_table(console, "Code update to the first new step", ("", "figure"), list(found.items()))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="one object of named figures")
    parser.add_argument("--quick", action="store_true", help="two nodes, one repeat: shows that it works")
    parser.add_argument("--repeats", type=int, default=3, help="of everything (default: 3)")
    parser.add_argument("--nodes", default=",".join(map(str, SIZES)), help="sizes, with commas (default: %(default)s)")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas (default: %(default)s)")
    args = parser.parse_args()
    parts = set(args.only.split(","))
    if unknown := parts - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    sizes = [2] if args.quick else [int(size) for size in args.nodes.split(",")]
    report = measure(parts, sizes, quick=args.quick, repeats=1 if args.quick else args.repeats)
    if args.json:
        print(report.to_json())
    else:
        console = Console(width=160)
        show(report, console)
        report.show(console)


if __name__ == "__main__":
    main()
