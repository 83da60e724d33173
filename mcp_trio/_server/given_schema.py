"""Tools whose arguments only a JSON Schema describes: it is listed as it was given."""

import functools
from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from mcp_trio._protocol.json_schema import Schema
from mcp_trio._server.mirroring import mirrored_by
from mcp_trio._server.signatures import ArgumentsError
from mcp_trio._server.whole import WholeSignature


@attrs.define(kw_only=True, eq=False, slots=False)  # as what it extends
class GivenSchema(WholeSignature):
    """The signature of such a tool: its arguments are one dict.

    Raises:
        SchemaError: At once, if the schema cannot be used.
        ValueError: At once, if the schema does not say that it describes an object (TOOL-05), or
            has an `x-mcp-header` that breaks a rule.
    """

    given: Mapping[str, Any]
    _checker: Schema = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.given.get("type") != "object":
            raise ValueError('an input schema has "type": "object" at its root')
        mirrored_by(self.given)
        self._checker = Schema(self.given, of="arguments", limits=self.limits)

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """The schema as it was given."""
        return dict(self.given)

    def decode(self, raw: msgspec.Raw | bytes | None) -> Any:
        """The arguments of a call, if the schema accepts them.

        Raises:
            ArgumentsError: With one line for each mistake.
        """
        arguments = msgspec.json.decode(b"{}" if raw is None else raw)
        lines = self._checker.check(arguments)
        if lines:
            raise ArgumentsError(lines)
        return arguments
