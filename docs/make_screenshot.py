"""Write the pictures of the README and of ``docs/gallery.md`` (``make screenshot``).

Pages need Chromium; their pictures have few colours, so that they stay small. The output of a
command is a drawing of its text, which loads no font.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1400, 900
#: Pictures of pages: the command that writes the page, and the number of colours.
PAGES = {
    "report.png": ("report fixtures/nccl_8ranks", 256),
    "gallery_timeline.png": ("timeline fixtures/nccl_8ranks", 64),
    "gallery_flamegraph.png": ("flamegraph fixtures/py_spy/native.raw.txt", 64),
    "gallery_memory.png": ("memory fixtures/memory/training.pickle", 64),
}
#: Pictures of terminals: the command, and the number of lines.
TERMINALS = {
    "gallery_diagnose.svg": ("diagnose fixtures/nccl_8ranks", 34),
    "gallery_diff.svg": ("diff fixtures/upgrade/before.json.gz fixtures/upgrade/after.json.gz", 20),
}
_COLUMNS = 110


def main() -> None:
    """Write all pictures."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no chromium: apt-get install chromium")
    for name, (command, lines) in TERMINALS.items():
        (IMAGES / name).write_text(terminal(command, lines))
    for name, (command, colors) in PAGES.items():
        (IMAGES / name).write_bytes(small(screenshot(command, browser), colors))


def terminal(command: str, lines: int) -> str:
    """Return the first lines that a command prints in a terminal with colours, as SVG."""
    program = [sys.executable, "-m", "traceanalyzer", *command.split(), "-q", "--color", "always"]
    environment = {**os.environ, "COLUMNS": str(_COLUMNS)}
    done = subprocess.run(program, cwd=ROOT, env=environment, check=True, capture_output=True)
    text = "\n".join(done.stdout.decode().splitlines()[:lines])
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), color_system="truecolor")
    console.print(Text.from_ansi(f"$ traceanalyzer {command}\n{text}"), no_wrap=True)
    drawing = console.export_svg(title="traceanalyzer", unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL).replace("Fira Code, ", "")


def screenshot(command: str, browser: str) -> bytes:
    """Return what a window shows of the page that a command writes."""
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder, "page.html"), Path(folder, "shot.png")
        program = [sys.executable, "-m", "traceanalyzer", *command.split(), "-q", "-o", str(page)]
        subprocess.run(program, cwd=ROOT, check=True)
        flags = ("headless", "no-sandbox", "disable-gpu", "hide-scrollbars")
        flags += ("run-all-compositor-stages-before-draw",)
        flags += (f"window-size={WIDTH},{HEIGHT}", f"screenshot={shot}", "virtual-time-budget=5000")
        options = [f"--{flag}" for flag in (*flags, f"user-data-dir={folder}/profile")]
        subprocess.run([browser, *options, page.as_uri()], check=True, capture_output=True)
        return shot.read_bytes()


def small(png: bytes, colors: int = 256) -> bytes:
    """Return a picture with few colours."""
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(colors, dither=Image.Dither.NONE)
    out = io.BytesIO()
    picture.save(out, "png", optimize=True)
    return out.getvalue()


if __name__ == "__main__":
    main()
