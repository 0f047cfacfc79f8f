"""Writes the GPU reset that the job which checks a repaired node does before it checks. Pure text.

The reset needs root and an empty node. The job has both: it is exclusive, in the node's quarantine, of the daemon's
account. All GPUs are reset together, since one alone cannot be reset if NVSwitches connect them. Services that hold the
GPUs open are stopped meanwhile. If the reset fails, the fault stays, and the check that follows reports it.
"""

from __future__ import annotations

import shlex
import sys

from slurm_robust.config.repair import RepairConfig
from slurm_robust.marks.remedy import Remedy
from slurm_robust.policy.cluster.repair import RepairTry

RESET_TIMEOUT_S = 300
STOPPED_FILE = "/run/slurm_robust/stopped_for_reset"
"""The file of units that the job has stopped, one a line: the next job starts them again if this one is killed."""

_CLEAR = shlex.join((sys.executable, "-m", "slurm_robust.cli.main", "check", "--clear-xid", "all"))
"""The command that withdraws latched XIDs after a GPU reset; an XID that is still there comes again."""

_RESET = """\
list={stopped_file}
mkdir -p -m 755 "$(dirname "$list")"
if [ -f "$list" ] && [ ! -L "$list" ] && [ -O "$list" ]; then stopped=$(cat "$list"); else stopped=; rm -f "$list"; fi
start_again() {{ for unit in $stopped; do systemctl start "$unit"; done; stopped=; rm -f "$list"; }}
said=$(mktemp) || said=/dev/null
trap start_again EXIT
trap 'kill "$resetting" 2>/dev/null; [ "$said" = /dev/null ] || rm -f "$said"; exit 143' TERM INT
for unit in {units}; do
    if systemctl is-active --quiet "$unit" 2>/dev/null; then
        stopped="$unit $stopped"
        echo "$unit" >>"$list"
        systemctl stop "$unit"
    fi
done
# In the background: a shell that waits for a program does not hear that its job is to end.
timeout -k 10 {timeout_s} nvidia-smi --gpu-reset >"$said" 2>&1 &
resetting=$!
if wait "$resetting"; then
    {clear}
else
    logger -t srobust-repair "nvidia-smi --gpu-reset failed: $(cat "$said")" 2>/dev/null
fi
[ "$said" = /dev/null ] || rm -f "$said"
start_again
trap - EXIT TERM INT
"""


def prelude(repair: RepairTry, config: RepairConfig) -> str:
    """Lines of a shell script; empty if the remedy leaves nothing to do in the job."""
    if repair.remedy is not Remedy.GPU_RESET:
        return ""
    if config.command:
        return f"{_CLEAR}\n"
    units = " ".join(shlex.quote(unit) for unit in config.stop_services)
    return _RESET.format(
        units=units or '""', timeout_s=RESET_TIMEOUT_S, clear=_CLEAR, stopped_file=shlex.quote(STOPPED_FILE)
    )
