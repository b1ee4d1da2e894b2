"""One tab of a headless Chromium, driven by Playwright."""

import shutil
import time
from contextlib import contextmanager, suppress

from playwright.sync_api import Error, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
]  # fmt: skip


def find_browser() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """`problems` collects console errors and exceptions, `requests` every address asked for."""

    def __init__(self, page) -> None:
        self.page = page
        self.showing: tuple[str, int, bool] | None = None  # address, width, dark
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._note)
        page.on("request", lambda request: self.requests.append(request.url))

    def _note(self, message) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def open(self, address: str, *, width=1400, height=900, dark=False, wait=True) -> None:
        self.showing = (address, width, dark)
        self.problems.clear()
        self.requests.clear()
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self.page.goto(address)
        if wait:
            self.wait_for("document.documentElement.dataset.ready === 'true'")

    def run(self, expression: str):
        return self.page.evaluate(expression)

    def wait_for(self, expression: str, *, seconds=20.0) -> None:
        """Ask until it is true; Playwright's own waiting needs eval, which the page forbids."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(Error):  # between two pages there is nothing to ask
                if self.run(expression):
                    return
            self.page.wait_for_timeout(50)
        raise TimeoutError(f"never true: {expression}\n{self.problems}")

    def press(self, key: str) -> None:
        self.page.keyboard.press(key)


@contextmanager
def chromium():
    """A running browser; it ends with the block."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=find_browser(), args=QUIET)
        yield Browser(running.new_page())
        running.close()
