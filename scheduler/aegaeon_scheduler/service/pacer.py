"""How often readers are written to, all of them together."""

from __future__ import annotations

import asyncio

#: Messages a second at most, of all readers together: up to half a core.
MESSAGES_PER_S = 5_000
#: Messages that may go out at once after a pause.
BURST = 64


class Pacer:
    """Spreads messages out once there are many, so that each of them carries more.

    What a message costs hardly depends on the tokens in it. Without a limit a busy loop would write
    one token per message, and read what workers send ever later. Below the limit nothing waits.
    """

    def __init__(self) -> None:
        self._free_s = 0.0

    async def turn(self) -> None:
        """Wait until another message may be written."""
        now = asyncio.get_running_loop().time()
        self._free_s = max(self._free_s, now - BURST / MESSAGES_PER_S) + 1 / MESSAGES_PER_S
        if self._free_s > now:
            await asyncio.sleep(self._free_s - now)
