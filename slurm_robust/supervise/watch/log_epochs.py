"""Reads epochs as progress, in logs without steps: one line for each epoch, or a bar that is only drawn when full.

An epoch that is higher than any before it is progress, whatever else a job prints: a hung job repeats its epoch. Epochs
only count while no shape has read a step, and an epoch is not taken for a step of the training.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_robust.supervise.watch.log_shapes import CounterReading, Counts

_EPOCH = re.compile(
    r"\bepochs?['\"]?[\s:=#\[(]{0,6}(?P<epoch>\d{1,7})(?![\d%]|[.:]\d)(?:\s*(?:/|of)\s*(?P<total>\d{1,7}))?"
)
_PART = re.compile(r"['\"]?epoch['\"]?[\s:=]{1,3}['\"]?(?P<epoch>\d{1,7}\.\d{1,9})")
"""Matches a fraction of an epoch, as Hugging Face's Trainer prints it."""
_METRIC = re.compile(
    r"(?:loss|acc(?:uracy)?|ppl|perplexity|nll|mse|mae|rmse|auc|f1|dice|m?iou|psnr|bleu|wer|reward|elbo|err(?:or)?)"
    r"\w*[^\w\n.]{0,12}(?:\w{1,8}[\s:=]{1,3})?-?\d+(?:\.\d+|e-?\d+)"
)
_WORK = re.compile(r"\b(?:step|iter|iteration|batch|it|update|sample|minibatch)s?\b[\s:=#\[(]{0,4}\d")
_SHORT = re.compile(
    r"(?:^|[\s\[(|])eps?[\s.:=#]{0,3}(?P<epoch>\d{1,7})(?![\d%]|[.:]\d)(?:\s*(?:/|of)\s*\d{1,7})?(?=[\s\],:;|)-])"
)
"""`ep 3/200`: counts only beside a metric."""
_CSV_HEADER = re.compile(r"^\s*epoch\s*(?:,\s*[a-z][a-z0-9_ ./()%-]*)+$")
_CSV_METRIC = re.compile(r"loss|acc|error|ppl|perplexity|metric|reward|score")
_CSV_ROW = re.compile(r"^\s*(?P<epoch>\d{1,7})\s*(?:,\s*(?:(?:[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?|nan|[-+]?inf)\s*)?)+$")
_TABLE = re.compile(r"^\s*\|?\s*epoch\s*\|?\s+[a-z_|][a-z_| \t/()-]*(?:loss|acc|error|metric)[a-z_| \t/()-]*$")
_ROW = re.compile(r"^\s*\|?\s*(?P<epoch>\d{1,7})\s*\|?\s+-?\d+\.\d+\s*\|?\s+-?\d+\.\d+")
_BRACKET = re.compile(r"^[^|\d]{0,40}\[\s*(?P<epoch>\d{1,7})\s*/\s*(?P<total>\d{1,7})\s*\]")
_FULL_BAR = re.compile(r"100%\|[^|]*\|\s*(?P<step>\d{1,9})/(?P<total>\d{1,9})\s*\[(?P<spent>[\d:]+)<")
_LABELS = re.compile(r"^(?:\s*\d+: |\[rank\d+\]:? ?|\d{4}-\d\d-\d\d[ t][\d:.,]+ )+")
_SHORT_S, _READ_LATE_S = 3, 2
"""Bars that follow each other faster are not told apart; a bar may be read this many seconds after it was drawn."""
EPOCHS = "epochs/"
"""How the names of counters of epochs begin."""


