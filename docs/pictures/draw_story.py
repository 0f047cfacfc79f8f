"""Draws story.svg, the timeline of one hang, from the times of a real run in story.json.

    python docs/pictures/draw_story.py

Standard library only. A test runs it and compares its output with the committed picture.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WIDTH, LEFT, RIGHT = 900, 132, 22
BEGIN_S, END_S = -3.0, 35.0
LABELS_TOP, LABEL_HEIGHT = 68, 19
LANE_HEIGHT, BAR_HEIGHT = 34, 24
CHARACTER_WIDTH = 6.7
"""Of the labels' 12 px font, on the safe side."""

# Class of a bar → its colours on a light and on a dark card: fill, text.
PALETTE = {
    "training": (("#2da44e", "#ffffff"), ("#238636", "#ffffff")),
    "waiting": (("#ffe2a8", "#4d2d00"), ("#5c4813", "#ffe9b8")),
    "hung": (("#cf222e", "#ffffff"), ("#da3633", "#ffffff")),
    "out": (("#57606a", "#ffffff"), ("#484f58", "#f0f6fc")),
    "seat": (("#0969da", "#ffffff"), ("#1f6feb", "#ffffff")),
    "standby": (("#cfe6ff", "#0a3069"), ("#17365d", "#cfe6ff")),
    "starting": (("#e4d7fb", "#3b1f6b"), ("#3f2d66", "#eadcff")),
    "idle": (("#eaeef2", "#424a53"), ("#262c36", "#b6bfc9")),
}
CARD = (("#ffffff", "#d0d7de", "#1f2328", "#59636e"), ("#0d1117", "#3d444d", "#f0f6fc", "#9198a1"))
"""Background, border, text and faint text, light and dark."""


@dataclass(frozen=True)
class Mark:
    """A moment: a line through all lanes, with its label above."""

    at_s: float
    label: str

    @property
    def text(self) -> str:
        """What is written beside the line."""
        return f"{self.at_s:.1f} s  {self.label}"


def x_of(at_s: float) -> float:
    """Where a moment is drawn."""
    return round(LEFT + (at_s - BEGIN_S) * (WIDTH - LEFT - RIGHT) / (END_S - BEGIN_S), 1)


def marks_of(story: dict[str, Any]) -> list[Mark]:
    """The moments with labels, in order of time."""
    at, steps = story["incident_s"], story["steps"]
    return [
        Mark(at["fault"], f"fault: a dead mount after step {steps['last']}"),
        Mark(at["suspected"], "suspected"),
        Mark(at["captured"], "captured: stacks of all ranks"),
        Mark(at["localised"], "localised: rank 2 on n3"),
        Mark(at["decided"], "decided: requeue without n3"),
        Mark(at["stopped"], "stopped"),
        Mark(at["accepted"], "accepted: n3 in quarantine, seat reserved"),
        Mark(story["slurm_s"]["drained"], "n3 drained: XID 79"),
        Mark(at["running"], "running again"),
        Mark(at["checkpoint_loaded"], "checkpoint loaded"),
        Mark(at["first_new_step"], f"first step: {steps['first_new']}"),
    ]


def rows_of(marks: list[Mark]) -> list[tuple[int, bool]]:
    """Each mark's row of labels, and whether its text is left of its line; no line crosses a label."""
    ends: list[float] = []
    found = []
    for mark in marks:
        x, width = x_of(mark.at_s), len(mark.text) * CHARACTER_WIDTH + 12
        row = len(ends)
        while row > 0 and ends[row - 1] < x:
            row -= 1
        leftwards = x + width > WIDTH - RIGHT
        if leftwards and row < len(ends) and ends[row] > x - width:
            row = len(ends)
        ends[row:] = [x + (4 if leftwards else width)]
        found.append((row, leftwards))
    return found


def lanes_of(story: dict[str, Any]) -> list[tuple[str, str, list[tuple[str, float, float, str]]]]:
    """Name and role of each lane, and its bars: class, begin, end, text."""
    at, slurm, nodes, steps = story["incident_s"], story["slurm_s"], story["nodes"], story["steps"]
    back = [
        ("starting", at["running"], at["first_new_step"], f"starts, loads step {steps['checkpoint']}"),
        ("training", at["first_new_step"], END_S, "trains"),
    ]
    lanes = {
        name: (
            f"rank {rank}",
            [
                ("training", BEGIN_S, at["fault"], "trains"),
                ("waiting", at["fault"], at["stopped"], "waits for rank 2"),
                ("idle", at["stopped"], slurm["seat_reserved"], ""),
                ("seat", slurm["seat_reserved"], at["running"], "seat"),
                *back,
            ],
        )
        for name, rank in nodes["healthy"].items()
    }
    for name, rank in nodes["hung"].items():
        lanes[name] = (
            f"rank {rank}",
            [
                ("training", BEGIN_S, at["fault"], "trains"),
                ("hung", at["fault"], at["stopped"], "hangs"),
                ("idle", at["stopped"], slurm["quarantined"], ""),
                ("out", slurm["quarantined"], END_S, "quarantine, then drained: nothing starts here any more"),
            ],
        )
    lanes[nodes["standby"]] = (
        "standby",
        [
            ("standby", BEGIN_S, slurm["seat_reserved"], "standby: reserved, checked, idle"),
            ("seat", slurm["seat_reserved"], at["running"], "seat"),
            *back,
        ],
    )
    lanes[nodes["spare"]] = (
        "idle",
        [
            ("idle", BEGIN_S, slurm["standby_refilled"], "idle"),
            ("standby", slurm["standby_refilled"], END_S, "the new standby"),
        ],
    )
    return [(name, *lanes[name]) for name in sorted(lanes)]


