"""Finds the numbers in a job's log lines that show progress, and the number that is the step of the training.

Log lines have other numbers than steps: progress bars of preparing a data set, of a validation, of writing files. Each
shape of line and each total (`12/391`) is a counter of its own; the counter with most progress is the training's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_robust.supervise.watch.learned_counters import LearnedCounters
from slurm_robust.supervise.watch.log_epochs import EPOCHS, EpochLines
from slurm_robust.supervise.watch.log_shapes import CounterReading, Counts, known_shapes

_TOTAL = re.compile(r"\s*/\s*(\d+)")
_EPOCH = re.compile(r"\bepoch['\"]?[\s:=#\[(]+['\"]?(?P<epoch>\d{1,9}(?:\.\d{1,9})?)")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x08")
"""Colours, and the backspaces with which Keras draws its bar again."""
_BARS_END = re.compile(r"(?:it/s|s/it)[^\]\n]{0,300}\]")
"""The end of a bar, which ends without a newline: following text on its line counts as another line."""
_RECENT = 3
"""Up to so many numbers that repeat in turn may be ranks that hang at different steps and print them again."""
_MAX_SERIES = 256
_CERTAIN = 3
"""After so many numbers a shape's counter counts as the training's, so that no other counter is learned."""
_MANY = 1 << 20
_UNFINISHED = 4
"""If a number ends so close to the end of an unfinished line, it or its total may still go on."""


def _own_reading(line: str, own: re.Pattern[str]) -> CounterReading | None:
    """Return what the site's own pattern reads."""
    match = own.search(line)
    if match is None:
        return None
    try:
        number, end = int(match["step"]), match.end("step")
    except (IndexError, TypeError, ValueError):  # a pattern without the group, or whose group is no number
        return None
    total = _TOTAL.match(line, end)
    name = f"0/{total[1] if total is not None else ''}"
    return CounterReading(name, number, int(total[1]) if total is not None else 0, end=end)


def _parts(low: str) -> Sequence[str]:
    """Return a line, or the bar and the line that was printed after it."""
    rate = max(low.find("it/s"), low.find("s/it"))
    if rate < 0 or low.find("]", rate) in (-1, len(low.rstrip()) - 1):
        return (low,)
    ends = [match.end() for match in _BARS_END.finditer(low)]
    return [low[start:end] for start, end in zip([0, *ends], [*ends, len(low)], strict=True)]


class Counters:
    """Tells progress from repeated numbers. All output files of an attempt share one.

    A number is progress if it is higher than the number before it and was not printed a moment ago. So repetitions by a
    hung job are not progress: a bar that is drawn again, ranks that hang at different steps and print them in turn, an
    old number in a warning, a copy of the file. A counter may restart: the fall itself is not progress, but later
    numbers are.

    Attributes:
        count: How many numbers were progress.
    """

    def __init__(self) -> None:
        self.count = 0
        self._epoch = 0.0
        self._series: dict[str, CounterSeries] = {}
        self._shapes = known_shapes()
        self._learned = LearnedCounters()
        self._epochs = EpochLines()
        self._certain: set[str] = set()

    def progress(
        self, line: str, own: re.Pattern[str] | None = None, *, whole: bool = True, now_s: float | None = None
    ) -> int | None:
        """Return the number in this line of the program, if it is progress; else None.

        Args:
            line: The printed line.
            own: The site's own pattern.
            whole: Whether the line is complete; otherwise its last digits may be missing.
            now_s: When the line was read, if it was read while the program ran.
        """
        found: int | None = None
        low = line.lower()
        if "\x1b" in low or "\x08" in low:
            low = _COLOURS.sub("", low)
        for part in _parts(low) if own is None else (low,):
            epoch = _EPOCH.search(part) if "epoch" in part else None
            if epoch is not None and (whole or epoch.end() < len(part)):
                self._epoch = float(epoch["epoch"])
            reading = _own_reading(line, own) if own is not None else self._read(part, whole=whole, now_s=now_s)
            cut = 1 if own is not None else _UNFINISHED
            if reading is None or (not whole and reading.end + cut > len(line if own is not None else part)):
                continue
            if self._advances(reading, names_epoch="epoch" in part):
                found = reading.number
        return found

    def _read(self, part: str, *, whole: bool, now_s: float | None) -> CounterReading | None:
        reading = self._shapes.read(part)
        if not whole:
            return reading
        if reading is not None:
            bar = self._epochs.full_bar(part, now_s) if reading.number == reading.total > 0 else None
            if bar is None:
                return reading
            return reading._replace(times=bar.times if bar.times > 1 else 0, spent_s=bar.spent_s)
        # A line is learned from once, when it is complete.
        learned = self._learned.read(part) if not self._certain else None
        epoch = self._epochs.read(part)
        if epoch is not None and not self._knows_steps and (learned is None or learned.number == epoch.number):
            return epoch
        return learned

    @property
    def _knows_steps(self) -> bool:
        """Whether any counter except counters of epochs has shown a step of the training."""
        return any(series.count and not (series.other or series.epochs) for series in self._series.values())

    def _advances(self, reading: CounterReading, *, names_epoch: bool) -> bool:
        """Return whether the reading is progress, and note it if so."""
        name = reading.name
        if reading.epoch is not None:
            self._epoch = float(reading.epoch)
        if name not in self._series and len(self._series) >= _MAX_SERIES:
            oldest = next(iter(self._series))
            del self._series[oldest]
            self._certain.discard(oldest)
        series = self._series.setdefault(name, CounterSeries())
        if not series.advances(self._epoch, reading.number, reading.times):
            return False
        self.count += 1
        step, by_epochs = reading.number, reading.counts is Counts.EPOCH
        if reading.counts is Counts.UNKNOWN:
            if reading.first_epoch is not None and reading.total:
                step += max(0, int(self._epoch) - reading.first_epoch) * reading.total
            else:
                by_epochs = names_epoch
        full = 0 < reading.total <= reading.number
        series.note(step, self._epoch, by_epochs=by_epochs or reading.times > 1, full=full)
        series.total, series.epochs = reading.total, name.startswith(EPOCHS)
        series.spent_s = reading.spent_s or series.spent_s
        series.at, series.other, series.learned = self.count, reading.counts is Counts.OTHER, reading.learned
        if series.certain:
            self._certain.add(name)
        else:
            self._certain.discard(name)
        return True

    @property
    def main(self) -> str:
        """The name of the training's counter, empty if there is none yet.

        A full bar has ended (a data set is prepared, files are written), and a bar that restarts belongs to a
        validation or an epoch. Among all other counters, if there are any, the one with most progress is the
        training's. A counter that a shape reads goes before a learned one.
        """
        name = max(self._series, key=lambda name: self._series[name].rank, default="")
        return name if name and not self._series[name].other else ""

    @property
    def training(self) -> CounterSeries:
        """The numbers of the training's counter; an empty series if there is none yet."""
        return self._series.get(self.main) or CounterSeries()


