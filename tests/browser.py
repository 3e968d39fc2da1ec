"""Headless Chromium for tests of drawings; tests are skipped without it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def chromium(profile: Path) -> Iterator[Any]:
    """Yield a window with logs; ``profile`` is an empty folder."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (browser and driver):
        pytest.skip("no chromium and chromedriver: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (
        *("headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-sync"),
        *("disable-background-networking", "disable-component-update", "disable-dev-shm-usage"),
        *("hide-scrollbars", f"user-data-dir={profile}"),
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    window = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    window.get("about:blank")
    yield window
    window.quit()


def cleared(window: Any) -> Any:
    """Return the window as it was at its start, for the tests of another file."""
    window.get("about:blank")
    window.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    window.get_log("performance")
    window.get_log("browser")
    return window


def visit(window: Any, path: Path, content: str, fragment: str = "") -> list[str]:
    """Write and open a document; return the addresses that it requested."""
    path.write_text(content, encoding="utf-8", newline="")
    window.get_log("performance")
    window.get_log("browser")
    window.get("about:blank")
    window.get(path.as_uri() + fragment)
    messages = [json.loads(row["message"])["message"] for row in window.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    # the start page of the browser may still be loading
    return [one["request"]["url"] for one in sent if one["documentURL"].startswith(path.as_uri())]


def complaints(window: Any) -> list[str]:
    """Return the messages of the console since the last visit."""
    return [row["message"] for row in window.get_log("browser")]


def resize(window: Any, width: int, height: int) -> None:
    """Set the size of the page in CSS pixels, and wait until it is drawn."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    window.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def prefer(window: Any, scheme: str) -> None:
    """Set the preferred colour scheme."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
