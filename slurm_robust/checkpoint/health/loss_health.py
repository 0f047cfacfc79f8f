"""Tells which checkpoints are healthy: loss and gradient norm were finite and in range until then and a while after.

Pure. A loss spike shows after the checkpoint that already contains its cause. So a checkpoint is *healthy* once
`settle_steps` steps after it were good; *unhealthy* if a bad spell lies in these steps, or ended shortly before the
checkpoint; and *unknown* until then. Unknown is not unhealthy. A loss is bad if it is NaN or infinite, or above
`factor` times the median of the last good losses (ByteRobust alerts at 5). The same holds for the gradient norm, except
that NaN or infinity counts only from the third step in a row on: dynamic loss scaling skips single steps that overflow,
by design.
"""

from __future__ import annotations

import math
import statistics

import msgspec

HEALTHY, UNHEALTHY, UNKNOWN = "healthy", "unhealthy", "unknown"


class HealthLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits between good and bad values.

    Attributes:
        factor: The multiple of the median of the last good values above which a value is bad.
        window: Number of good steps in the median; with fewer than a quarter of them, only values that are not finite
            are bad.
        settle_steps: Good steps after a checkpoint, and after the end of a spell, that make a checkpoint healthy.
        scaler_steps: The number of steps in a row from which on a gradient norm that is not finite is bad.
    """

    factor: float = 5.0
    window: int = 200
    settle_steps: int = 100
    scaler_steps: int = 3


class Point(msgspec.Struct, frozen=True):
    """Loss and gradient norm of a step; None if not recorded."""

    step: int
    loss: float | None = None
    grad_norm: float | None = None


class Spell(msgspec.Struct, frozen=True, kw_only=True):
    """Bad steps with fewer than `settle_steps` good ones between them."""

    first_step: int
    last_step: int
    why: str

    @property
    def not_finite(self) -> bool:
        """Return whether it began with a loss that was NaN or infinite."""
        return self.why.startswith(("loss nan", "loss inf", "loss -inf"))


class WentBack(msgspec.Struct, frozen=True, kw_only=True):
    """A rollback: `step` was repeated at `at_s`, seconds since the epoch. Later steps from before it do not count."""

    step: int
    at_s: float


class Trend(msgspec.Struct, kw_only=True):
    """The losses of a training so far; enough to continue after a restart.

    Attributes:
        began_step: The first step of the record without a long gap.
        seen_step: The last step.
        losses: The last good losses; `grad_norms` has the last good gradient norms.
        overflows: Steps in a row, up to now, whose gradient norm was not finite.
        spells: Bad spells on the way to the current step, in order.
        before: Bad spells that a rollback left behind; kept to know which batches to skip.
        turns: The rollbacks.
        told_at_s: When the last step was recorded, seconds since the epoch.
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
    """Batches for the data loader to skip, by the steps that read them, both included."""

    first_step: int
    last_step: int


_KEPT = 100


def observe(trend: Trend, point: Point, limits: HealthLimits, *, now_s: float) -> str:
    """Record one step, and return what is bad about it, empty if nothing is.

    A step that was recorded before means that training was rolled back. Steps may be left out, but after a gap of more
    than `settle_steps` the steps before it do not count.
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
    if step <= trend.began_step:
        # Training begins anew: the usual values are those of its later steps, and no first loss is as low.
        trend.losses, trend.grad_norms = [], []
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
    """Return (healthy, unhealthy or unknown, why) of a checkpoint of that step, written then (epoch seconds)."""
    if trend.began_step < 0 or step < trend.began_step - 1:
        return UNKNOWN, "no loss is recorded for it"
    if any(step >= turn.step and written_at_s < turn.at_s for turn in trend.turns):
        return UNKNOWN, "training was rolled back to before it"
    for spell in trend.spells:
        ended = spell.last_step + limits.settle_steps < step
        if not ended and spell.first_step <= step + limits.settle_steps:
            return UNHEALTHY, spell.why
    good = trend.seen_step - step
    if good < limits.settle_steps:
        return UNKNOWN, f"only {max(good, 0)} of {limits.settle_steps} steps after it are known"
    return HEALTHY, f"{good} good steps after it"


def undecided(trend: Trend, step: int, written_at_s: float, limits: HealthLimits) -> bool:
    """Return whether a checkpoint is not known to be healthy only because too few steps have followed so far."""
    turned = any(step >= turn.step and written_at_s < turn.at_s for turn in trend.turns)
    known = trend.began_step >= 0 and step >= trend.began_step - 1 and not turned
    return known and judge(trend, step, written_at_s, limits)[0] == UNKNOWN


def skip(trend: Trend, step: int, limits: HealthLimits) -> Skip | None:
    """Return the batches to skip if training continues from `step`: those of the next bad spell.

    They begin one step before the first bad step: a batch affects the loss of the next step, too. Overlapping spells of
    several attempts count as one. Returns None if no bad spell after `step` is known.
    """
    spells = [spell for spell in (*trend.before, *trend.spells) if spell.last_step > step]
    if not spells:
        return None
    spells.sort(key=lambda spell: spell.first_step)
    last = spells[0].last_step
    for spell in spells:
        if spell.first_step <= last + limits.settle_steps:
            last = max(last, spell.last_step)
    return Skip(max(spells[0].first_step - 1, step + 1), last)