class CounterSeries:
    """The numbers of one counter.

    Attributes:
        step: The last number that was progress, -1 for none.
        first: The first two different numbers, or fewer.
        falls: It counted down, or restarted (in each epoch): it does not number the steps of the training.
        epoch: The epoch of the last number, 0 if no line shows it.
        count: How many of its numbers were progress.
        at: `Counters.count` at the last number that was progress.
        other: It does not count training.
        learned: It was learned, and is not read by a shape.
        epochs: It counts epochs.
        total: The total of its last number; 0 if it has none.
        spent_s: How long its last full bar took; 0 if not known.
    """

    def __init__(self) -> None:
        self.step = -1
        self.epochs = False
        self.total = 0
        self.spent_s = 0
        self.epoch = 0.0
        self.count = 0
        self.at = 0
        self.other = False
        self.learned = False
        self._full = False
        self.first: list[int] = []
        self.falls = False
        self._highest = 0
        self._recent: list[tuple[float, int]] = []
        self._last: tuple[float, int] | None = None
        self._fell = False
        self._lowest = 0

    def advances(self, epoch: float, number: int, times: int = 0) -> bool:
        """Return whether this number is progress; `times` is how often a bar has been full."""
        new, last = (epoch + times / _MANY, number), self._last
        if new == last:
            return False
        if last is None or number < self._lowest:
            self._lowest = number
        if last is not None and new < last and number == self._lowest:
            self._recent.clear()  # it restarts, perhaps after very few numbers
        fresh = new not in self._recent
        falls = last is not None and new < last
        # One lower number is an old number; two in a row show a counter that goes down.
        goes_on = fresh and (not falls or self._fell)
        self._recent = [*(x for x in self._recent if x != new), new][-_RECENT:]
        self._last, self._fell = new, falls and fresh
        return goes_on

    @property
    def rank(self) -> tuple[bool, bool, bool, int, int, bool, int, int]:
        """A key for comparing counters: the one with the highest key is the training's.

        If bars are only drawn when they are full, a validation's bar takes less time than the training's, even if it
        has more batches.
        """
        spent_s, total = (self.spent_s, self.total) if self._full else (0, 0)
        return not self.other, not self._full, not self.learned, spent_s, total, not self.falls, self.count, self.at

    @property
    def certain(self) -> bool:
        """Whether it is most likely the training's counter, and goes on."""
        return self.count >= _CERTAIN and not (self.other or self.learned or self._full)

    def note(self, step: int, epoch: float, *, by_epochs: bool, full: bool) -> None:
        """Remember progress, as a step of the whole training if its epoch is known."""
        if len(self.first) < 2 and step not in self.first:
            self.first.append(step)
        self.falls |= by_epochs or step < self._highest // 2
        self.step, self._highest = step, max(self._highest, step)
        self.epoch, self.count, self._full = epoch, self.count + 1, full
