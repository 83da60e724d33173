"""What stands behind each name that a server offers, and how it is listed.

Rows are made for the newest revision; what an older one does not have is left out when a page of
them is encoded.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

import attrs

from mcp_trio import _schema as s
from mcp_trio._protocol import check_keys
from mcp_trio._server.mirroring import mirrored_by
from mcp_trio._server.outputs import GivenOutput, Output, output_of
from mcp_trio._server.signatures import Signature
from mcp_trio._server.templates import UriTemplate


@attrs.frozen
class CacheHints:
    """For how long a client may keep a result, and whether others may have it too (CACHE-01)."""

    ttl_seconds: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))
    cache_scope: s.CacheScope = attrs.field(
        default="private", validator=attrs.validators.in_(get_args(s.CacheScope))
    )

    def members(self) -> dict[str, Any]:
        """The same as members of a result."""
        return {"ttl_ms": round(self.ttl_seconds * 1000), "cache_scope": self.cache_scope}


@attrs.frozen(kw_only=True, eq=False)
class Registered:
    """A handler with its name; one that may block runs in a thread."""

    name: str
    signature: Signature
    runs_in_thread: bool

    @property
    def key(self) -> str:
        """What it is registered under."""
        return self.name


def _check_meta(_entry: object, _field: object, meta: Mapping[str, Any] | None) -> None:
    check_keys(meta or ())


@attrs.frozen(kw_only=True, eq=False)
class RegisteredEntry(Registered):
    """What has a row in a list, with what that says besides the name."""

    given_description: str | None = attrs.field(default=None, alias="description")
    title: str | None = None
    icons: Sequence[s.Icon] | None = None
    meta: Mapping[str, Any] | None = attrs.field(default=None, validator=_check_meta)
    resumable: bool | str = False

    def state_version(self, server_version: str) -> str | None:
        """What the states of a resumable handler are good for; None if it is none."""
        if self.resumable is False:
            return None
        return server_version if self.resumable is True else self.resumable

    @property
    def description(self) -> str | None:
        """What was given at registration, else the first part of the docstring."""
        return self.given_description or self.signature.docstring.description or None

    def shown(self) -> dict[str, Any]:
        """The members that the rows of all lists have."""
        return {
            "name": self.name,
            "description": self.description,
            "title": self.title,
            "icons": None if self.icons is None else list(self.icons),
            "meta": None if self.meta is None else dict(self.meta),
        }


@attrs.frozen(kw_only=True, eq=False, slots=False)  # as of a `Signature`
class RegisteredTool(RegisteredEntry):
    """A function that the model may call."""

    annotations: s.ToolAnnotations | None = None
    given_output: GivenOutput | None = None
    structured: bool | None = None

    @functools.cached_property
    def output(self) -> Output | None:
        """The data that it returns beside its content, made at first need."""
        return self.given_output or output_of(self.signature, structured=self.structured)

    @functools.cached_property
    def mirrored(self) -> Mapping[str, tuple[str, ...]]:
        """The paths of arguments that clients mirror in an HTTP request's head, by the field.

        Raises:
            TypeError: The schema cannot be made.
            ValueError: See `mirrored_by`.
        """
        return mirrored_by(self.signature.schema)

    def definition(self) -> s.Tool:
        """Its row in `tools/list`."""
        return s.Tool(
            **self.shown(),
            input_schema=self.signature.schema,
            output_schema=None if self.output is None else self.output.schema,
            annotations=self.annotations,
        )


@attrs.frozen(kw_only=True, eq=False)
class RegisteredPrompt(RegisteredEntry):
    """A template of messages."""

    @property
    def arguments(self) -> Collection[str]:
        """The names of what fills it in."""
        return self.signature.parameters.keys()

    def definition(self) -> s.Prompt:
        """Its row in `prompts/list`."""
        described = self.signature.docstring.parameters
        arguments = [
            s.PromptArgument(
                name=parameter.name,
                description=described.get(parameter.name),
                required=parameter.is_required,
            )
            for parameter in self.signature.parameters.values()
        ]
        return s.Prompt(**self.shown(), arguments=arguments or None)


@attrs.frozen(kw_only=True, eq=False)
class RegisteredResource(RegisteredEntry):
    """Something to read: at one URI, or at every URI that its template matches."""

    template: UriTemplate
    mime_type: str | None = None
    size: int | None = None
    annotations: s.Annotations | None = None
    hints: CacheHints

    @property
    def key(self) -> str:
        """Its URI, or the text of its template."""
        return self.template.text

    @property
    def arguments(self) -> Collection[str]:
        """The names of the template's variables."""
        return self.template.variables

    @property
    def is_static(self) -> bool:
        """Whether the URI has no variables."""
        return not self.template.variables

    def resource(self) -> s.Resource:
        """Its row in `resources/list`."""
        return s.Resource(
            **self.shown(),
            uri=self.template.text,
            mime_type=self.mime_type,
            size=self.size,
            annotations=self.annotations,
        )

    def resource_template(self) -> s.ResourceTemplate:
        """Its row in `resources/templates/list`."""
        return s.ResourceTemplate(
            **self.shown(),
            uri_template=self.template.text,
            mime_type=self.mime_type,
            annotations=self.annotations,
        )
