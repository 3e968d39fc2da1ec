"""Other readers and inflaters, newest versions, in a separate environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.inputs import ROOT

PACKAGES = ("traceinsight", "orjson", "isal", "zlib-ng", "pydantic", "itwinai")
#: Installed without dependencies: the report needs neither ray nor torch.
ALONE = ("itwinai",)
#: Draws memory snapshots; in an environment of its own, for its size.
TORCH = "torch==2.13.0"

_FOLDER = ROOT / ".bench"
_VENV = _FOLDER / "venv"
_TORCH = _FOLDER / "torch"
TORCH_PYTHON = _TORCH / "bin" / "python"
_NYTPROF = "libdevel-nytprof-perl"
PYTHON = _VENV / "bin" / "python"
_DONE = _VENV / ".installed"


def install() -> None:
    """Make the environment if it is not there yet (HTA brings all of Jupyter along)."""
    if _DONE.is_file() and _DONE.read_text() == " ".join(PACKAGES):
        return
    print(f"installing {', '.join(PACKAGES)} into {_VENV}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", _VENV], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(PYTHON), "--disable-pip-version-check"]
    whole = [name for name in PACKAGES if name not in ALONE]
    subprocess.run([*pip, "install", "-q", "--upgrade", *whole], check=True)
    subprocess.run([*pip, "install", "-q", "--upgrade", "--no-deps", *ALONE], check=True)
    _DONE.write_text(" ".join(PACKAGES))


def install_torch() -> bool:
    """Make PyTorch's environment if it is not there yet; False where it cannot be had."""
    if not TORCH_PYTHON.is_file():
        print(f"installing {TORCH} into {_TORCH}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", _TORCH], check=True)
    pip = [str(TORCH_PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    return subprocess.run([*pip, TORCH, "numpy"], check=False).returncode == 0


def flamegraph_pl() -> Path | None:
    """Brendan Gregg's ``flamegraph.pl``, as Debian has it in Devel::NYTProf; None without apt."""
    script = _FOLDER / "nytprof" / "usr" / "share" / "perl5" / "Devel" / "NYTProf" / "flamegraph.pl"
    if not script.is_file() and shutil.which("apt-get") and shutil.which("perl"):
        _FOLDER.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-qq", _NYTPROF], cwd=_FOLDER, check=False)
        for package in _FOLDER.glob(f"{_NYTPROF}_*.deb"):
            subprocess.run(["dpkg", "-x", package, _FOLDER / "nytprof"], check=False)
    return script if script.is_file() else None


def versions() -> dict[str, str]:
    """What is installed there."""
    script = (
        "import json, sys; from importlib.metadata import version;"
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run(
        [PYTHON, "-c", script, *PACKAGES], check=True, capture_output=True, text=True
    )
    versions: dict[str, str] = json.loads(done.stdout)
    return versions
