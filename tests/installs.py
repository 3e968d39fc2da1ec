"""Installs what is handed out into empty environments: ``make installs``.

The wheel into one of each Python that is named and here, the source archive into one more. Each
must be whole (``pip check``) and answer a real question from outside of the checkout.
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
    """Builds, installs, tries; the first failure ends it."""
    here = [found for name in pythons if (found := shutil.which(name)) and _runs(found)]
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "built")
        built.mkdir()
        run(sys.executable, "-c", BUILD, str(built), cwd=ROOT)
        (archive,) = built.glob("*.tar.gz")
        # the wheel of the archive: what is missing there is missing here
        run(sys.executable, *PIP, "wheel", "--no-deps", "-w", str(built), str(archive))
        (wheel,) = built.glob("*.whl")
        tried = [(python, wheel) for python in here] + [(here[0], archive)]
        for number, (python, what) in enumerate(tried):
            say(f"{what.name}: {install(python, what, Path(folder, str(number)))}")
    for name in pythons:
        if not (found := shutil.which(name)) or not _runs(found):
            say(f"{name}: not here, not tried")


def install(python: str, what: Path, folder: Path) -> str:
    """What an empty environment with this and nothing else says."""
    run(python, "-m", "venv", str(folder))
    own = folder / "bin"
    run(str(own / "python"), *PIP, "install", str(what))
    run(str(own / "python"), *PIP, "check")
    version = run(str(own / "traceanalyzer"), "--version")
    answer = run(
        str(own / "traceanalyzer"), "comm-outliers", str(ROOT / "fixtures/nccl_8ranks"), cwd=folder
    )
    assert "Rank 5 is a straggler" in answer
    compiled = "from traceanalyzer.parsers.chrome_trace import _scan; print(_scan.__file__)"
    assert str(folder) in run(str(own / "python"), "-c", compiled, cwd=folder)
    return f"{run(python, '--version')}, {version}, answers"


def run(*command: str, cwd: Path | None = None) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def _runs(python: str) -> bool:
    return not subprocess.run([python, "--version"], check=False, capture_output=True).returncode


def say(line: str) -> None:
    """To whoever waits."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
