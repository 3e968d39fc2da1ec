"""A real client of ``traceanalyzer mcp``, called from ordinary functions."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import PROGRAM, environment

pytest.importorskip("mcp", reason="the extra mcp is not installed: pip install mcp")

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


def program(*roots: Path) -> list[str]:
    """Return the command line of a server."""
    return [*PROGRAM, "mcp", *(f"--root={root}" for root in roots)]


@asynccontextmanager
async def _connected(*roots: Path) -> AsyncIterator[ClientSession]:
    command, *arguments = program(*roots)
    server = StdioServerParameters(command=command, args=arguments, env=environment())
    async with (
        stdio_client(server, errlog=sys.__stderr__) as (received, sent),
        ClientSession(received, sent) as session,
    ):
        await session.initialize()
        yield session


class Client:
    """A connected client; ``session`` is that of the SDK."""

    def __init__(self, portal: BlockingPortal, session: ClientSession) -> None:
        self.portal, self.session = portal, session

    def run(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call an async function and return its result."""
        return self.portal.call(function, *arguments)

    def call(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool and return its result."""
        return self.run(self.session.call_tool, tool, arguments)

    def answer(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool that has an answer."""
        result = self.call(tool, **arguments)
        assert not result.is_error, result.content[0].text
        return result.structured_content  # type: ignore[no-any-return]

    def error(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool that fails; return its message, which is one line."""
        result = self.call(tool, **arguments)
        assert result.is_error
        assert result.structured_content is None
        (content,) = result.content
        assert "\n" not in content.text
        assert 0 < len(content.text) <= 2_000
        return content.text  # type: ignore[no-any-return]


@contextmanager
def connected(*roots: Path) -> Iterator[Client]:
    """Start a server and connect a client."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_connected(*roots)) as session,
    ):
        yield Client(portal, session)


def workers_of(root: Path) -> list[int]:
    """Return the running workers of this process's server of a root."""
    servers = [pid for pid in _children(os.getpid()) if f"--root={root}" in _command(pid)]
    return [worker for pid in servers for worker in _children(pid) if _command(worker)]


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
