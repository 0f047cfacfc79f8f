"""A real headless Chromium for tests, spoken to by the DevTools protocol over a pipe: no port, and no library.

with Browser() as browser:
    page = browser.open("http://127.0.0.1:9464/", width=360, height=740, dark=True)
    assert page.evaluate("document.title") == "…"
    assert page.console_errors() == []
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from helpers import slurm_required

START_S = 60.0
"""A start takes half a second; a machine with too much to do takes longer."""
CALL_S = 30.0
PHONE_PX = 600
"""Narrower than this is a phone: touch, and its own idea of a viewport."""
FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu"),
    *("--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "--metrics-recording-only", "--no-proxy-server"),
    *("--disable-breakpad", "--disable-crash-reporter", "--disable-default-apps", "--force-color-profile=srgb"),
    # The tests run as root, for which Chromium has no sandbox; it only ever loads what they serve.
    "--no-sandbox",
)
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class BrowserError(AssertionError):
    """The browser did not do what it was told, or not in time."""


class Page:
    """One open tab."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser, self._target, self._session = browser, target, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, for what has no method here."""
        return self._browser.call(method, session=self._session, **params)

    def go(self, url: str, timeout_s: float = CALL_S) -> None:
        """Load this address and wait until it has been loaded."""
        loads = len(self._events("Page.loadEventFired"))
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise BrowserError(f"{url}: {answer['errorText']}")
        self._browser.wait(lambda: len(self._events("Page.loadEventFired")) > loads, timeout_s, f"{url} is loaded")

    def reload(self, timeout_s: float = CALL_S) -> None:
        """Load the page again."""
        loads = len(self._events("Page.loadEventFired"))
        self.call("Page.reload")
        self._browser.wait(lambda: len(self._events("Page.loadEventFired")) > loads, timeout_s, "the page is reloaded")

    def evaluate(self, js: str) -> Any:
        """The value of this JavaScript expression; of a promise, what it resolves to."""
        answer = self.call("Runtime.evaluate", expression=js, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait_for(self, js: str, timeout_s: float = CALL_S) -> Any:
        """Wait until this expression is true, and return its value."""
        return self._browser.wait(lambda: self.evaluate(js), timeout_s, js)

    def console_errors(self) -> list[str]:
        """Everything that the console shows in red: exceptions, failed loads, refused by the content policy."""
        self.evaluate("1")  # what was logged before is here by then
        found = [
            event["exceptionDetails"].get("exception", {}).get("description") or event["exceptionDetails"]["text"]
            for event in self._events("Runtime.exceptionThrown")
        ]
        found += [
            " ".join(str(a.get("value", a.get("description", ""))) for a in event["args"])
            for event in self._events("Runtime.consoleAPICalled")
            if event["type"] in ("error", "assert")
        ]
        entries = (event["entry"] for event in self._events("Log.entryAdded"))
        return found + [f"{e['text']} {e.get('url', '')}".strip() for e in entries if e["level"] == "error"]

    def screenshot(self, path: Path | str, *, whole: bool = True) -> Path:
        """A PNG of the page; `whole`: also what one has to scroll to."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        Path(path).write_bytes(base64.b64decode(answer["data"]))
        return Path(path)

    def press(self, key: str) -> None:
        """Press and release a key: one of `KEYS`."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def tree(self) -> list[tuple[str, str]]:
        """What a screen reader is told: (role, name) of everything, in reading order."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (str(n.get("role", {}).get("value", "")), str(n.get("name", {}).get("value", "")))
            for n in nodes
            if not n.get("ignored")
        ]

    def close(self) -> None:
        """Close the tab."""
        self._browser.call("Target.closeTarget", targetId=self._target)

    def _events(self, name: str) -> list[dict[str, Any]]:
        return self._browser.events(self._session, name)

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}


class Browser:
    """A Chromium with a folder of its own. It ends with this context, and also if the test is killed: its pipe closes.

    Where there is none, the test is skipped, or fails where Slurm is required, too.
    """

    def __enter__(self) -> Browser:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if program is None:
            sentence = "Chromium is missing: scripts/setup --dev installs it (apt-get install chromium)"
            if slurm_required():
                pytest.fail(sentence)
            pytest.skip(sentence)
        self._folder = tempfile.mkdtemp(prefix="srobust-browser-")
        theirs_in, self._in = os.pipe()
        self._out, theirs_out = os.pipe()
        # Chromium reads file descriptor 3 and writes to 4, whatever they are called here.
        line = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        argv = ["bash", "-c", line, program, *FLAGS, f"--user-data-dir={self._folder}", "about:blank"]
        self._log = (Path(self._folder) / "stderr").open("wb")
        self._process = subprocess.Popen(
            argv,
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, "HOME": self._folder},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._changed = threading.Condition()
        self._answers: dict[int, dict[str, Any]] = {}
        self._events: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        self._number, self._ended = 0, False
        self._reader = threading.Thread(target=self._read, name="browser", daemon=True)
        self._reader.start()
        try:
            self.call("Browser.getVersion", timeout_s=START_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def open(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False, scripts: bool = True) -> Page:
        """Load this address in a new tab of this size."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, target, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        phone = width < PHONE_PX
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        page.call("Emulation.setDeviceMetricsOverride", **size)
        page.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        page.go(url)
        return page

    def call(self, method: str, *, session: str = "", timeout_s: float = CALL_S, **params: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        rest = json.dumps(message).encode() + b"\0"
        while rest:
            rest = rest[os.write(self._in, rest) :]
        answer = self.wait(lambda: self._answers.pop(number, None), timeout_s, method)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error'].get('message')}")
        result: dict[str, Any] = answer.get("result", {})
        return result

    def wait(self, predicate: Callable[[], Any], timeout_s: float, what: str) -> Any:
        """Wait until `predicate` gives something true."""
        deadline_s = time.monotonic() + timeout_s
        while not (found := predicate()):
            if self._ended:
                raise BrowserError(f"Chromium ended: {self._last_words()}")
            if time.monotonic() > deadline_s:
                raise BrowserError(f"not in {timeout_s:g} s: {what}")
            with self._changed:
                self._changed.wait(0.02)
        return found

    def events(self, session: str, name: str) -> list[dict[str, Any]]:
        """The events of this name that a tab has sent so far."""
        return list(self._events.get((session, name), ()))

    def _read(self) -> None:
        rest = b""
        while piece := os.read(self._out, 1 << 20):
            *whole, rest = (rest + piece).split(b"\0")
            for text in whole:
                message = json.loads(text)
                if "id" in message:
                    self._answers[message["id"]] = message
                elif not message["method"].startswith("Network."):
                    self._events[message.get("sessionId", ""), message["method"]].append(message["params"])
            with self._changed:
                self._changed.notify_all()
        self._ended = True

    def _last_words(self) -> str:
        return (Path(self._folder) / "stderr").read_text(errors="replace")[-1000:]

    def _end(self) -> None:
        os.close(self._in)  # ends it
        try:
            self._process.wait(3)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Its zygotes and renderers are in the same session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        self._reader.join(10)
        os.close(self._out)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)