class EpochLines:
    """Reads epochs in the lines of one attempt."""

    def __init__(self) -> None:
        self._highest = -1.0
        self._header: int | None = None
        """The epoch of the last line that only shows an epoch."""
        self._table = False
        self._columns = 0
        """The number of columns of the comma-separated table whose header was printed; 0 without a table."""
        self._bars: dict[str, FullBar] = {}
        """The last full bar of each total."""
        self._last_bar = ""

    def read(self, low: str) -> CounterReading | None:
        """Return the epoch of a line in lower case, if it is progress as far as this line shows; else None."""
        low = _LABELS.sub("", low, count=1)
        if "epoch" in low:
            if _CSV_HEADER.match(low) and _CSV_METRIC.search(low) is not None:
                self._columns = low.count(",") + 1
                return None
            if _TABLE.match(low):
                self._table = True
                return None
            return self._named(low)
        if self._columns and (row := _CSV_ROW.match(low)) is not None and low.count(",") + 1 == self._columns:
            return self._new(int(row["epoch"]))
        if "ep" in low and (short := _SHORT.search(low)) is not None:
            trains = _METRIC.search(low) is not None and _WORK.search(low) is None
            return self._new(int(short["epoch"])) if trains else None
        row = _ROW.match(low) if self._table else None
        if row is None and "[" in low and _METRIC.search(low) is not None and _WORK.search(low) is None:
            row = _BRACKET.match(low)
        return self._new(int(row["epoch"])) if row is not None else None

    def _named(self, low: str) -> CounterReading | None:
        if _WORK.search(low) is not None:
            return None
        trains = _METRIC.search(low) is not None
        found = _EPOCH.search(low)
        if found is None:
            part = _PART.search(low) if trains else None
            return self._new(float(part["epoch"]), Counts.OTHER) if part is not None else None
        epoch = int(found["epoch"])
        if trains:
            return self._new(epoch)
        before, self._header = self._header, epoch
        # A single header may stand before the steps of its epoch.
        return self._new(epoch) if before is not None and epoch > before else None

    def _new(self, epoch: float, counts: Counts = Counts.EPOCH) -> CounterReading | None:
        if epoch <= self._highest:
            return None
        self._highest = epoch
        whole = int(epoch) if counts is Counts.EPOCH else int(epoch * 1_000_000)
        return CounterReading(EPOCHS + counts.value, whole, counts=counts, learned=True)

    def full_bar(self, low: str, now_s: float | None = None) -> FullBar | None:
        """Return the full bar of this line, if it is a new one; None for any other line, and for a repeated bar.

        If a bar is drawn again, its time has grown by the time that has passed. A new bar has spent less time, or
        another bar was drawn in between, or it can have begun since the last bar was full.

        Args:
            low: The line in lower case.
            now_s: When the line was read; without it, it is not known when a bar can have begun.
        """
        found = _FULL_BAR.search(low)
        if found is None or found["step"] != found["total"]:
            return None
        spent_s = 0
        for part in found["spent"].split(":"):
            spent_s = 60 * spent_s + int(part or 0)
        total, last = found["total"], self._bars.get(found["total"])
        bar = FullBar(spent_s, 1 if last is None else last.times + 1, now_s, low[found.start() :].strip())
        again = last is not None and self._last_bar == total and spent_s >= last.spent_s and not bar.begun_after(last)
        if last is not None and again:
            bar = bar._replace(times=last.times)
        if len(self._bars) < 64 or last is not None:
            self._bars[total] = bar
        self._last_bar = total
        return None if again else bar


class FullBar(NamedTuple):
    """A bar that was drawn full.

    Attributes:
        spent_s: How long the bar took.
        times: How many bars with its total were full, including this one.
        at_s: When the bar was read; None if not known.
        text: The whole text of the bar.
    """

    spent_s: int
    times: int
    at_s: float | None
    text: str

    def begun_after(self, last: FullBar) -> bool:
        """Return whether it can have begun after the last bar was full; a copy of that bar has an equal text."""
        if self.at_s is None or last.at_s is None or self.text == last.text:
            return False
        passed_s = self.at_s - last.at_s
        grown_s = self.spent_s - last.spent_s
        return passed_s >= _SHORT_S and self.spent_s <= passed_s + _READ_LATE_S and grown_s < passed_s / 2
