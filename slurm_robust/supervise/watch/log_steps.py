"""The numbers in a job's log lines: which of them say that training goes on, and which is the step of the training?

Log lines tell more than steps: bars of a data set that is prepared, of a validation, of files that are written. Each
shape of line and each total (`12/391`) is a counter of its own, and the training's is the one that goes on
and says most.
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
"""Shapes of progress lines, most telling first."""
_TOTAL = re.compile(r"\s*/\s*(\d+)")
_EPOCH = re.compile(r"\bepoch['\"]?[\s:=#\[(]+(?P<epoch>\d{1,9}(?:\.\d{1,9})?)", re.IGNORECASE)
_EPOCHS_BAR = re.compile(r"\s*Epoch[\s:=]+(?P<epoch>\d{1,9})\b[^|]*\|[^|]*\|\s*\d+/\d+\s*\[")
"""A bar that is drawn anew in each epoch, as by Lightning: epoch × total + number is the step of the training."""
_RECENT = 3
"""So many different numbers that come round again and again are ranks that hang, each at its own step, and say so."""
_MAX_SERIES = 256


def _reported(line: str, own: re.Pattern[str] | None) -> tuple[str, int, int, int] | None:
    """The name of a line's counter, its number, its total (0 where it tells none), and where the number ends."""
    for shape, pattern in enumerate([own] if own is not None else _PROGRESS):
        match = pattern.search(line)
        if match is None:
            continue
        try:
            number, end = int(match["step"]), match.end("step")
        except (IndexError, TypeError, ValueError):  # a site's pattern without the group, or with words in it
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
    """Tells a number that goes on from one that is only said again. All output files of an attempt share one.

    A number is news where it is higher than the one before it and was not said a moment ago. So nothing that a hung
    job repeats is news: a bar that is drawn again, ranks that hang at different steps and say so in turn, an old
    number in a warning, a copy of the file. A counter may start again: the fall itself is no news, and what follows is.

    Attributes:
        count: How often anything was news.
    """

    def __init__(self) -> None:
        self.count = 0
        self._epoch = 0.0
        self._series: dict[str, _Series] = {}

    def news(self, line: str, own: re.Pattern[str] | None = None, *, whole: bool = True) -> int | None:
        """The number that this line of the program says, where that is news.

        Args:
            line: What the program printed, without words of ours or Slurm's.
            own: The site's own pattern.
            whole: False for a line that has not ended yet, whose last digits may still be missing.
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
        series = self._series.setdefault(name, _Series())
        if not series.news(self._epoch, number):
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
        """Name of the training's counter, empty where none has said anything.

        A bar that is full is over (a data set is prepared, files are written), and one that counts anew is a
        validation's or an epoch's: where there are others, it is the one of those that has said most.
        """
        return max(self._series, key=lambda name: self._series[name].rank, default="")

    @property
    def step(self) -> int:
        """The last number of the training's counter, -1 for none."""
        series = self._series.get(self.main)
        return series.step if series is not None else -1

    @property
    def first(self) -> list[int]:
        """The first two different numbers of the training's counter, or fewer."""
        series = self._series.get(self.main)
        return series.first if series is not None else []

    @property
    def epoch(self) -> float:
        """The epoch in which the training's counter said its last number, 0 where no line tells."""
        series = self._series.get(self.main)
        return series.epoch if series is not None else 0.0

    @property
    def falls(self) -> bool:
        """Whether the training's counter counts anew in each epoch: it does not number the steps of the training."""
        series = self._series.get(self.main)
        return series is not None and series.falls


class _Series:
    """The numbers of one counter.

    Attributes:
        step: The last number that was news.
        first: The first two different ones.
        falls: It counted down, or anew.
        epoch: The one in which it said the last number.
        count: How often it said news.
        at: When it last did, in news of all counters.
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

    def news(self, epoch: float, number: int) -> bool:
        said, last = (epoch, number), self._last
        if said == last:
            return False
        if last is None or number < self._lowest:
            self._lowest = number
        if last is not None and said < last and number == self._lowest:
            self._recent.clear()  # it starts again, perhaps after very few numbers
        fresh = said not in self._recent
        falls = last is not None and said < last
        # Once is an old number; twice in a row is a counter that goes down.
        goes_on = fresh and (not falls or self._fell)
        self._recent = [*(x for x in self._recent if x != said), said][-_RECENT:]
        self._last, self._fell = said, falls and fresh
        return goes_on

    @property
    def rank(self) -> tuple[bool, bool, int, int]:
        """The higher, the more it is the training's."""
        return not self._full, not self.falls, self.count, self.at

    def note(self, step: int, epoch: float, *, by_epochs: bool, full: bool) -> None:
        """Remember news, as the step of the whole training where its epoch is known."""
        if len(self.first) < 2 and step not in self.first:
            self.first.append(step)
        self.falls |= by_epochs or step < self._highest // 2
        self.step, self._highest = step, max(self._highest, step)
        self.epoch, self.count, self._full = epoch, self.count + 1, full
