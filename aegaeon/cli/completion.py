"""What the shell offers for the name of a model."""

from __future__ import annotations

import asyncio

_PATIENCE_S = 1.0


def complete_models(incomplete: str) -> list[str]:
    """Deployed models that begin so, of the cluster that is meant without options; none where
    nobody answers at once."""
    from aegaeon.cli.target import connected, find_target
    from aegaeon.errors import AegaeonError

    async def names() -> list[str]:
        async with (
            asyncio.timeout(2 * _PATIENCE_S),
            connected(find_target(None, None), _PATIENCE_S) as connection,
        ):
            return [model.spec.name for model in await connection.list_models()]

    try:
        return [name for name in asyncio.run(names()) if name.startswith(incomplete)]
    except (AegaeonError, TimeoutError):
        return []
