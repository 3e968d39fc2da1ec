"""Notebooks run, and their outputs are the committed ones."""

from __future__ import annotations

import base64
import copy
import json
import os
import re
import struct
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import ROOT
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

#: What would make a kernel other than a user's just installed one.
_OURS = re.compile(r"^(MPL|JUPYTER|IPYTHON|PYTHONWARNINGS|PYTHONPATH|COLUMNS|COV_)")


#: Style sheets and viewers have their own tests: committed ones may be older.
_LOOKS = re.compile(r'<style>.*?</style>|(?<= )srcdoc="[^"]*"', re.DOTALL)


def _id(path: Path) -> str:
    return path.stem


def _run(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return the notebook with current outputs, from a new kernel."""
    with tempfile.TemporaryDirectory(prefix="nb") as folder:  # sockets need a short name
        places = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
        env = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
        env |= dict.fromkeys(places, folder)
        manager = AsyncKernelManager(
            kernel_name="python3", transport="ipc", connection_file=f"{folder}/kernel.json"
        )
        client = NotebookClient(
            copy.deepcopy(notebook),
            km=manager,
            timeout=120,
            record_timing=False,
            resources={"metadata": {"path": str(ROOT / "notebooks")}},
        )
        done = client.execute(env=env, cleanup_kc=True)
    done.metadata = notebook.metadata
    return done


def _image(data: str) -> tuple[int, int]:
    """Width and height of a PNG."""
    width, height = struct.unpack(">II", base64.b64decode(data)[16:24])
    return width, height


def _outputs(notebook: nbformat.NotebookNode) -> list[list[dict[str, Any]]]:
    """Return the outputs of each cell; of an image its size, without :data:`_LOOKS`."""
    expected = []
    for cell in notebook.cells:
        outputs = copy.deepcopy(cell.get("outputs", []))
        for output in outputs:
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = _image(data["image/png"])
            if "text/html" in data:
                data["text/html"] = _LOOKS.sub("", data["text/html"])
        expected.append([dict(output) for output in outputs])
    return expected


@pytest.mark.sample(6)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=_id)
def test_notebook_outputs_are_current(path: Path, request: pytest.FixtureRequest) -> None:
    committed = nbformat.read(path, as_version=4)
    now = _run(committed)
    if request.config.getoption("--bless"):
        nbformat.write(now, path)
        return
    for cell, expected, actual in zip(now.cells, _outputs(committed), _outputs(now), strict=True):
        assert actual == expected, (
            f"{cell.source}\n\nif it is right: pytest --bless, review the diff"
        )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=_id)
def test_notebook_is_small_and_clean(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert path.stat().st_size < 400_000
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(output.output_type != "error" for cell in code for output in cell.outputs)
    assert not any(output.get("name") == "stderr" for cell in code for output in cell.outputs)
    drawn = [one for one in code if ".plot(" in one.source]
    assert drawn or "py_spy" in path.name
    assert all(any("image/png" in out.get("data", {}) for out in one.outputs) for one in drawn)
    assert str(ROOT) not in json.dumps(notebook), "a path of this machine"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=_id)
def test_links_of_notebooks_have_targets(path: Path) -> None:
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", text)
    files = re.findall(r'"(\.\./[^"]+)"', text)
    assert files
    assert [name for name in links + files if not (path.parent / name).exists()] == []


def test_notebooks_are_listed() -> None:
    page = (ROOT / "notebooks" / "README.md").read_text()
    assert re.findall(r"\]\((\w+\.ipynb)\)", page) == [path.name for path in NOTEBOOKS]
    assert len(NOTEBOOKS) == 5
