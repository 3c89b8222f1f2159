"""The deployed models, with their tokenizers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aegaeon.client.connection import Connection
from aegaeon.errors import NotFoundError, UnavailableError
from aegaeon.http.errors import ApiError
from aegaeon.http.tokenizing import TokenizerPool
from aegaeon.http.vocabulary import Vocabulary
from aegaeon.security.guard import current_caller
from aegaeon.security.model_rules import ModelRules
from aegaeon.utils import load_tokenizer
from aegaeon.v1 import model_pb2

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: How long the scheduler's answer about a model is believed, in seconds.
_FRESH_S = 1.0


@dataclass(frozen=True)
class ServedModel:
    """A model that requests can name."""

    name: str
    max_model_len: int
    #: Ids are below it; the tokenizer may know fewer.
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary
    #: How it writes calls of tools; empty where the chat template is to tell.
    tool_parser: str = ""


@dataclass
class _Entry:
    info: model_pb2.ModelInfo
    asked: float


class ModelTable:
    """Asks the scheduler, and keeps tokenizers for as long as the same files are deployed."""

    def __init__(self, connection: Connection, pool: TokenizerPool, rules: ModelRules) -> None:
        self._connection = connection
        self._rules = rules
        self._pool = pool
        self._infos: dict[str, _Entry] = {}
        #: By model name: what it was made of, and the model.
        self._served: dict[str, tuple[tuple[object, ...], asyncio.Task[ServedModel]]] = {}

    async def get(self, name: str) -> ServedModel:
        """A model that is ready to take prompts, and that the caller may use. Raises AegaeonError,
        ApiError."""
        current_caller.get().check_model(name)
        info = await self._info(name)
        spec, facts = info.spec, info.facts
        if not facts.vocab_size:
            raise UnavailableError(
                f"model {name!r} is still being loaded", metadata={"model": name}
            )
        identity = (
            *(spec.path, spec.trust_remote_code, spec.tool_parser),
            *(facts.fingerprint, facts.max_model_len),
        )
        known = self._served.get(name)
        if known is None or known[0] != identity:
            task = asyncio.create_task(self._load(info))
            known = self._served[name] = (identity, task)
        try:
            # One caller that leaves must not end the load for the others.
            return await asyncio.shield(known[1])
        except ApiError:
            if self._served.get(name) == known:
                del self._served[name]
            raise

    def forget(self, name: str) -> None:
        """Ask the scheduler again, as something has changed."""
        self._infos.pop(name, None)

    async def _info(self, name: str) -> model_pb2.ModelInfo:
        entry = self._infos.get(name)
        now = time.monotonic()
        if entry is not None and now - entry.asked < _FRESH_S:
            return entry.info
        try:
            info = await self._connection.get_model(name)
        except NotFoundError:
            self._infos.pop(name, None)
            self._served.pop(name, None)
            raise
        except UnavailableError:
            # A scheduler that restarts: the session holds the request until it is back.
            if entry is None:
                raise
            return entry.info
        self._infos[name] = _Entry(info, now)
        return info

    def _load(self, info: model_pb2.ModelInfo) -> Coroutine[Any, Any, ServedModel]:
        spec = info.spec
        self._rules.check(spec.name, Path(spec.path), trust_remote_code=spec.trust_remote_code)
        return self._pool.run(0, _load, info)


def _load(info: model_pb2.ModelInfo) -> ServedModel:
    spec, facts = info.spec, info.facts
    try:
        tokenizer = load_tokenizer(spec.path, trust_remote_code=spec.trust_remote_code)
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            # What a file may set for training would cut prompts in silence.
            backend.no_truncation()
            backend.no_padding()
        vocabulary = Vocabulary(tokenizer)
    except Exception as error:  # files of any kind, and code of the model's own
        raise ApiError(
            f"the tokenizer of model {spec.name!r} cannot be loaded from {spec.path} on the "
            f"gateway's machine: {error}",
            code="tokenizer_unavailable",
            status=503,
            kind="server_error",
        ) from error
    return ServedModel(
        name=spec.name,
        max_model_len=facts.max_model_len,
        vocab_size=facts.vocab_size,
        eos_token_ids=tuple(facts.eos_token_ids),
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        tool_parser=spec.tool_parser,
    )
