"""Which checkpoints are healthy: was loss, was gradient norm, finite and in range, up to them and for a while after?

Pure. A loss spike is seen after the checkpoint that already carries its cause. So a checkpoint is *healthy* once so
many steps after it were good; *unhealthy* where something bad happened in them, or had not ended well before it; and
*unknown* until then. Unknown is not unhealthy.

Bad is a loss that is NaN or infinite, or above `factor` times the median of the last good ones (ByteRobust alerts at
5); the same of the gradient norm, for which a NaN or infinity counts only from the third step in a row on: dynamic loss
scaling skips single steps in which it overflows, and means to.
"""

from __future__ import annotations

import math
import statistics

import msgspec

HEALTHY, UNHEALTHY, UNKNOWN = "healthy", "unhealthy", "unknown"


class HealthLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What is in range.

    Attributes:
        factor: Times the median of the last good ones; above is bad.
        window: Good steps that the median is of; with fewer than a quarter of them only what is not finite is bad.
        settle_steps: Good steps after a checkpoint, and after the end of a spell, that make a checkpoint healthy.
        scaler_steps: A gradient norm that is not finite is bad from so many steps in a row on.
    """

    factor: float = 5.0
    window: int = 200
    settle_steps: int = 100
    scaler_steps: int = 3


class Point(msgspec.Struct, frozen=True):
    """What a step told; None where it told nothing of it."""

    step: int
    loss: float | None = None
    grad_norm: float | None = None


class Spell(msgspec.Struct, frozen=True, kw_only=True):
    """Bad steps with fewer than `settle_steps` good ones between them."""

    first_step: int
    last_step: int
    why: str


class WentBack(msgspec.Struct, frozen=True, kw_only=True):
    """Training went back: `step` was done again at `at_s`, seconds since the epoch. What was later is of no account."""

    step: int
    at_s: float


class Trend(msgspec.Struct, kw_only=True):
    """What is known of a training so far, enough to go on from after a restart.

    Attributes:
        began_step: The first step since when no longer stretch of steps is missing.
        seen_step: The last.
        losses: The last good ones; `grad_norms` the same.
        overflows: Steps in a row, up to now, whose gradient norm was not finite.
        spells: Bad ones of the steps that led to where training is, in order.
        before: Those that training went back from; kept for those who ask what to skip.
        turns: When it went back.
        told_at_s: When the last step was told, seconds since the epoch.
    """

    began_step: int = -1
    seen_step: int = -1
    losses: list[float] = []
    grad_norms: list[float] = []
    overflows: int = 0
    spells: list[Spell] = []
    before: list[Spell] = []
    turns: list[WentBack] = []
    told_at_s: float = 0.0


class Skip(msgspec.Struct, frozen=True):
    """Batches for the data loader to leave out, by the steps that read them, both included."""

    first_step: int
    last_step: int


_KEPT = 100


def observe(trend: Trend, point: Point, limits: HealthLimits, *, now_s: float) -> str:
    """Take in one step; what is bad about it, empty where nothing is.

    A step that was seen before tells that training went back. Not every step need be told, but after a gap of more
    than `settle_steps` nothing is known of what was before.
    """
    if trend.began_step < 0 or point.step - trend.seen_step > limits.settle_steps:
        trend.began_step = point.step
    elif point.step <= trend.seen_step:
        _go_back(trend, point.step, now_s)
    trend.seen_step, trend.told_at_s = point.step, now_s
    why = _bad(trend, point, limits)
    if why:
        last = trend.spells[-1] if trend.spells else None
        if last is not None and point.step - last.last_step <= limits.settle_steps:
            trend.spells[-1] = Spell(first_step=last.first_step, last_step=point.step, why=last.why)
        else:
            trend.spells = [*trend.spells, Spell(first_step=point.step, last_step=point.step, why=why)][-_KEPT:]
        return why
    for value, kept in ((point.loss, trend.losses), (point.grad_norm, trend.grad_norms)):
        if value is not None and math.isfinite(value):
            kept.append(value)
            del kept[: -limits.window]
    return ""


def _go_back(trend: Trend, step: int, now_s: float) -> None:
    given_up = [spell for spell in trend.spells if spell.last_step >= step]
    trend.before = [*trend.before, *given_up][-_KEPT:]
    trend.spells = [
        msgspec.structs.replace(spell, last_step=min(spell.last_step, step - 1))
        for spell in trend.spells
        if spell.first_step < step
    ]
    trend.turns = [*trend.turns, WentBack(step=step, at_s=now_s)][-_KEPT:]
    trend.began_step, trend.overflows = min(trend.began_step, step), 0


def _bad(trend: Trend, point: Point, limits: HealthLimits) -> str:
    overflow = point.grad_norm is not None and not math.isfinite(point.grad_norm)
    trend.overflows = trend.overflows + 1 if overflow else 0
    if point.loss is not None and not math.isfinite(point.loss):
        return f"loss {point.loss} at step {point.step}"
    if trend.overflows >= limits.scaler_steps:
        return f"gradient norm {point.grad_norm} in {trend.overflows} steps in a row up to {point.step}"
    for name, value, kept in (("loss", point.loss, trend.losses), ("gradient norm", point.grad_norm, trend.grad_norms)):
        if value is None or not math.isfinite(value) or len(kept) * 4 < limits.window:
            continue
        usual = statistics.median(kept)
        if usual > 0 and value > limits.factor * usual:
            return f"{name} {value:.4g} at step {point.step}, {value / usual:.1f} times the usual {usual:.4g}"
    return ""


def judge(trend: Trend, step: int, written_at_s: float, limits: HealthLimits) -> tuple[str, str]:
    """(healthy, unhealthy or unknown, why) of a checkpoint.

    Args:
        trend: What is known.
        step: The last step that the checkpoint includes.
        written_at_s: When it was written, seconds since the epoch.
        limits: What is in range.
    """
    if trend.began_step < 0 or step < trend.began_step - 1:
        return UNKNOWN, "nobody told its loss"
    if any(step >= turn.step and written_at_s < turn.at_s for turn in trend.turns):
        return UNKNOWN, "training went back to before it"
    for spell in trend.spells:
        ended = spell.last_step + limits.settle_steps < step
        if not ended and spell.first_step <= step + limits.settle_steps:
            return UNHEALTHY, spell.why
    good = trend.seen_step - step
    if good < limits.settle_steps:
        return UNKNOWN, f"only {max(good, 0)} of {limits.settle_steps} steps after it are known"
    return HEALTHY, f"{good} good steps after it"


def undecided(trend: Trend, step: int, written_at_s: float, limits: HealthLimits) -> bool:
    """Whether a checkpoint is not known to be healthy for no other reason than that too few steps followed so far."""
    turned = any(step >= turn.step and written_at_s < turn.at_s for turn in trend.turns)
    known = trend.began_step >= 0 and step >= trend.began_step - 1 and not turned
    return known and judge(trend, step, written_at_s, limits)[0] == UNKNOWN


def skip(trend: Trend, step: int, limits: HealthLimits) -> Skip | None:
    """What the data loader is to leave out when training goes on from `step`: the batches of the next bad spell.

    From the step before its first bad one on: a batch shows in the loss of the step after it, too. Spells of several
    tries that lie where each other do count as one. None where nothing bad is known after `step`.
    """
    spells = sorted((spell for spell in (*trend.before, *trend.spells) if spell.last_step > step), key=_first_step)
    if not spells:
        return None
    last = spells[0].last_step
    for spell in spells:
        if spell.first_step <= last + limits.settle_steps:
            last = max(last, spell.last_step)
    return Skip(max(spells[0].first_step - 1, step + 1), last)


def _first_step(spell: Spell) -> int:
    return spell.first_step
