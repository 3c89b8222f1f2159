"""What a parent process writes, line by line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator


async def stdin_lines() -> AsyncIterator[str]:
    """Lines of stdin, without blocking the event loop; ends when the parent closes it."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await reader.readline():
        yield line.decode().strip()
