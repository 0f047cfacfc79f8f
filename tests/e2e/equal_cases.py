"""Runs every case under one launcher, inside a job: `python equal_cases.py FOLDER LAUNCHER [WORD…]`.

Each case has a folder of its own; what came of it is written to FOLDER/results.json once all have ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROBE = """
import json, os, resource, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status") if line.startswith("Sig"))
limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
given = {"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "limits": limits, "stdin": sys.stdin.read()}
given["signals"] = {name: status[name].strip() for name in ("SigBlk", "SigIgn")}
given["umask"] = os.umask(0)
print(json.dumps(given))
"""
UP = "echo x >> starts; touch up-$SLURM_PROCID; "
WAITS = f"{UP} exec sleep 300"
GOES_ON = f"{UP} until [ -e go ]; do sleep 0.1; done; echo end"
FAILS = "[ $SLURM_PROCID = 2 ] && exit 1"
BIN = "printf 'a\\000b\\377\\r\\n%s' $SLURM_PROCID; printf 'no newline' >&2"
CASES: dict[str, list[str]] = {
    "given": ["-n1", "--input=all", "python3", "-c", PROBE, "a b", "", "*"],
    "files": ["-n2", "-o", "out.%t", "-e", "err.%t", "sh", "-c", BIN],
    "bytes": ["-n1", "sh", "-c", BIN],
    "label": ["-n2", "--label", "sh", "-c", "echo $SLURM_PROCID; cat"],
    "ok": ["-n2", "true"],
    "exit 3": ["-n1", "sh", "-c", f"{UP} exit 3"],
    "one of four runs fails": ["-n4", "sh", "-c", f"export RANK=0 WORLD_SIZE=1; {UP} {FAILS}; sleep 6; touch done"],
    "no program": ["-n1", "./nosuch"],
    "no permission": ["-n1", "/etc/passwd"],
    "not found by the shell": ["-n1", "sh", "-c", "nosuch"],
    "wrong option": ["--nope=1", "true"],
    "too many nodes": ["-N9", "-n9", "true"],
    "no such node": ["-w", "nosuchnode", "true"],
    "no such mpi": ["--mpi=nosuch", "true"],
    "interrupted once": ["-n2", "sh", "-c", GOES_ON],
    "interrupted twice": ["-n2", "sh", "-c", WAITS],
    "quit": ["-n2", "sh", "-c", WAITS],
    "terminated": ["-n2", "sh", "-c", WAITS],
    "hung up": ["-n2", "sh", "-c", WAITS],
    "SIGUSR1": ["-n2", "sh", "-c", WAITS],
    "step cancelled": ["-n2", "sh", "-c", WAITS],
}
SIGNALS = {"quit": "SIGQUIT", "terminated": "SIGTERM", "hung up": "SIGHUP", "SIGUSR1": "SIGUSR1"}
_DEADLINE_S = 120.0


def wait_for(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """Whether it has ended, within so long."""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def until(seen: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait for a file of a task's."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while not seen.exists() and process.poll() is None:
        assert time.monotonic() < deadline_s, f"not in {_DEADLINE_S:g} s: {seen}"
        time.sleep(0.05)


def disturb(name: str, folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Do to a step what the case is about, once both tasks run."""
    if not any(WAITS in word or GOES_ON in word for word in CASES[name]):
        return
    for task in (0, 1):
        until(folder / f"up-{task}", process)
    if name in SIGNALS:
        process.send_signal(signal.Signals[SIGNALS[name]])
    elif name == "interrupted once":
        process.send_signal(signal.SIGINT)
        (folder / "go").touch()
    elif name == "interrupted twice":
        # On a busy machine two may come too far apart for srun, which then shows its tasks twice.
        deadline_s = time.monotonic() + _DEADLINE_S
        while process.poll() is None and time.monotonic() < deadline_s:
            process.send_signal(signal.SIGINT)
            if wait_for(process, 0.2):
                break
            process.send_signal(signal.SIGINT)
            wait_for(process, 10.0)
    else:
        job = os.environ["SLURM_JOB_ID"]
        listed = subprocess.run(
            ["squeue", "-h", "-s", "-j", job, "-o", "%i %j"], capture_output=True, text=True, check=True
        )
        steps = [line.split()[0] for line in listed.stdout.splitlines() if line.split()[1] == "sh"]
        subprocess.run(["scancel", *steps], check=True)


def result(name: str, folder: Path, launcher: list[str]) -> dict[str, object]:
    """What comes of one case."""
    folder.mkdir()
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(
            [*launcher, *CASES[name]], cwd=folder, stdin=subprocess.PIPE, stdout=out, stderr=err, bufsize=0
        )
        assert process.stdin is not None
        process.stdin.write(b"some\nlines")
        process.stdin.close()
        disturb(name, folder, process)
        ended = wait_for(process, _DEADLINE_S)
        if not ended:
            process.kill()
    texts = {path.name: path.read_bytes().decode("latin-1") for path in sorted(folder.iterdir()) if path.is_file()}
    return {"code": process.wait() if ended else "did not end", "files": texts}


def main() -> None:
    """Run all cases, or those that are named first, with commas between them."""
    folder, wanted, launcher = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
    results = {name: result(name, folder / name, launcher) for name in CASES if name in wanted or wanted == [""]}
    (folder / "results.json.new").write_text(json.dumps(results))
    (folder / "results.json.new").rename(folder / "results.json")


if __name__ == "__main__":
    main()
