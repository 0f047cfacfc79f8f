"""Keeps the sizes of standby pools if the site chose `auto`: by the class's failures, one step a day."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from slurm_robust.daemon.context import DAY_S, DaemonContext
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.policy.cluster.node_states import by_class
from slurm_robust.policy.cluster.standby_history import (
    AutoLimits,
    AutoSize,
    SizeSuggestion,
    next_size,
    past_by_class,
)

EVERY_S = 3600.0
KEY = "standby_sizes"


class StandbySizes:
    """The sizes by a class's slug; empty if the site chose a number."""

    def __init__(self, context: DaemonContext, ledger: NodeLedger) -> None:
        self.context, self.ledger = context, ledger
        self._next_at_s = 0.0
        self._known: dict[str, AutoSize] | None = None
        self._sizes: Mapping[str, int] = {}

    def restart_timers(self) -> None:
        """Compute at once, and limit the times of changes to now, since the clock was set back."""
        self._next_at_s = 0.0
        now_s = self.context.now_s()
        for slug, known in self._remembered().items():
            if known.changed_at_s > now_s:
                self._remembered()[slug] = AutoSize(known.size, now_s, known.reason)

    def now(self) -> Mapping[str, int]:
        """Return the sizes now; another object only after a change. An error of ours leaves the sizes unchanged."""
        context = self.context
        if context.config.standby.size != "auto" or context.now_s() < self._next_at_s:
            return self._sizes
        self._next_at_s = context.now_s() + EVERY_S
        with context.aside("computing the sizes of standby pools"):
            self._compute()
        return self._sizes

    def _compute(self) -> None:
        context, known, config = self.context, self._remembered(), self.context.config.standby
        limits = AutoLimits(config.start_size, config.max_size, config.min_node_days)
        for slug, past in self._pasts(config.window_days, config.partitions).items():
            before = known.get(slug)
            known[slug] = next_size(before, past, limits, context.now_s())
            if before is None or before.size != known[slug].size:
                context.info("standby.size", f"{slug}: {known[slug].size}: {known[slug].reason}", key=slug)
        sizes = {slug: auto.size for slug, auto in known.items()}
        if sizes != self._sizes:
            self._sizes = sizes
        context.journal.put(KEY, msgspec.json.encode(known).decode())

    def _pasts(self, window_days: float, partitions: tuple[str, ...]) -> dict[str, SizeSuggestion]:
        """Return the sizes that the journal suggests for each hardware class, by the class's slug."""
        now_s, first_s = self.context.now_s(), self.ledger.first_at_s()
        since_s = max(now_s - window_days * DAY_S, first_s if first_s is not None else now_s)
        nodes = self.context.readings.nodes.values()
        classes = {kind.slug: names for kind, names in by_class(nodes, partitions).items()}
        return past_by_class(classes, self.ledger.failures(since_s), (now_s - since_s) / DAY_S)

    def reason(self, slug: str) -> str:
        """Return why a pool has its size; empty if the site chose it."""
        known = self._remembered().get(slug) if self.context.config.standby.size == "auto" else None
        return known.reason if known is not None else ""

    def _remembered(self) -> dict[str, AutoSize]:
        """Return the remembered sizes, including those that an earlier daemon has written down."""
        if self._known is None:
            text = self.context.journal.get(KEY)
            try:
                self._known = msgspec.json.decode(text, type=dict[str, AutoSize]) if text else {}
            except msgspec.MsgspecError:
                self._known = {}
            self._sizes = {slug: auto.size for slug, auto in self._known.items()}
        return self._known
