"""A real browser for tests: Debian's chromium, headless, driven over its DevTools pipe (no driver, no WebSocket).

Messages are JSON objects that end with a NUL byte, on the descriptors 3 (to the browser) and 4 (from it).
https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from .ready import readable

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ANSWER_S_MAX = 60
EXEC = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
for end, wanted in zip(ends, (3, 4)):
    os.dup2(end, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Puts the ends of two pipes on the descriptors 3 and 4, and becomes the browser."""
KEYS = {  # name -> (code, key code, text)
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Escape": ("Escape", 27, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "/": ("Slash", 191, "/"),
    " ": ("Space", 32, " "),
}


class ScriptFailed(Exception):
    """The page's answer to :meth:`Browser.evaluate` was an exception."""


class Browser:
    """One page.  ``console``: what it has written to the browser's console, and its uncaught errors."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        command = [CHROMIUM, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        command += ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"]
        command += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", EXEC, str(to_read), str(to_write), *command],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._ids = itertools.count(1)
        self._received = b""
        self._session = ""
        self.console: list[str] = []
        pages = self.call("Target.getTargets")["targetInfos"]
        page = next(one for one in pages if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = ""
        try:
            self.call("Browser.close")
        except EOFError:
            pass
        self._process.wait(ANSWER_S_MAX)
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer.get('error')}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            assert readable(self._in, ANSWER_S_MAX), f"the browser has not answered for {ANSWER_S_MAX} s"
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise EOFError
            self._received += piece
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.console.append(json.dumps(parameters["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded":
            self.console.append(f"{parameters['entry']['level']}: {parameters['entry']['text']}")

    # ---- what a person does and sees

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def evaluate(self, script: str) -> Any:
        """The value of an expression of the page; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise ScriptFailed(found["exceptionDetails"].get("exception", {}).get("description", ""))
        return found["result"].get("value")

    def wait(self, script: str, what: str = "", seconds_max: float = 60) -> None:
        """Wait until an expression of the page is true; what is not there yet (a TypeError) is not true."""
        deadline = time.monotonic() + seconds_max
        while not self.is_true(script):
            if time.monotonic() > deadline:
                text = self.evaluate("document.body.innerText")
                raise AssertionError(f"not within {seconds_max} s: {what or script}\n{text}\n{self.console}")
            self.evaluate("new Promise((resolve) => setTimeout(resolve, 50))")

    def is_true(self, script: str) -> bool:
        try:
            return bool(self.evaluate(f"Boolean({script})"))
        except ScriptFailed as error:
            if "TypeError" not in str(error):
                raise
            return False

    def text(self) -> str:
        found: str = self.evaluate("document.body.innerText")
        return found

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key of KEYS, as a person does."""
        code, number, text = KEYS[key]
        named = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def resize(self, width: int, height: int) -> None:
        """The size of the window in CSS pixels, as a phone has it when it is narrow."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=width < 600
        )

    def prefer(self, colours: str) -> None:
        """What the system prefers: "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])

    def screenshot(self, path: Path) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        path.write_bytes(base64.b64decode(shot["data"]))
