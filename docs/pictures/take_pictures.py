"""Takes the pictures of insight.md: a page each on a desk in light, and on a phone in dark.

    .venv/bin/python docs/pictures/take_pictures.py report=report.html incident=incident.html dashboard=http://127.0.0.1:9464/

Each NAME=PAGE (a file, or an address) gives NAME.png and NAME-phone.png in this folder: the beginning of the page, as
far as a reader of the document needs it, or of its section, where PAGE ends with `#SECTION`. Needs Chromium
(`scripts/setup --dev`). Take them of real runs, and say in the document which runs these were.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from browser import Browser, Page  # noqa: E402 (it stands in the tests' folder)

DESK_PX, PHONE_PX = (1000, 1500), (380, 1000)
"""Width, and the most height of the page that is shown."""
MARGIN_PX = 12


def main(pages: list[str]) -> int:
    """Take all of them; returns how many pages had an error in their console."""
    bad = 0
    with Browser() as browser:
        for given in pages:
            name, found, page = given.partition("=")
            if not found or not name.replace("-", "").isalnum():
                raise SystemExit(f"{given}: not NAME=PAGE; for example report=report.html")
            place, _, section = page.partition("#")
            url = place if place.startswith(("http://", "https://")) else Path(place).resolve().as_uri()
            for suffix, (width, height), dark in (("", DESK_PX, False), ("-phone", PHONE_PX, True)):
                tab = browser.open(url, width=width, height=900, dark=dark)
                path = HERE / f"{name}{suffix}.png"
                path.write_bytes(beginning(tab, section, width, height))
                bad += bool(tab.console_errors())
                print(f"{path}: {path.stat().st_size:,} bytes", *tab.console_errors())
                tab.close()
    return bad


def beginning(page: Page, section: str, width: int, most: int) -> bytes:
    """A PNG of the page, or from this section on, down to this height."""
    whole = int(page.evaluate("document.documentElement.scrollHeight"))
    where = f"document.getElementById({section!r}).getBoundingClientRect().top + scrollY"
    top = max(0, int(page.evaluate(where)) - MARGIN_PX) if section else 0
    clip = {"x": 0, "y": top, "width": width, "height": min(most, whole - top), "scale": 1}
    taken = page.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    return base64.b64decode(taken["data"])


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
