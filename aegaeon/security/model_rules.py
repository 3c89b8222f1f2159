"""Which checkpoints a process reads, whatever it is asked for."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from aegaeon.errors import PermissionDeniedError


@dataclass(frozen=True)
class ModelRules:
    """The operator's word on folders and on code, which no request can overrule."""

    #: Folders below which models lie; empty permits any.
    roots: tuple[Path, ...] = ()
    #: Run code from the folders of models whose specs ask for it.
    allow_remote_code: bool = False

    def check(self, name: str, path: Path, *, trust_remote_code: bool) -> None:
        """Raise PermissionDeniedError for a model that is not to be read here."""
        if trust_remote_code and not self.allow_remote_code:
            raise PermissionDeniedError(
                f"model {name!r} asks for trust_remote_code, which would run code from {path}; "
                "start this process with --allow-remote-code if that is wanted",
                metadata={"model": name},
            )
        # Links are followed: what counts is where the files are.
        folder = path.expanduser().resolve()
        if self.roots and not any(folder.is_relative_to(root.resolve()) for root in self.roots):
            raise PermissionDeniedError(
                f"model {name!r}: its path {path} is outside the folders that this process may "
                f"read models from: {', '.join(map(str, self.roots))} (--model-root)",
                metadata={"model": name},
            )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Options that are fields of `ModelRules`."""
    parser.add_argument(
        "--model-root",
        type=Path,
        action="append",
        default=[],
        help="read models below this folder only; may be given several times",
    )
    parser.add_argument(
        "--allow-remote-code",
        action="store_true",
        help="run code from the folders of models whose trust_remote_code is set",
    )


def model_rules(options: argparse.Namespace) -> ModelRules:
    """The rules that these options give."""
    return ModelRules(tuple(options.model_root), options.allow_remote_code)
