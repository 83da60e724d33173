"""Transformed tools: a registered tool with another name, other arguments, or a wrapper.

A transformed tool has a `ToolTransform`, and a signature that lists and decodes the changed
arguments. Each call decodes them by that signature, runs the wrapper if there is one, and then
calls the tool that it was made of, its base, with the base's own arguments.
"""

import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias, cast

import attrs
import msgspec

from mcp_trio._protocol.suggestions import did_you_mean
from mcp_trio._server.introspection import SCALARS, DeclaredParameter
from mcp_trio._server.registry import check_text
from mcp_trio._server.signatures import (
    ArgumentsError,
    Docstring,
    GivenSchemaSignature,
    Parameter,
    RawSignature,
    Signature,
)
from mcp_trio._server.type_adapters import convert

if TYPE_CHECKING:
    from mcp_trio._server.registry import Registered, RegisteredTool


@attrs.frozen
class Argument:
    """A change of a tool's argument; attributes that are not given change nothing.

    Attributes:
        name: The new name, which clients see and send.
        description: The new description.
        default: The new default, which makes the argument optional.
    """

    name: str | None = attrs.field(default=None, validator=check_text)
    description: str | None = attrs.field(default=None, kw_only=True, validator=check_text)
    default: Any = attrs.field(default=msgspec.NODEFAULT, kw_only=True)


@attrs.frozen
class Fixed:
    """The value of a tool's argument that clients neither see nor send.

    Attributes:
        value: The value. A list, dict or other mutable value is copied for each call.
    """

    value: Any


Change: TypeAlias = Argument | Fixed

CallTool: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Calls the wrapped tool with arguments, and returns what its function returned.

