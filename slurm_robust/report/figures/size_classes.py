"""Classes of job sizes: powers of two, as Acme and Meta draw them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class SizeClass:
    """A class of sizes, from `low` to `high` nodes or GPUs; 0 to 0 for none or unknown."""

    low: int
    high: int

    @property
    def label(self) -> str:
        """The class as tables show it: `0`, `1`, `2`, `3–4`, `5–8` and so on."""
        return str(self.low) if self.low == self.high else f"{self.low}–{self.high}"


def size_class(count: int) -> SizeClass:
    """Return the class of so many nodes or GPUs."""
    if count <= 0:
        return SizeClass(0, 0)
    high = 1 << (count - 1).bit_length()
    return SizeClass(high // 2 + 1 if high > 1 else 1, high)
