"""Builds HTML and SVG as text, in which every text from outside is escaped.

An element's children are escaped unless they are `Markup` already, so forgetting to escape is not possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from slurm_robust.core.text import shortened

MAX_TEXT_CHARS = 2000
"""The most characters of one text from outside: a longer name is cut, and ends with an ellipsis."""
_EMPTY = frozenset({"meta", "br", "rect", "line", "path", "circle", "use", "polygon"})
_LINE_BREAKS = {"\n": "⏎", "\r": "", "\t": " ", "\N{NO-BREAK SPACE}": " ", "\N{NARROW NO-BREAK SPACE}": " "}


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


def visible(raw: str, limit_chars: int = MAX_TEXT_CHARS) -> str:
    """Return the text with invisible marks shown: `⟨U+202E⟩` for a mark that turns the direction round."""
    if raw.isascii() and raw.isprintable():
        return shortened(raw, limit_chars)
    shown = (c if c.isprintable() else _LINE_BREAKS.get(c, f"⟨U+{ord(c):04X}⟩") for c in raw[: limit_chars + 1])
    return shortened("".join(shown), limit_chars)


def text(raw: str, limit_chars: int = MAX_TEXT_CHARS) -> Markup:
    """Return any text as text for HTML, SVG and quoted attributes alike."""
    return raw if isinstance(raw, Markup) else Markup(escape(visible(raw, limit_chars)))


def joined(parts: Iterable[str], between: str = "\n") -> Markup:
    """Parts one after the other, each escaped unless it is markup."""
    return Markup(between.join(map(text, parts)))


def element(tag: str, /, *children: str, **attributes: str | float | bool | None) -> Markup:
    """Return `<tag class="…">children</tag>`.

    Args:
        tag: The name of the element, never a text from outside.
        children: Texts, escaped unless they are markup.
        attributes: `class_` is `class`, `aria_label` is `aria-label`; None and False leave it out, True has no value.
    """
    words = [tag]
    for key, value in attributes.items():
        name = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            words.append(f'{name}="{number(value) if isinstance(value, (int, float)) else text(value)}"')
    if tag in _EMPTY:
        return Markup(f"<{' '.join(words)}>" if tag in ("meta", "br") else f"<{' '.join(words)}/>")
    return Markup(f"<{' '.join(words)}>{''.join(map(text, children))}</{tag}>")


def number(value: float) -> str:
    """Shortest way to write a coordinate to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