The arguments have the names that clients send. Those that are left out have their defaults. A fixed
argument may be given by the name that it has in the wrapped tool, and replaces the fixed value.
"""

Wrapper: TypeAlias = Callable[..., Awaitable[Any]]
"""A function that gets a `CallTool`, the arguments as a dict and, if it wants, the context."""


class WrapperSignature(RawSignature):
    """The signature of a wrapper: the function that calls the tool, and the arguments."""

    values_max: ClassVar[int] = 2

    def bind(self, arguments: Any, context: Any) -> dict[str, Any]:
        return self._keywords(arguments, context)


# The keywords at the root of a JSON Schema beside which arguments can be changed. Any other one,
# such as `allOf`, may name an argument.
_KNOWN_KEYWORDS: Final = frozenset(
    {
        *("type", "properties", "required", "additionalProperties"),
        *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description"),
    }
)


@attrs.define(eq=False, repr=False)
class ToolTransform:
    """The changes that make a transformed tool of another tool, its base.

    Attributes:
        base: The tool that the transformed tool was made of.
        changes: The changes of arguments, by their names in the base.
        wrapper: The user's function that calls the base, with a `WrapperSignature`; or None.
        names: The name of each argument that is not fixed, by its name in the base.
        values: The values of fixed arguments, and the changed defaults, by the same names.

    Raises:
        TypeError: An annotation of the base cannot be resolved.
        ValueError: There is no such argument, it cannot have the value, two arguments would have
            the same name, a new name is not possible, or the base has a JSON Schema in which
            arguments cannot be changed.
    """

    base: "RegisteredTool"
    changes: Mapping[str, Change]
    wrapper: "Registered | None"
    names: Mapping[str, str] = attrs.field(init=False)
    values: dict[str, Parameter] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        tool, base, changes = self.base.name, self.base.signature, self.changes
        given = base.given if isinstance(base, GivenSchemaSignature) else None
        known = [*base.parameters] if given is None else [*given.get("properties", {})]
        change: Any
        for name, change in changes.items():
            if name not in known:
                hint = did_you_mean(name, known) or f"; it has: {', '.join(known) or 'none'}"
                raise ValueError(f"{tool!r} has no argument {name!r}{hint}")
            if not isinstance(change, Argument | Fixed):
                raise TypeError(
                    f"the change of {name!r} has to be an Argument or Fixed of mcp_trio.tools, such"
                    f" as Argument({change!r}), not {change!r}"
                )
        self.names = names = {
            name: getattr(changes.get(name), "name", None) or name
            for name in known
            if not isinstance(changes.get(name), Fixed)
        }
        twice = [name for name in names.values() if [*names.values()].count(name) > 1]
        if twice:
            raise ValueError(f"two arguments of {tool!r} would have the name {twice[0]!r}")
        for name in names.values() if given is None else ():
            if not name.isidentifier():
                raise ValueError(
                    f"{name!r} cannot be the name of an argument: use letters, digits, _"
                )
        unknown = sorted((given or {}).keys() - _KNOWN_KEYWORDS)
        if unknown and changes:
            raise ValueError(
                f"the arguments of {tool!r} cannot be changed: its input schema has {unknown[0]!r}"
            )
        self.values = {}
        for name, change in changes.items():
            value = change.value if isinstance(change, Fixed) else change.default
            if value is msgspec.NODEFAULT:
                continue
            # A string, number or bool is read as that of a call; the tool gets others as they are.
            if given is None and value is not None and type(value) in SCALARS:
                try:
                    value = convert(value, base.parameters[name].hint)
                except msgspec.ValidationError as error:
                    raise ValueError(
                        f"{value!r} cannot be the argument {name!r} of {tool!r}: {error}"
                    ) from error
            self.values[name] = base.parameter(name, Any, value)

    def signature(self) -> Signature:
        """Return the signature of the transformed tool."""
        base = self.base.signature
        fields = [each.name for each in attrs.fields(Signature) if each.init]
        kept: dict[str, Any] = {name: getattr(base, name) for name in fields}
        if isinstance(base, GivenSchemaSignature):
            given = self._changed_schema(base.given)
            return TransformedSchemaSignature(transform=self, given=given, **kept)
        return TransformedSignature(transform=self, **kept)

    def _changed_schema(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON Schema of the arguments that are left, under their new names."""
        properties: dict[str, Any] = {}
        required = list(given.get("required", ()))
        for old, new in self.names.items():
            change = self.change(old)
            schema = given["properties"][old]
            if change.description is not None:
                schema = {**schema, "description": change.description}
            if change.default is not msgspec.NODEFAULT:
                schema = {**schema, "default": change.default}
                required = [name for name in required if name != old]
            properties[new] = schema
        changed = {**given, "properties": properties}
        if "required" in given:
            names = self.names
            changed["required"] = [names.get(name, name) for name in required if name in names]
        return changed

    def change(self, name: str) -> Argument:
        """Return the change of an argument that is not fixed, by its name in the base."""
        return cast("Argument", self.changes.get(name) or Argument())

    def arguments(self, given: Mapping[str, Any]) -> Any:
        """Return the arguments for the base, as its own signature decodes them.

        `given` has the names of the transformed tool; fixed arguments have their names in the base.

        Raises:
            TypeError: The tool has no such argument, or a required one is missing.
        """
        old_names = {new: old for old, new in self.names.items()}
        values = {
            name: copy.deepcopy(each.default) if each.is_mutable else each.default
            for name, each in self.values.items()
        }
        for name, value in given.items():
            if name in self.names and name not in old_names:
                new = self.names[name]
                raise TypeError(f"the argument {name!r} has the name {new!r} here")
            values[old_names.get(name, name)] = value
        base = self.base.signature
        if isinstance(base, GivenSchemaSignature):
            return values
        for old, new in self.names.items():
            if old not in values and base.parameters[old].is_required:
                raise TypeError(f"the argument {new!r} is missing")
        return base.arguments_type(**values)


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class TransformedSignature(Signature):
    """The signature of a transformed tool whose arguments are the parameters of a function."""

    transform: ToolTransform

    @functools.cached_property
    def _declared_parameters(self) -> list[DeclaredParameter]:
        empty = inspect.Parameter.empty
        return [
            DeclaredParameter(each.name, each.hint, empty if each.is_required else each.default)
            for each in self.parameters.values()
        ]

    @functools.cached_property
    def context_parameter(self) -> str | None:
        return None  # The base receives the context.

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        hints = self.transform.base.signature.hints
        return {new: hints[old] for old, new in self.transform.names.items()}

    @functools.cached_property
    def docstring(self) -> Docstring:
        of_base = self.transform.base.signature.docstring
        texts = {
            new: self.transform.change(old).description or of_base.parameters.get(old)
            for old, new in self.transform.names.items()
        }
        return Docstring(of_base.description, {name: it for name, it in texts.items() if it})

    @functools.cached_property
    def parameters(self) -> dict[str, Parameter]:
        parameters: dict[str, Parameter] = {}
        for old, new in self.transform.names.items():
            before = self.transform.base.signature.parameters[old]
            change, hint = self.transform.change(old), before.hint
            if change.description is not None:
                special: Any = Annotated  # The last description counts.
                hint = special[hint, msgspec.Meta(description=change.description)]
            default = self.transform.values.get(old, before).default
            parameters[new] = self.parameter(new, hint, default)
        return parameters


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class TransformedSchemaSignature(GivenSchemaSignature):
    """The signature of a transformed tool that was registered with a JSON Schema."""

    transform: ToolTransform

    def decode(self, raw: msgspec.Raw | bytes | None) -> Any:
        arguments = super().decode(raw)
        # Clients must not send the former names either, also if the schema is open.
        former = self.transform.changes.keys() - set(self.transform.names.values())
        lines = [f"{name}: unknown argument" for name in sorted(former) if name in arguments]
        if lines:
            raise ArgumentsError(lines)
        return arguments
