"""Install the distributions into empty environments: ``make installs``.

The wheel is installed for each available Python, the source archive once. Each installation must be
complete (``pip check``) and analyze a trace from outside of the checkout.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIP = ("-m", "pip", "--disable-pip-version-check", "-q")
BUILD = "import sys; from setuptools import build_meta as b; b.build_sdist(sys.argv[1])"


def main(pythons: list[str]) -> None:
    """Build, install and test; stop at the first failure."""
    here = [path for name in pythons if (path := shutil.which(name)) and _runs(path)]
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "built")
        built.mkdir()
        run(sys.executable, "-c", BUILD, str(built), cwd=ROOT)
        (archive,) = built.glob("*.tar.gz")
        # the wheel is built from the archive, so that files missing there are missing here
        run(sys.executable, *PIP, "wheel", "--no-deps", "-w", str(built), str(archive))
        (wheel,) = built.glob("*.whl")
        tried = [(python, wheel) for python in here] + [(here[0], archive)]
        for number, (python, what) in enumerate(tried):
            report(f"{what.name}: {install(python, what, Path(folder, str(number)))}")
    for name in pythons:
        if not (path := shutil.which(name)) or not _runs(path):
            report(f"{name}: not available, not tested")


def install(python: str, what: Path, folder: Path) -> str:
    """Return the result of a test in an empty environment with this distribution."""
    run(python, "-m", "venv", str(folder))
    scripts = folder / "bin"
    run(str(scripts / "python"), *PIP, "install", str(what))
    run(str(scripts / "python"), *PIP, "check")
    version = run(str(scripts / "traceanalyzer"), "--version")
    answer = run(
        str(scripts / "traceanalyzer"),
        "comm-outliers",
        str(ROOT / "fixtures/nccl_8ranks"),
        cwd=folder,
    )
    assert "Rank 5 is a straggler" in answer
    compiled = "from traceanalyzer.parsers.chrome_trace import _scan; print(_scan.__file__)"
    assert str(folder) in run(str(scripts / "python"), "-c", compiled, cwd=folder)
    return f"{run(python, '--version')}, {version}, answers"


def run(*command: str, cwd: Path | None = None) -> str:
    """Return the output of a command, which must succeed."""
    done = subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def _runs(python: str) -> bool:
    return not subprocess.run([python, "--version"], check=False, capture_output=True).returncode


def report(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
