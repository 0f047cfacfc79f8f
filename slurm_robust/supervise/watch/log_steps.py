"""The numbers in a job's log lines: which of them show progress, and which is the step of the training?

Log lines hold more than steps: bars of a data set that is prepared, of a validation, of files that are written. Each
shape of line and each total (`12/391`) is a counter of its own; the training's counter is the one with most progress.
"""

from __future__ import annotations

import re

_COUNT = r"(?P<step>\d+)\b(?!\.\d|\s*m?s\b)"
"""No time: `per step: 1.93 s`."""
_PROGRESS = [
    re.compile(p)
    for p in (
        r"\biteration\s+(?P<step>\d+)\s*/\s*\d+",  # Megatron-LM
        r"\b(?:global_)?step[\s:=]+" + _COUNT,  # Lightning, torchtitan, DeepSpeed, own loops
        r"\bstep\s+(?P<step>\d+)\s*/\s*\d+",
        r"['\"]global_step['\"]\s*:\s*(?P<step>\d+)",  # Hugging Face
        r"\biter(?:ation)?[\s:=]+" + _COUNT,
        r"\|\s*(?P<step>\d+)/\d+\s*\[",  # tqdm bars: Lightning, HF, NeMo
    )
]
"""Shapes of progress lines, the clearest first."""
_TOTAL = re.compile(r"\s*/\s*(\d+)")
_EPOCH = re.compile(r"\bepoch['\"]?[\s:=#\[(]+(?P<epoch>\d{1,9}(?:\.\d{1,9})?)", re.IGNORECASE)
_EPOCHS_BAR = re.compile(r"\s*Epoch[\s:=]+(?P<epoch>\d{1,9})\b[^|]*\|[^|]*\|\s*\d+/\d+\s*\[")
"""A bar that is drawn anew in each epoch, as by Lightning: epoch × total + number is the step of the training."""
_RECENT = 3
"""Up to so many numbers that repeat in turn are ranks that hang at different steps, and print them again."""
_MAX_SERIES = 256


def _reported(line: str, own: re.Pattern[str] | None) -> tuple[str, int, int, int] | None:
    """The name of a line's counter, its number, its total (0 where it has none), and where the number ends."""
    for shape, pattern in enumerate([own] if own is not None else _PROGRESS):
        match = pattern.search(line)
        if match is None:
            continue
        try:
            number, end = int(match["step"]), match.end("step")
        except (IndexError, TypeError, ValueError):  # a site's pattern without the group, or whose group is no number
            return None
        total = _TOTAL.match(line, end)
        return (
            f"{shape}/{total[1] if total is not None else ''}",
            number,
            int(total[1]) if total is not None else 0,
            end,
        )
    return None


class Counters:
    """Tells progress from repeated numbers. All output files of an attempt share one.

    A number is progress where it is higher than the one before it and was not printed a moment ago. So nothing that a
    hung job repeats is progress: a bar that is drawn again, ranks that hang at different steps and print them in turn,
    an old number in a warning, a copy of the file. A counter may restart: the fall itself is no progress, the numbers
    after it are.

    Attributes:
        count: How many numbers were progress.
    """

    def __init__(self) -> None:
        self.count = 0
        self._epoch = 0.0
        self._series: dict[str, CounterSeries] = {}

    def progress(self, line: str, own: re.Pattern[str] | None = None, *, whole: bool = True) -> int | None:
        """The number in this line of the program, where it is progress; else None.

        `own` is the site's own pattern. The last digits of a line that is not `whole` may still be missing.
        """
        epoch = _EPOCH.search(line)
        if epoch is not None and (whole or epoch.end() < len(line)):
            self._epoch = float(epoch["epoch"])
        found = _reported(line, own)
        if found is None or (not whole and found[3] == len(line)):
            return None
        name, number, total, _ = found
        if name not in self._series and len(self._series) >= _MAX_SERIES:
            del self._series[next(iter(self._series))]
        series = self._series.setdefault(name, CounterSeries())
        if not series.advances(self._epoch, number):
            return None
        self.count += 1
        bar = _EPOCHS_BAR.match(line)
        step = int(bar["epoch"]) * total + number if bar is not None else number
        by_epochs = bar is None and "epoch" in line.lower()
        series.note(step, self._epoch, by_epochs=by_epochs, full=0 < total <= number)
        series.at = self.count
        return number

    @property
    def main(self) -> str:
        """Name of the training's counter, empty where there is none yet.

        A full bar has ended (a data set is prepared, files are written), and a bar that restarts belongs to a
        validation or an epoch. Of the others, where there are any, it is the one with most progress.
        """
        return max(self._series, key=lambda name: self._series[name].rank, default="")

    @property
    def training(self) -> CounterSeries:
        """The numbers of the training's counter; none where there is none yet."""
        return self._series.get(self.main) or CounterSeries()


class CounterSeries:
    """The numbers of one counter.

    Attributes:
        step: The last number that was progress, -1 for none.
        first: The first two different ones, or fewer.
        falls: It counted down, or restarted (in each epoch): it does not number the steps of the training.
        epoch: The epoch of the last number, 0 where no line shows it.
        count: How many of its numbers were progress.
        at: `Counters.count` at the last of them.
    """

    def __init__(self) -> None:
        self.step = -1
        self.epoch = 0.0
        self.count = 0
        self.at = 0
        self._full = False
        self.first: list[int] = []
        self.falls = False
        self._highest = 0
        self._recent: list[tuple[float, int]] = []
        self._last: tuple[float, int] | None = None
        self._fell = False
        self._lowest = 0

    def advances(self, epoch: float, number: int) -> bool:
        """Whether this number is progress."""
        new, last = (epoch, number), self._last
        if new == last:
            return False
        if last is None or number < self._lowest:
            self._lowest = number
        if last is not None and new < last and number == self._lowest:
            self._recent.clear()  # it restarts, perhaps after very few numbers
        fresh = new not in self._recent
        falls = last is not None and new < last
        # Once is an old number; twice in a row is a counter that goes down.
        goes_on = fresh and (not falls or self._fell)
        self._recent = [*(x for x in self._recent if x != new), new][-_RECENT:]
        self._last, self._fell = new, falls and fresh
        return goes_on

    @property
    def rank(self) -> tuple[bool, bool, int, int]:
        """The counter with the highest one is the training's."""
        return not self._full, not self.falls, self.count, self.at

    def note(self, step: int, epoch: float, *, by_epochs: bool, full: bool) -> None:
        """Remember progress, as the step of the whole training where its epoch is known."""
        if len(self.first) < 2 and step not in self.first:
            self.first.append(step)
        self.falls |= by_epochs or step < self._highest // 2
        self.step, self._highest = step, max(self._highest, step)
        self.epoch, self.count, self._full = epoch, self.count + 1, full
