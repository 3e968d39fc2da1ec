"""The programs that draw in a browser, as they are written into a page."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files


@cache
def resource(package: str, name: str) -> str:
    """The text of a file that lies in a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Viewer:
    """A program that draws in a page: it finds what is its own there, and asks for nothing else.

    Attributes:
        package: the package that its files lie in.
        scripts: their names, in order.
        sheet: the name of its style sheet.
        fills: rules that stand in the sheet for ``/* fills */``.
    """

    package: str
    scripts: tuple[str, ...]
    sheet: str = "viewer.css"
    fills: str = ""

    def style(self) -> str:
        """The style sheet of all that it draws."""
        return resource(self.package, self.sheet).replace("/* fills */", self.fills)

    def script(self) -> str:
        """Its scripts as one, which shares nothing with the page's others."""
        sources = "\n".join(resource(self.package, name) for name in self.scripts)
        return f"(() => {{\n'use strict';\n{sources}}})();\n"

    def script_hash(self) -> str:
        """What a Content-Security-Policy says so that it, and no other script, may run."""
        return f"'sha256-{b64encode(sha256(self.script().encode()).digest()).decode()}'"
