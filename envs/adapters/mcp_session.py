"""A connection to an MCP server for callers without an event loop.

The library is asynchronous and wants a connection to be opened and closed by one task, so a thread of the session runs
a loop of its own for as long as the session lives. Every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

_CLOSE_TIMEOUT_S = 10.0
"""The library's own close asks the server to end, then kills it, within about six seconds."""


class ToolFailure(Exception):
    """The server says that the call failed; the text is the tool's."""


class McpSession:
    """Opens the connection at once; `tools` are those that the server lists.

    Args:
        server: what `mcp.Client` takes: a URL, or parameters of a command.
        timeout_s: for the start, the handshake and the list of tools.

    Raises:
        TimeoutError: the server was not ready in time.
        ConnectionError: it does not start, or speaks another protocol.
    """

    def __init__(self, server: Any, timeout_s: float) -> None:
        self._ready: Future[list[Any]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[Any] | None = None
        self._client: Any = None
        self._thread = threading.Thread(target=self._run, args=(server,), name="mcp session", daemon=True)
        self._thread.start()
        try:
            self.tools = self._ready.result(timeout_s)
        except TimeoutError:
            self.close()
            raise TimeoutError(f"the MCP server was not ready within {timeout_s:g} s") from None
        except Exception as error:
            self.close()
            what = f"{type(error).__name__}: {error}"
            raise ConnectionError(f"the MCP server does not start or cannot be reached, {what}") from error

    def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float) -> str:
        """The tool's result as text.

        Raises:
            ToolFailure: the tool, or the server's check of the arguments, says so.
            TimeoutError: no answer in time.
            ConnectionError: the server is gone.
        """
        from mcp import MCPError  # noqa: PLC0415
        from mcp_types import CONNECTION_CLOSED  # noqa: PLC0415

        try:
            result = self._wait_for(self._client.call_tool(name, dict(arguments)), timeout_s)
        except MCPError as error:
            if not self._thread.is_alive() or error.code == CONNECTION_CLOSED:
                raise ConnectionError(f"the MCP server is gone: {error}") from error
            raise ToolFailure(str(error)) from error
        text = "\n".join(_shown(block) for block in result.content)
        if result.is_error:
            raise ToolFailure(text)
        return text

    def close(self) -> None:
        """Ends the connection and the server; what does not end in time is left to the kernel with this process."""
        if self._loop is not None and self._serving is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _wait_for(self, what: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(what, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise TimeoutError(f"the MCP server gave no answer within {timeout_s:g} s") from None

    def _run(self, server: Any) -> None:
        try:
            asyncio.run(self._serve(server))
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(_first(error))

    async def _serve(self, server: Any) -> None:
        from mcp import Client  # noqa: PLC0415

        self._loop, self._serving = asyncio.get_running_loop(), asyncio.current_task()
        async with Client(server) as client:
            self._client = client
            listing = await client.list_tools()
            tools = list(listing.tools)
            while listing.next_cursor is not None:
                listing = await client.list_tools(cursor=listing.next_cursor)
                tools += listing.tools
            self._ready.set_result(tools)
            await asyncio.Event().wait()


def _first(error: BaseException) -> BaseException:
    """The error itself, where the library's task groups wrapped it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _shown(block: Any) -> str:
    """A block of a result in text; pictures and sounds are named only."""
    if block.type == "text":
        return block.text
    if block.type == "resource" and hasattr(block.resource, "text"):
        return block.resource.text
    return json.dumps({"type": block.type})
