"""Draws the stages of an incident, each beginning at the end of the stage before."""

from __future__ import annotations

from slurm_robust.core.text import duration
from slurm_robust.report.pages.incident_view import IncidentStage
from slurm_robust.report.pages.markup import Markup
from slurm_robust.report.pages.plots.axes import AxisScale, ticks
from slurm_robust.report.pages.plots.canvas import CHAR_PX, Canvas, fitted
from slurm_robust.report.pages.view import Unit

_LABEL_PX = 200


def draw_waterfall(stages: tuple[IncidentStage, ...], width: int, name: str) -> Markup:
    """Draw one bar for each stage, with its duration beside it; the axis has seconds since the first stamp."""
    wide = width > 600
    row_px, left = (26, _LABEL_PX) if wide else (42, 2)
    begin_s = min(stage.begin_s for stage in stages)
    whole_s = max(max(stage.end_s for stage in stages) - begin_s, 1e-3)
    canvas = Canvas(
        width, name=name, title="Stages of the incident", description="A bar for each stage; the table has the times."
    )
    scale = AxisScale(0, whole_s, left, width - 8)
    bottom = len(stages) * row_px + 2
    canvas.across(scale, ticks(0, whole_s, Unit.SECONDS, 7 if wide else 4), 0, bottom)
    for number, stage in enumerate(stages):
        top = number * row_px + (4 if wide else 21)
        begin, end = scale.px(stage.begin_s - begin_s), scale.px(stage.end_s - begin_s)
        said = duration(stage.end_s - stage.begin_s)
        end = max(end, begin + 2)
        hint = f"{stage.label}: {said}"
        canvas.rect((begin, top, end - begin, 16), class_="stage", hint=hint)
        if wide:
            canvas.text((left - 8, top + 13), fitted(stage.label, left - 10), anchor="end")
            room = len(said) * CHAR_PX + 8
            at, anchor = (end + 6, "start") if end + room < width else (begin - 6, "end")
            canvas.text((at, top + 13), said, anchor=anchor, class_="faint halo")
        else:
            canvas.text((2, top - 5), fitted(stage.label, width * 0.75))
            canvas.text((width - 2, top - 5), said, anchor="end", class_="faint")
    return canvas.render(bottom + 24)
