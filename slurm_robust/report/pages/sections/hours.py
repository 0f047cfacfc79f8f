"""Names the hours that a section counts: GPU hours, or node hours if the GPUs are not known."""

from __future__ import annotations

from slurm_robust.report.figures.trainings import GPU
from slurm_robust.report.pages.view import TableColumn, Unit


def hours_unit(unit: str) -> Unit:
    """Return the unit of hours by the figures' word for it."""
    return Unit.GPU_HOURS if unit == GPU else Unit.NODE_HOURS


def hours_column(key: str, title: str, unit: str) -> TableColumn:
    """Return the column `lost, GPU hours`."""
    return TableColumn(key, f"{title}, {'GPU' if unit == GPU else 'node'} hours", hours_unit(unit))
