"""Turns the kernel records that agents send into findings, with the node checks' code.

That code is loaded when the first record comes: most jobs never need it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from slurm_robust.config.site import NodecheckConfig
from slurm_robust.marks.node_findings import NOW
from slurm_robust.supervise.agent.messages import MAX_RECORD_CHARS, MAX_RECORDS, KernelRecords, NodeFindings

if TYPE_CHECKING:
    from slurm_robust.nodewatch.sent_records import SentRecords

SOURCE = "agent"
_MAX_GPUS = 64


class KernelRecordJudge:
    """Judges the records of these nodes, with the site's options for its checks."""

    def __init__(self, config: NodecheckConfig, nodes: Collection[str]) -> None:
        self._config = config
        self._nodes = nodes
        self._by_node: dict[tuple[str, bool], SentRecords] = {}
        """The key includes the message's `unused`: a record comes again once it is known that it concerns the job."""
        self._count = 0

    def judge(self, message: KernelRecords) -> NodeFindings:
        """Return the findings in a node's records; values in an agent's message are checked and bounded."""
        node = message.node
        if node not in self._nodes or not (math.isfinite(message.at_s) and math.isfinite(message.since_boot_s)):
            return NodeFindings(node)
        key = node, message.unused
        if key not in self._by_node:
            self._by_node[key] = self._new(node, message.driver)
        found = self._by_node[key].judge(
            [text[:MAX_RECORD_CHARS] for text in message.records[:MAX_RECORDS]],
            dict(list(message.gpus.items())[:_MAX_GPUS]),
            wall_s=message.at_s,
            since_boot_s=message.since_boot_s,
            source=SOURCE,
            since_s=message.since_s,
        )
        if message.unused:
            found = [finding for finding in found if finding.about_gpus and finding.urgency == NOW]
        first, self._count = self._count + 1, self._count + len(found)
        numbered = tuple(finding._replace(seq=seq) for seq, finding in enumerate(found, first))
        return NodeFindings(node, numbered, unused=message.unused)

    def _new(self, node: str, driver: int) -> SentRecords:
        from slurm_robust.nodecheck.engine.registry import CheckError  # noqa: PLC0415
        from slurm_robust.nodewatch.sent_records import SentRecords  # noqa: PLC0415

        try:
            return SentRecords(node, driver, self._config.options, self._config.disable)
        except CheckError:
            # People who start the service or a check are told of it; a job's output is not the place.
            return SentRecords(node, driver, {}, ())
