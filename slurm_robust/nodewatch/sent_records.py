"""Judges lines of another node's kernel log, which a job's agent has sent, as the node watch there would.

Nothing of that node can be looked up, and nothing of this one is: there is no folder below the root that the checks
get. What a record says of disks and mounts is judged without them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_robust.core.text import printable
from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources.kmsg import KernelLog
from slurm_robust.nodecheck.sources.kmsg_line import parse
from slurm_robust.nodewatch.gpu_numbers import GpuNumbers
from slurm_robust.nodewatch.kernel_lines import KernelLines
from slurm_robust.nodewatch.moment import Moment

_NOWHERE = Path(os.devnull)
_REMEMBERED = 512


class SentRecords:
    """One node's records, each judged once.

    Args:
        node: The node.
        driver: Major number of its NVIDIA driver; 0 if it is not known.
        chosen: The site's options by check.
        disable: Checks that the site has switched off.

    Raises:
        CheckError: The site chose an option that no check has.
    """

    def __init__(self, node: str, driver: int, chosen: Mapping[str, Mapping[str, Any]], disable: Sequence[str]) -> None:
        self._gpus = GpuNumbers(_NOWHERE)
        context = Context(node, root=_NOWHERE, kmsg=_NOWHERE, shared={"nvidia_driver": driver})
        self._lines = KernelLines(context, chosen, self._gpus, disable)
        self._judged: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)
        """Numbers and times: an agent that is started anew sends some again."""

    def judge(
        self,
        records: Iterable[str],
        gpus: Mapping[str, int],
        *,
        wall_s: float,
        since_boot_s: float,
        source: str,
        since_s: float = 0.0,
    ) -> list[NodeFinding]:
        """Return the findings in those of the records that are new, oldest first.

        Args:
            records: The records, as `/dev/kmsg` gives them; a line that is not a record is skipped.
            gpus: Numbers of GPUs by their PCI address.
            wall_s: That node's time, seconds since the epoch.
            since_boot_s: That node's time, seconds since its boot.
            source: The source that the findings name.
            since_s: No record is older than this, seconds since the epoch.
        """
        data = b""
        for text in records:
            line = printable(text.partition("\n")[0], " ")
            record = parse(line)
            if record is None or record.seq is None or record.uptime_s is None:
                continue
            key = record.seq, record.uptime_s
            if key not in self._judged:
                self._judged.append(key)
                data += line.encode("utf-8", "replace") + b"\0"
        if not data:
            return []
        self._gpus.learn(gpus)
        seen = self._lines.judge(KernelLog(data), Moment(wall_s, since_boot_s, 0.0, since_s), source)
        return [entry.finding for entry in seen]
