"""Learns counters of a log that no shape reads: which number beside steady words counts the training's steps?

False progress would hide a hang, so the conditions are strict. Lines are alike if they only differ in their numbers. A
number in alike lines is learned once it has grown by an equal amount several times in a row, or by any amount if a word
beside it says that it counts batches or other work. A clock, a size, a percentage or an epoch is never learned.
Besides, each line that counts has to show that the training itself goes on, by a loss, or another metric of the
training, that no line before had: a monitor that prints while the training hangs has no new loss. Only a count of
batches (or of other work) towards a total needs no metric.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

from slurm_robust.supervise.watch.log_shapes import CounterReading, Counts

_STRIDES = 4
"""A number that counts work by its words is learned after it has grown so many times in a row."""
_STRIDES_WITHOUT_WORDS = 16
"""Any other number is learned after it has grown so many times in a row: ranks that print in turn have pids in turn."""
_MAX_KINDS = 64
"""The most kinds of lines that are remembered while no counter is known."""
_MAX_METRICS = 256
_MAX_NUMBERS = 40
"""A line with more numbers is a table or a dump."""
_MAX_NUMBER = 10**9
"""Larger numbers are clocks in seconds since the epoch."""
_MAX_NAME = 80

_METRICS = (
    *("loss", "ppl", "perplexity", "acc", "accuracy", "reward", "grad_norm", "grad norm", "gnorm", "nll", "mse", "mae"),
    *("wer", "cer", "bleu", "elbo", "auc", "f1", "entropy", "psnr", "iou", "dice", "lr", "learning rate"),
    *("learning_rate",),
)
"""Values that only a training that goes on computes anew. Throughput is not one: its average changes in a hang, too."""
_WORK = frozenset(
    {
        *("batch", "batches", "minibatch", "minibatches", "microbatch", "microbatches", "update", "updates", "sample"),
        *("samples", "example", "examples", "sequence", "sequences", "episode", "episodes", "timestep", "timesteps"),
        *("rollout", "rollouts", "it", "its"),
    }
)
_UNITS = frozenset(
    {
        *("s", "sec", "secs", "second", "seconds", "min", "minute", "minutes", "h", "hrs", "hour", "hours"),
        *("ms", "us", "ns"),
        *("kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib", "byte", "bytes", "w", "watt", "watts", "mhz"),
        *("ghz", "percent"),
        *("%", "°", "epoch", "epochs"),
    }
)
"""Words after numbers that count no work."""
_NO_WORK = _UNITS | {
    *("ep", "rank", "pid", "gpu", "cuda", "node", "worker", "process", "thread", "task", "time", "clock"),
    *("elapsed", "eta"),
    *("remaining", "mem", "memory", "alloc", "allocated", "reserved", "port", "seed", "version", "line", "size", "max"),
    *("total", "of", "/", "queue", "free", "used", "age", "since", "after", "every", "t", "rate", "norm", *_METRICS),
}
"""Words before a number that show that it does not count work."""
_LIKELY = (*_METRICS, "batch", "update", "sample", "example", "sequence", "episode", "timestep", "rollout")
_MONITOR = (
    *("heart", "alive", "watch", "monitor", "uptime", "wait", "retry", "retries", "attempt", "timeout", "time-out"),
    *("timed out", "stall", " ping", "poll", "health", " idle", "stuck", " hang", " hung", "packet", "no progress"),
    *("nvidia", " util", "temperature", " last ", "keep-alive", "elapsed, "),
)
"""Words of lines that something beside the training prints."""
_NUMBER = re.compile(r"\d[\d.,:/%+\-]*(?:e[-+]?\d+|[a-z]{1,3}\b)?|nan\b|inf\b")
_PLAIN = re.compile(r"(\d{1,10})(?:/\d{1,10})?[,.:/\-]?$")
_TOTAL = re.compile(r"\s{0,4}(?:/|of\b)\s{0,4}(\d{1,9})(?![\w.:%])")
_WORD = re.compile(r"[^\W\d_]+|[%°/]")
_LABEL = re.compile(r"\s*[\[(]?\d+[\])]?:?\s")
"""Matches a task or a pid, which srun, launchers and loggers put before a line."""
_MAX_LINE = 600
_LOSS = re.compile(r"loss[^\d\n]{0,16}?([-+]?\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+)")


@functools.cache
def _metric(word: str) -> re.Pattern[str]:
    """Return the pattern of a metric's value, which has decimals; `wer` does not match in `power`."""
    name = re.escape(word)
    return re.compile(rf"{name}(?<![a-z]{name})[^\d\n]{{0,16}}?([-+]?\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+)")


def _metrics(low: str) -> tuple[str, ...]:
    """Return the values of all metrics in a line."""
    present = [word for word in _METRICS if word in low]
    # `train_loss` and `dloss` are losses.
    return tuple(value for word in present for value in (_LOSS if word == "loss" else _metric(word)).findall(low))


