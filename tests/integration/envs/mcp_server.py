"""An MCP server of the official library; as a program it speaks over standard input and output."""

import os

import anyio
from mcp.server import MCPServer

server = MCPServer("shelf", log_level="ERROR")
shelf: list[str] = []


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two whole numbers."""
    return a + b


@server.tool()
def put(book: str) -> str:
    """Puts a book on the shelf and says what stands there."""
    shelf.append(book)
    return ", ".join(shelf)


@server.tool()
async def misbehave(how: str) -> str:
    """Fails in the way that is asked for."""
    if how == "raise":
        raise RuntimeError("the shelf fell down")
    if how == "end":
        os._exit(3)
    if how == "hang":
        await anyio.sleep(600)
    return how * 1000


if __name__ == "__main__":
    server.run()
