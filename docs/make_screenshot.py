"""Write ``docs/images/report.png``, the first screen of a report (``make screenshot``).

Needs Chromium; the picture has a palette of 256 colours, so that it stays small.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "report.png"
WIDTH, HEIGHT = 1400, 900


def main() -> None:
    """Write a report of the fixtures, open it and save what the window shows."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder, "report.html"), Path(folder, "shot.png")
        command = [sys.executable, "-m", "traceanalyzer", "report", "fixtures/nccl_8ranks", "-q"]
        subprocess.run([*command, "-o", str(page)], cwd=ROOT, check=True)
        flags = ("headless", "no-sandbox", "disable-gpu", "hide-scrollbars")
        flags += (f"window-size={WIDTH},{HEIGHT}", f"screenshot={shot}", "virtual-time-budget=5000")
        options = [f"--{flag}" for flag in (*flags, f"user-data-dir={folder}/profile")]
        subprocess.run([browser, *options, page.as_uri()], check=True, capture_output=True)
        PICTURE.write_bytes(small(shot.read_bytes()))


def small(png: bytes) -> bytes:
    """Return a picture with at most 256 colours."""
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    out = io.BytesIO()
    picture.save(out, "png", optimize=True)
    return out.getvalue()


if __name__ == "__main__":
    main()
