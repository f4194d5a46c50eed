"""Debian's Chromium, driven by Playwright, and pages of the playground in it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextlib.contextmanager
def checked_page(browser: Browser, url: str, script: str = "") -> Iterator[Page]:
    """An empty page. At the end: no script failed, nothing was refused, and no other server was asked.

    `script` runs at the beginning of each page.
    """
    with browser.new_context(permissions=["clipboard-read", "clipboard-write"]) as context:
        page = context.new_page()
        page.add_init_script(script)
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if "Security Policy" in message.text else None)
        page.on("request", lambda request: None if request.url.startswith(url) else faults.append(request.url))
        yield page
        assert faults == []
        assert page.evaluate("window.ran") is None


def address(url: str, **state: Any) -> str:
    return f"{url}/#{httpx.QueryParams(state)}"


def labels_of(page: Page, side: str = "#view-ask .labels") -> Any:
    return page.locator(f"{side} .label-text")
