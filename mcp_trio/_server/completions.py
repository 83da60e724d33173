"""Completion: which argument of which prompt or template is meant, and what is proposed."""

import itertools
from collections.abc import Iterable, Sized
from typing import Any, ClassVar, Final, TypeAlias, cast

from mcp_trio._schema import (
    CompleteParams,
    CompleteResult,
    Completion,
    PromptReference,
    Reference,
)
from mcp_trio._server.whole import WholeSignature

# What one answer may hold; the specification's number, not a limit of ours (COMP-05).
VALUES_MAX: Final = 100

Target: TypeAlias = tuple[str, str]
"""What is completed: "prompts" or "resources", and the name or URI template in there."""


class CompletionSignature(WholeSignature):
    """What a completion takes: the text so far, and perhaps the arguments that are settled."""

    values_max: ClassVar[int] = 2

    def bind(self, arguments: Any, context: Any) -> dict[str, Any]:
        """The keywords to call it with, from the params of the request."""
        params: CompleteParams = arguments
        settled = None if params.context is None else params.context.arguments
        return self._keywords((params.argument.value, settled or {}), context)


def target_of(reference: Reference) -> Target:
    """What a request's reference means."""
    if isinstance(reference, PromptReference):
        return "prompts", reference.name
    return "resources", reference.uri


def completion_result(value: Any) -> CompleteResult:
    """The result of a completion whose function returned `value`.

    A `Completion` is itself, None proposes nothing, a set is put in order. Beyond the first 100
    values only their number is told, if it is known.

    Raises:
        TypeError: The values are not texts.
    """
    return CompleteResult(
        completion=_clipped(value) if isinstance(value, Completion) else _of(value)
    )


def _clipped(completion: Completion) -> Completion:
    values = completion.values
    if len(values) <= VALUES_MAX:
        return completion
    total = len(values) if completion.total is None else completion.total
    return Completion(values=values[:VALUES_MAX], total=total, has_more=True)


def _of(value: Any) -> Completion:
    proposed: Iterable[Any] = () if value is None else value
    if isinstance(proposed, str):
        raise TypeError("a completion proposes several texts, and not one")
    if isinstance(proposed, set | frozenset):
        proposed = sorted(cast("Iterable[Any]", proposed))
    values = list(itertools.islice(proposed, VALUES_MAX + 1))
    for text in values:
        if not isinstance(text, str):
            raise TypeError(f"a completion proposes texts, and not a {type(text).__name__}")
    if len(values) <= VALUES_MAX:
        return Completion(values=values)
    total = len(proposed) if isinstance(proposed, Sized) else None
    return Completion(values=values[:VALUES_MAX], total=total, has_more=True)
