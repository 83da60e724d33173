"""Tools whose arguments only a JSON Schema describes.

The schema is listed as it was given. The checker is loaded at the first call, and fetches nothing:
a `$ref` leads to a place in the schema itself, or nowhere.
"""

import functools
import itertools
from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from mcp_trio._server.faults import step
from mcp_trio._server.mistakes import shown
from mcp_trio._server.signatures import ArgumentsError
from mcp_trio._server.whole import WholeSignature


@attrs.define(kw_only=True, eq=False)
class GivenSchema(WholeSignature):
    """The signature of such a tool: its arguments are one dict.

    Raises:
        ValueError: At once, if the schema does not say that it describes an object (TOOL-05).
    """

    given: Mapping[str, Any]

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.given.get("type") != "object":
            raise ValueError('an input schema has "type": "object" at its root')

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """The schema as it was given."""
        return dict(self.given)

    @functools.cached_property
    def _validator(self) -> Any:
        from jsonschema import validators  # type: ignore[import-untyped]  # it has no types
        from referencing.jsonschema import EMPTY_REGISTRY

        kind: Any = validators.validator_for(self.schema, default=validators.Draft202012Validator)
        try:
            kind.check_schema(self.schema)
        except Exception as error:
            error.add_note(f"in the input_schema given for {self.handler!r}")
            raise
        return kind(self.schema, registry=EMPTY_REGISTRY)

    def decode(self, raw: msgspec.Raw | bytes | None) -> Any:
        """The arguments of a call, if the schema accepts them.

        Raises:
            ArgumentsError: With one line for each mistake.
        """
        arguments = msgspec.json.decode(b"{}" if raw is None else raw)
        mistakes_max = self.limits.argument_error_members_max
        mistakes = itertools.islice(self._validator.iter_errors(arguments), mistakes_max)
        try:
            lines = sorted(map(_line, mistakes))
        except RecursionError:
            lines = ["arguments: nested too deeply"]
        if lines:
            raise ArgumentsError(shown(lines, self.limits))
        return arguments


def _line(mistake: Any) -> str:
    """From a `ValidationError` to "days[0]: 'x' is not of type 'integer'"."""
    path = "".join(map(step, mistake.absolute_path)).removeprefix(".") or "arguments"
    return " ".join(f"{path}: {mistake.message}".split())
