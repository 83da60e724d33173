"""What stands behind each name that a server offers, and how it is listed."""

from collections.abc import Collection

import attrs

from mcp_trio import _schema as s
from mcp_trio._server.signatures import Signature
from mcp_trio._server.templates import UriTemplate


@attrs.frozen(kw_only=True, eq=False)
class Registered:
    """A handler with its name; one that may block runs in a thread."""

    name: str
    signature: Signature
    runs_in_thread: bool
    given_description: str | None = None

    @property
    def key(self) -> str:
        """What it is registered under."""
        return self.name

    @property
    def description(self) -> str | None:
        """What was given at registration, else the first part of the docstring."""
        return self.given_description or self.signature.docstring.description or None


@attrs.frozen(kw_only=True, eq=False)
class RegisteredTool(Registered):
    """A function that the model may call."""

    def definition(self) -> s.Tool:
        """Its row in `tools/list`."""
        return s.Tool(
            name=self.name, description=self.description, input_schema=self.signature.schema
        )


@attrs.frozen(kw_only=True, eq=False)
class RegisteredPrompt(Registered):
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
        return s.Prompt(name=self.name, description=self.description, arguments=arguments or None)


@attrs.frozen(kw_only=True, eq=False)
class RegisteredResource(Registered):
    """Something to read: at one URI, or at every URI that its template matches."""

    template: UriTemplate
    mime_type: str | None = None

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
            uri=self.template.text,
            name=self.name,
            description=self.description,
            mime_type=self.mime_type,
        )

    def resource_template(self) -> s.ResourceTemplate:
        """Its row in `resources/templates/list`."""
        return s.ResourceTemplate(
            uri_template=self.template.text,
            name=self.name,
            description=self.description,
            mime_type=self.mime_type,
        )
