"""Other people's readers and inflaters, newest versions, in an environment of their own."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.inputs import ROOT

PACKAGES = ("traceinsight", "orjson", "isal", "zlib-ng")

_VENV = ROOT / ".bench" / "venv"
PYTHON = _VENV / "bin" / "python"
_DONE = _VENV / ".installed"


def install() -> None:
    """Make the environment if it is not there yet (HTA brings all of Jupyter along)."""
    if _DONE.is_file() and _DONE.read_text() == " ".join(PACKAGES):
        return
    print(f"installing {', '.join(PACKAGES)} into {_VENV}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", _VENV], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(PYTHON), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", "--upgrade", *PACKAGES], check=True)
    _DONE.write_text(" ".join(PACKAGES))


def versions() -> dict[str, str]:
    """What is installed there."""
    script = (
        "import json, sys; from importlib.metadata import version;"
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run(
        [PYTHON, "-c", script, *PACKAGES], check=True, capture_output=True, text=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found
