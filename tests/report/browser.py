"""A headless Chromium, spoken to over its debugging pipe: no driver, no further dependency."""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select

LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, expected in zip(ends, (3, 4)):
    os.dup2(end, expected)
os.execvp(sys.argv[3], sys.argv[3:])
"""  # the browser reads from 3 and writes to 4
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class BrowserError(Exception):
    """What the browser answered instead of a value."""


class Browser:
    """One tab. `problems` collects console errors, exceptions and requests that left the page."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._number, self._pending, self._session = 0, b"", None
        self.showing: tuple[str, int, bool] | None = None  # address, width, dark
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(answer["error"])
                return answer["result"]

    def open(self, address: str, *, width=1400, height=900, dark=False, wait=True) -> None:
        self.showing = (address, width, dark)
        self.problems.clear()
        self.requests.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=address)
        if not wait:
            return
        self.wait_for("document.documentElement.dataset.ready === 'true'")

    def run(self, expression: str):
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_for(self, expression: str, *, seconds=20.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(BrowserError):  # between two pages there is nothing to ask
                if self.run(expression):
                    return
            time.sleep(0.05)
        raise BrowserError(f"never true: {expression}\n{self.problems}")

    def press(self, key: str, code: int) -> None:
        typed = {"text": "\r"} if key == "Enter" else {}
        event = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self, path: Path, *, whole=True) -> Path:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def _next(self) -> dict:
        while b"\0" not in self._pending:
            ready, _, _ = select([self._read], [], [], 30)
            assert ready, "the browser does not answer"
            received = os.read(self._read, 1 << 20)
            assert received, "the browser has gone"
            self._pending += received
        text, self._pending = self._pending.split(b"\0", 1)
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, params: dict) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@contextmanager
def chromium(profile: Path):
    """A running browser; it ends with the block."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    program = [find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
               "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-extensions",
               f"--user-data-dir={profile}", "--remote-debugging-pipe"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(to_read), str(from_write), *program],
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        running = Browser(to_write, from_read)
        yield running
        running.call("Browser.close")
    finally:
        os.close(to_write)
        os.close(from_read)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
