"""The programs that draw in a browser, as they are written into a page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from importlib.resources import files


def resource(package: str, name: str) -> str:
    """The text of a file that lies in a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def program(package: str, names: Iterable[str]) -> str:
    """Several scripts of a package as one that shares nothing with the page's others."""
    return (
        "(() => {\n'use strict';\n"
        + "\n".join(resource(package, name) for name in names)
        + ("})();\n")
    )


def source_hash(script: str) -> str:
    """A script's source expression for a Content-Security-Policy: only it may run."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
