"""Figures that others have published of their clusters, for the columns beside one's own.

A figure is here only if the same quantity is meant; `note` says how its definition differs.
"""

from __future__ import annotations

from dataclasses import dataclass

ACME = "Acme (NSDI 2024, arXiv 2403.07648)"
META = "Meta RSC"
BYTEROBUST = "ByteRobust (SOSP 2025, arXiv 2509.16293)"


@dataclass(frozen=True)
class PublishedFigure:
    """One published value.

    Attributes:
        quantity: The name of the quantity, which the site's own figures have, too.
        note: What readers must know before they compare.
    """

    quantity: str
    value: float
    unit: str
    source: str
    note: str = ""


PUBLISHED: tuple[PublishedFigure, ...] = (
    PublishedFigure("failed_share", 0.429, "of jobs with GPUs", ACME, "Seren; the paper says about 0.40"),
    PublishedFigure("failed_share", 0.397, "of jobs with GPUs", ACME, "Kalos"),
    PublishedFigure("infrastructure_share_of_failures", 0.11, "of failures", ACME),
    PublishedFigure("infrastructure_share_of_lost_gpu_time", 0.82, "of lost GPU time", ACME),
    PublishedFigure("failures_per_1000_node_days", 6.50, "per 1,000 node-days", META, "the first of two clusters"),
    PublishedFigure("failures_per_1000_node_days", 2.34, "per 1,000 node-days", META, "the second of two clusters"),
    PublishedFigure("ettr", 0.97, "of time", BYTEROBUST, "one training on 9,600 GPUs, three months"),
)


def published(quantity: str) -> tuple[PublishedFigure, ...]:
    """Return the values that others have published of this quantity."""
    return tuple(figure for figure in PUBLISHED if figure.quantity == quantity)
