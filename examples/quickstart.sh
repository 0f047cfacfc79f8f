#!/usr/bin/env bash
# One fault on this machine: a real Slurm of six nodes, a real training, and no person who helps.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: examples/quickstart.sh [--act hang|fault] [--keep] [--steps N] [--report-dir DIR]

Shows what slurm_robust does when a training job hangs, on a real Slurm that runs on this machine alone:

  1. installs what is missing: Debian's packages of Slurm and MUNGE (as root or with sudo), and a virtual
     environment with this package in .venv, or in $SROBUST_VENV; the first time takes a minute or more
  2. starts six slurmds, slurmctld and the control daemon srobustd in a folder of their own; one node is the standby
  3. submits examples/train.sbatch, a small GPT on four nodes; a rank's process then waits in the kernel for ever
     (D state), as on a mount that does not answer
  4. shows the story as it happens: suspicion, stacks of all ranks, suspect, quarantine, seat, requeue, resumption;
     an XID 79 is injected into the suspect's kernel log, so the checks of its node drain it
  5. prints the incident's times and where its report is, and ends the cluster

With --act fault nothing hangs. A service on each node (srobust nodewatch) follows the kernel log. In mid-training one
log says that a GPU has fallen off the bus, and the job leaves that node before any rank falls silent.

It takes about a minute once everything is installed. It touches no other Slurm of this machine, ends only processes
that it started, and may be run again and again. Ctrl-C ends it at any time and leaves nothing running.

  --act ACT          what goes wrong: hang (a dead mount; the default) or fault (a node loses a GPU)
  --keep             leave the cluster up, and say how to use it and how to end it
  --steps N          steps of the training, 24 or more (60)
  --report-dir DIR   keep the report below this folder (the temporary directory)
  -h, --help         this text

Exit code: 0 the story was complete, 1 it was not (the message says what was missing), 64 wrong usage,
130 ended by Ctrl-C.
TEXT
}

wrong() {
    printf 'quickstart: %s\n\n' "$1" >&2
    usage >&2
    exit 64
}

# Options are read before anything is installed: a typing error should not cost minutes.
arguments=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --keep) arguments+=(--keep) ;;
        --act | --steps | --report-dir)
            [ $# -ge 2 ] || wrong "$1 needs a value"
            arguments+=("$1" "$2")
            shift ;;
        *) wrong "$1: no such option" ;;
    esac
    shift
done
for index in "${!arguments[@]}"; do
    value=${arguments[index + 1]:-}
    case ${arguments[index]} in
        --act) [[ $value == hang || $value == fault ]] || wrong "--act $value: hang or fault" ;;
        --steps) [[ $value =~ ^[0-9]{2,6}$ && $((10#$value)) -ge 24 ]] || wrong "--steps $value: a number, 24 or more" ;;
        --report-dir) [ -d "$value" ] && [ -w "$value" ] || wrong "--report-dir $value: no folder to write into" ;;
    esac
done

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
trap 'exit 130' INT
"$repository/scripts/setup"
trap - INT

venv=${SROBUST_VENV:-.venv}
case $venv in /*) ;; *) venv=$repository/$venv ;; esac
# exec: signals reach the Python program, and its exit code is ours.
exec "$venv/bin/python" "$repository/examples/quickstart.py" ${arguments[@]+"${arguments[@]}"}
