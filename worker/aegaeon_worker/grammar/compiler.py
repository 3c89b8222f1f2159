"""Constraints made ready to be followed, on a thread of their own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from llguidance import LLMatcher

from aegaeon.constraint import Constraint
from aegaeon.errors import AegaeonError, EngineError, InvalidRequestError
from aegaeon.grammars import LIMITS, grammar_of, matcher_problem
from aegaeon_worker.engine.events import LoadedModel
from aegaeon_worker.grammar.text_state import TextState
from aegaeon_worker.grammar.vocabulary import Vocabulary

#: Tens of megabytes each.
_MAX_VOCABULARIES = 8
#: Up to some megabytes each.
_MAX_MATCHERS = 128


class Compiler:
    """Compiles once per tokenizer and constraint, and keeps what was used last.

    The thread runs no torch operations, which would leave OpenMP's helpers behind.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        # Touched by that thread alone.
        self._vocabularies: OrderedDict[tuple[str, str], Vocabulary] = OrderedDict()
        self._matchers: OrderedDict[tuple[str, Constraint], LLMatcher] = OrderedDict()

    def compile(
        self, model: LoadedModel, constraint: Constraint, generated: Sequence[int]
    ) -> Future[TextState]:
        """A state after the tokens ``generated``; the future has an AegaeonError for what cannot be
        compiled or does not lead there."""
        return self._thread.submit(self._compile, model, constraint, tuple(generated))

    def close(self) -> None:
        """Drop what waits."""
        self._thread.shutdown(cancel_futures=True)

    def _compile(
        self, model: LoadedModel, constraint: Constraint, generated: Sequence[int]
    ) -> TextState:
        try:
            vocabulary = self._vocabulary(model)
            matcher = self._matcher(vocabulary, constraint)
            return TextState(matcher.deep_copy(), vocabulary, generated)
        except AegaeonError:
            raise
        except Exception as error:  # of the library: of no other sequence's business
            text = f"the request's constraint failed: {type(error).__name__}: {error}"
            raise EngineError(text) from error

    def _vocabulary(self, model: LoadedModel) -> Vocabulary:
        key = str(model.spec.path), model.facts.fingerprint
        vocabulary = self._vocabularies.pop(key, None) or Vocabulary(model)
        self._vocabularies[key] = vocabulary
        if len(self._vocabularies) > _MAX_VOCABULARIES:
            self._vocabularies.popitem(last=False)
        return vocabulary

    def _matcher(self, vocabulary: Vocabulary, constraint: Constraint) -> LLMatcher:
        key = vocabulary.key, constraint
        matcher = self._matchers.pop(key, None)
        if matcher is None:
            try:
                grammar = grammar_of(constraint)
            except (ValueError, RecursionError) as error:
                raise _invalid(constraint, str(error)) from error
            matcher = LLMatcher(vocabulary.tokens, grammar, log_level=0, limits=LIMITS)
            # What is too complex shows here, mostly, and not where a batch would wait for it.
            matcher.compute_bitmask()
            if matcher.is_error():
                raise _invalid(constraint, matcher_problem(matcher))
        self._matchers[key] = matcher
        if len(self._matchers) > _MAX_MATCHERS:
            self._matchers.popitem(last=False)
        return matcher


def _invalid(constraint: Constraint, problem: str) -> InvalidRequestError:
    field = f"sampling.constraint.{constraint.kind.value}"
    return InvalidRequestError(f"{field}: {problem.strip()}", metadata={"field": field})