def styles() -> str:
    """Two sets of colours; the card has its own background, so that either is readable on any page."""

    def rules(which: int) -> str:
        card, border, text, faint = CARD[which]
        lines = [
            f".card{{fill:{card};stroke:{border}}} text{{fill:{text}}} .faint{{fill:{faint}}}",
            f".grid{{stroke:{border}}} .mark{{stroke:{text};stroke-opacity:.55}} .dot{{fill:{text}}}",
        ]
        for name, colours in PALETTE.items():
            fill, ink = colours[which]
            lines.append(f".{name}{{fill:{fill}}} text.on-{name}{{fill:{ink}}}")
        return "\n".join(lines)

    fonts = (
        "text{font:12px -apple-system,'Segoe UI','Noto Sans','DejaVu Sans',Helvetica,Arial,sans-serif}"
        " text.title{font-size:15px;font-weight:600} text.node{font-weight:600} text.small{font-size:11px}"
    )
    return f"<style>\n{fonts}\n{rules(0)}\n@media (prefers-color-scheme: dark){{\n{rules(1)}\n}}\n</style>"


def draw(story: dict[str, Any]) -> str:
    """The whole picture."""
    marks = marks_of(story)
    rows, lanes = rows_of(marks), lanes_of(story)
    lanes_top = LABELS_TOP + LABEL_HEIGHT * (1 + max(row for row, _ in rows)) + 10
    bottom = lanes_top + LANE_HEIGHT * len(lanes)
    height = bottom + 56
    seconds = story["incident_s"]["first_new_step"]
    title = f"One hang: {seconds:.1f} s from the fault to the first step after it, with nobody awake"
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        styles(),
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="title" x="16" y="27">{escape(title)}</text>',
        f'<text class="faint" x="16" y="46">{escape(source(story))}</text>',
    ]
    for second in range(0, int(END_S) + 1, 5):
        x = x_of(second)
        out.append(f'<line class="grid" x1="{x}" y1="{lanes_top}" x2="{x}" y2="{bottom + 5}" stroke-dasharray="2 3"/>')
        out.append(f'<text class="faint" x="{x}" y="{bottom + 20}" text-anchor="middle">{second} s</text>')
    texts = []
    for number, (name, role, bars) in enumerate(lanes):
        y = lanes_top + number * LANE_HEIGHT
        middle = y + LANE_HEIGHT / 2 + 4
        out.append(f'<text class="node" x="16" y="{middle:g}">{name}</text>')
        out.append(f'<text class="faint" x="44" y="{middle:g}">{role}</text>')
        for kind, begin_s, end_s, text in bars:
            x, width = x_of(begin_s), round(x_of(end_s) - x_of(begin_s), 1)
            out.append(
                f'<rect class="{kind}" x="{x}" y="{y + (LANE_HEIGHT - BAR_HEIGHT) // 2}" width="{width}" '
                f'height="{BAR_HEIGHT}"/>'
            )
            texts.append(
                f'<text class="on-{kind}" x="{round(x + width / 2, 1)}" y="{middle:g}" '
                f'text-anchor="middle">{escape(text)}</text>'
            )
    for mark, (row, leftwards) in zip(marks, rows, strict=True):
        x, y = x_of(mark.at_s), LABELS_TOP + row * LABEL_HEIGHT
        out.append(f'<line class="mark" x1="{x}" y1="{y}" x2="{x}" y2="{bottom}" stroke-width="0.8"/>')
        out.append(f'<circle class="dot" cx="{x}" cy="{y}" r="2.5"/>')
        anchor, text_x = ("end", x - 6) if leftwards else ("start", x + 6)
        out.append(f'<text x="{round(text_x, 1)}" y="{y + 4}" text-anchor="{anchor}">{escape(mark.text)}</text>')
    out += texts  # above the lines
    foot = "Seconds since training last moved. Seat: the reservation that holds a requeued job's nodes."
    out.append(f'<text class="faint small" x="16" y="{height - 14}">{escape(foot)}</text>')
    return "\n".join([*out, "</svg>", ""])


def source(story: dict[str, Any]) -> str:
    """Where the times come from."""
    return f"{story['run']} on {story['date']}, Slurm {story['slurm']}: {story['machine']}"


def main() -> None:
    """Write story.svg beside this file."""
    story = json.loads((HERE / "story.json").read_text(encoding="utf-8"))
    (HERE / "story.svg").write_text(draw(story), encoding="utf-8")


if __name__ == "__main__":
    main()
