"""Server, completion."""

from typing import TypeAlias

from mcp_trio._schema.base import BaseMetadata, Model, Params, Result


class PromptReference(BaseMetadata, kw_only=True, tag_field="type", tag="ref/prompt"):
    """Names a prompt one of whose arguments is being typed."""


class ResourceReference(Model, kw_only=True, tag_field="type", tag="ref/resource"):
    """Names a resource or template one of whose variables is being typed."""

    uri: str


Reference: TypeAlias = PromptReference | ResourceReference


class CompletionArgument(Model, kw_only=True):
    """The argument that is being typed, and what stands there so far."""

    name: str
    value: str


class CompletionContext(Model, kw_only=True):
    """What is settled already: the other arguments or variables, by name."""

    arguments: dict[str, str] | None = None


class CompleteParams(Params, kw_only=True):
    """Asks how an argument could go on."""

    ref: Reference
    argument: CompletionArgument
    context: CompletionContext | None = None


class Completion(Model, kw_only=True):
    """At most 100 proposals; `total` and `has_more` tell of those that were left out."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result, kw_only=True):
    """The proposals."""

    completion: Completion