@dataclass
class _Candidate:
    """One number of a kind of lines, while it is not known whether it is a counter."""

    highest: int = -1
    stride: int = 0
    grown: int = 0

    def see(self, number: int, *, by_any: bool) -> int:
        """Note the number; return how often in a row it has grown: by equal amounts, or `by_any` amount."""
        stride = number - self.highest
        if self.highest < 0 or number < self.highest:
            self.stride, self.grown = 0, 0
        elif stride > 0:
            self.grown = self.grown + 1 if by_any or stride == self.stride else 1
            self.stride = stride
        self.highest = number
        return self.grown


@dataclass
class _Kind:
    """Lines that only differ in their numbers."""

    candidates: dict[int, _Candidate] = field(default_factory=dict)
    learned: int | None = None
    seen: dict[tuple[str, ...], None] = field(default_factory=dict)
    """The metrics of its last lines. Metrics of hung ranks, printed in turn, are all among them."""

    def trains(self, metrics: tuple[str, ...]) -> bool:
        """Return whether these metrics are new."""
        new = bool(metrics) and bool(self.seen) and metrics not in self.seen
        self.seen.pop(metrics, None)
        self.seen[metrics] = None
        if len(self.seen) > _MAX_METRICS:
            del self.seen[next(iter(self.seen))]
        return new


@dataclass(frozen=True)
class _Number:
    """A number of a line that may count work. `work`: a word of the line says so."""

    place: int
    value: int
    total: int
    end: int
    work: bool


class LearnedCounters:
    """Learns the counters of lines that no shape reads."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def read(self, low: str) -> CounterReading | None:
        """Return the learned counter of a line in lower case, if it shows that the training goes on; else None."""
        if len(low) > _MAX_LINE or not any(word in low for word in _LIKELY):
            return None
        if any(word in f" {low} " for word in _MONITOR):
            return None
        words, numbers = _split(low)
        if not numbers:
            return None
        kind = self._kinds.get(words)
        if kind is None:
            if len(self._kinds) >= _MAX_KINDS:
                self._forget_one()
            kind = self._kinds[words] = _Kind()
        trains = kind.trains(_metrics(low))
        if kind.learned is None:
            self._learn(kind, numbers, trains=trains)
            return None
        number = next((n for n in numbers if n.place == kind.learned), None)
        if number is None or not (trains or (number.work and number.total)):
            return None
        total = str(number.total) if number.total else ""
        name = f"learned {words[:_MAX_NAME].strip()}/{total}"
        return CounterReading(name, number.value, number.total, counts=Counts.EPOCH, end=number.end, learned=True)

    def _learn(self, kind: _Kind, numbers: list[_Number], *, trains: bool) -> None:
        steady = []
        for number in numbers:
            known = kind.candidates.setdefault(number.place, _Candidate())
            if known.highest == number.value:
                continue
            if not (trains or (number.work and number.total)):
                known.grown = 0
            enough = _STRIDES if number.work or number.total else _STRIDES_WITHOUT_WORDS
            if known.see(number.value, by_any=number.work and trains) >= enough:
                steady.append(number)
        if steady:
            kind.learned = min(steady, key=lambda n: (not n.work, not n.total, n.place)).place

    def _forget_one(self) -> None:
        """Make room: drop the oldest kind without a learned counter, else the oldest."""
        del self._kinds[next((k for k, kind in self._kinds.items() if kind.learned is None), next(iter(self._kinds)))]


def _split(low: str) -> tuple[str, list[_Number]]:
    """Return the line without its numbers, and those of its numbers that may count work."""
    words, found, start = [], [], 0
    label = _LABEL.match(low)
    label_end = label.end() if label is not None and low[label.end() - 2] in ":])" else 0
    for place, match in enumerate(_NUMBER.finditer(low)):
        if place >= _MAX_NUMBERS:
            return "", []
        begin = match.start()
        if begin and (low[begin - 1].isalpha() or low[begin - 1] in "_."):
            continue  # a part of a name
        words.append(low[start:begin])
        start = match.end()
        plain = _PLAIN.match(match[0])
        if (
            plain is None
            or begin < label_end
            or (begin and low[begin - 1] in "-+:" and low[begin - 2 : begin - 1].isdigit())
        ):
            continue
        end = begin + plain.end(1)
        after = low[end : end + 32]
        total = _TOTAL.match(after)
        next_word = _WORD.match(after[total.end() if total else 0 :].removeprefix(" "))
        unit, names = next_word[0] if next_word else "", _name_before(low, begin)
        if unit in _UNITS or not _NO_WORK.isdisjoint(names) or int(plain[1]) >= _MAX_NUMBER:
            continue
        work = unit in _WORK or not _WORK.isdisjoint(names)
        found.append(_Number(place, int(plain[1]), int(total[1]) if total else 0, end, work))
    return "#".join([*words, low[start:]]), found


def _name_before(low: str, begin: int) -> list[str]:
    """Return the words right before a number, as its name: `step`, `time` in `step_time=12`."""
    text = low[max(0, begin - 24) : begin].rstrip(" :=#[('\"\t")
    return _WORD.findall(text[max(map(text.rfind, " \t|,;[(")) + 1 :])
