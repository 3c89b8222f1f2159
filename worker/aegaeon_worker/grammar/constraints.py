"""What an engine needs for constraints."""

from __future__ import annotations

from aegaeon_worker.grammar.compiler import Compiler
from aegaeon_worker.grammar.masks import Masks


class Constraints:
    """The two threads, one for what takes long and one for what every step waits for."""

    def __init__(self) -> None:
        self.compiler = Compiler()
        self.masks = Masks()

    def close(self) -> None:
        """End both."""
        self.masks.close()
        self.compiler.close()
