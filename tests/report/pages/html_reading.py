"""Reads a page as a strict parser: what is not closed, or stands twice, is an error."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = frozenset({"meta", "br"})


class PageReader(HTMLParser):
    """Tags with their attributes, ids, headings, and the text outside of style and script."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.headings: list[int] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == [], f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self._note(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that closes itself."""
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        """It must be the last one opened."""
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Collect text that people see."""
        if not {"style", "script"} & set(self._open):
            self.text += data

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert len(found) == len(attrs), f"an attribute twice in <{tag}>"
        self.tags.append((tag, found))
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.headings.append(int(tag[1]))

    def check(self) -> PageReader:
        """What every page of ours keeps: nothing from elsewhere, one main, headings in order, names that are there."""
        assert len(self.ids) == len(set(self.ids)), "an id twice"
        assert [tag for tag, _ in self.tags].count("main") == 1
        assert self.headings[0] == 1
        assert self.headings.count(1) == 1
        steps = zip(self.headings, self.headings[1:], strict=False)
        assert all(after <= before + 1 for before, after in steps), self.headings
        for tag, attrs in self.tags:
            assert not any(name.startswith("on") for name in attrs), (tag, attrs)
            assert "style" not in attrs, "the content policy would refuse it"
            assert "src" not in attrs, (tag, attrs)
            href = attrs.get("href") or "#"
            assert href.startswith(("#", "./")), href
            assert href[1:] in self.ids or not href.startswith("#") or href == "#", href
            for name in ("aria-labelledby",):
                assert all(word in self.ids for word in (attrs.get(name) or "").split()), (tag, attrs)
        assert [tag for tag, _ in self.tags].count("script") == 1
        return self
