"""One request whose tokens are read while they are made."""

from __future__ import annotations

from aegaeon.client.session import Session
from aegaeon.step_output import StepOutput
from aegaeon.v1 import inference_pb2


class TokenStream:
    """Opens the request in a session of its own. Belongs to the session's event loop."""

    def __init__(
        self, session: Session, request: inference_pb2.GenerateRequest, timeout_ns: int
    ) -> None:
        self._session = session
        self._pending = session.submit(request, timeout_ns)
        self._position = 0

    async def next_steps(self) -> list[StepOutput]:
        """All steps since the call before, at least one; empty at the end.

        Raises the error that ended the request, after all steps before it were returned.
        """
        steps = await self._pending.wait(self._position)
        self._position += len(steps)
        return steps

    async def close(self) -> None:
        """Cancel the request if it has not ended."""
        await self._session.close()
