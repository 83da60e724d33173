"""Transformed tools: a registered tool with another name, other arguments, or a wrapper.

A transformed tool has a `base`, the tool that it was made of, and a signature of its own, which
lists and decodes the changed arguments. Each call decodes them by that signature, runs the wrapper
if there is one, and then calls the base with the arguments that the signature restores.
"""

import copy
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Protocol, TypeAlias, cast

import attrs
import msgspec

from mcp_trio._protocol.suggestions import did_you_mean
from mcp_trio._server.signatures import (
    ArgumentsError,
    Docstring,
    GivenSchema,
    Parameter,
    RawSignature,
    Signature,
)


@attrs.frozen
class Argument:
    """A change of a tool's argument; attributes that are not given change nothing.

    Attributes:
        name: The new name, which clients see and send.
        description: The new description.
        default: The new default, which makes the argument optional.
    """

    name: str | None = None
    description: str | None = attrs.field(default=None, kw_only=True)
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
        """Return the keywords to call the wrapper with, from a pair of its two values."""
        return self._keywords(arguments, context)


class TransformedSignature(Protocol):
    """The signature of a transformed tool."""

    def restored(self, given: Mapping[str, Any]) -> Any:
        """Return the arguments for the base, as its own signature decodes them.

        Raises:
            TypeError: The tool has no such argument, or a required one is missing.
        """
        ...


def transformed_signature(tool: str, base: Signature, changes: Mapping[str, Change]) -> Signature:
    """Return the signature of the tool named `tool` with changed arguments.

    Raises:
        TypeError: An annotation of the base cannot be resolved.
        ValueError: There is no such argument, two arguments would have the same name, a new name is
            not possible, or the base has a JSON Schema in which arguments cannot be changed.
    """
    given = base.given if isinstance(base, GivenSchema) else None
    known = [*base.parameters] if given is None else [*given.get("properties", {})]
    for name in changes:
        if name not in known:
            raise ValueError(f"{tool!r} has no argument {name!r}{did_you_mean(name, known)}")
    names = {
        name: getattr(changes.get(name), "name", None) or name
        for name in known
        if not isinstance(changes.get(name), Fixed)
    }
    twice = [name for name in names.values() if [*names.values()].count(name) > 1]
    if twice:
        raise ValueError(f"two arguments of {tool!r} would have the name {twice[0]!r}")
    if given is not None:
        schema = _changed_schema(tool, given, changes, names)
        return TransformedSchema(base=base, changes=changes, names=names, **_options(base, schema))
    for name in names.values():
        if not name.isidentifier():
            raise ValueError(f"{name!r} cannot be the name of an argument: use letters, digits, _")
    return TransformedParameters(base=base, changes=changes, names=names, **_options(base))


def _options(base: Signature, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {} if given is None else {"given": given}
    return options | {
        "handler": base.handler,
        "context_types": base.context_types,
        "foreign_context_types": base.foreign_context_types,
        "limits": base.limits,
        "converter": base.converter,
    }


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class TransformedParameters(Signature):
    """The signature of a transformed tool whose arguments come from the parameters of a function.

    Attributes:
        base: The signature of the base.
        changes: The changes of arguments, by their names in the base.
        names: The name of each argument that is not fixed, by its name in the base.
    """

    base: Signature
    changes: Mapping[str, Change]
    names: Mapping[str, str]

    @functools.cached_property
    def context_parameter(self) -> str | None:
        """None: the base receives the context."""
        return None

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The types of the arguments."""
        return {new: self.base.hints[old] for old, new in self.names.items()}

    @functools.cached_property
    def docstring(self) -> Docstring:
        """The docstring of the function, with the descriptions of the changes."""
        of_base = self.base.docstring
        texts = {
            new: getattr(self.changes.get(old), "description", None) or of_base.parameters.get(old)
            for old, new in self.names.items()
        }
        return Docstring(of_base.description, {name: it for name, it in texts.items() if it})

    @functools.cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The arguments, under their new names."""
        parameters: dict[str, Parameter] = {}
        for old, new in self.names.items():
            before, change = self.base.parameters[old], self.changes.get(old) or Argument()
            assert isinstance(change, Argument)
            hint = before.hint
            if change.description is not None:
                special: Any = Annotated  # The last description counts.
                hint = special[hint, msgspec.Meta(description=change.description)]
            is_changed = change.default is not msgspec.NODEFAULT
            default = change.default if is_changed else before.default
            parameters[new] = self.parameter(new, hint, default)
        return parameters

    @functools.cached_property
    def fixed(self) -> dict[str, Parameter]:
        """The fixed arguments by their names in the base; their values are the defaults."""
        return {
            name: self.parameter(name, self.base.parameters[name].hint, change.value)
            for name, change in self.changes.items()
            if isinstance(change, Fixed)
        }

    def restored(self, given: Mapping[str, Any]) -> msgspec.Struct:
        """Return the arguments for the base; see `TransformedSignature`."""
        hidden = {name: given[name] for name in given if name in self._hidden_names}
        shown = {name: value for name, value in given.items() if name not in hidden}
        complete = self.arguments_type(**shown)
        values = {old: getattr(complete, new) for old, new in self.names.items()}
        for name, each in self.fixed.items():
            values[name] = copy.deepcopy(each.default) if each.is_mutable else each.default
        return self.base.arguments_type(**(values | hidden))

    @functools.cached_property
    def _hidden_names(self) -> frozenset[str]:
        return frozenset(self.fixed).difference(self.names.values())


# The keywords at the root of a JSON Schema beside which arguments can be changed. Any other one,
# such as `allOf`, may name an argument.
_KNOWN_KEYWORDS: Final = frozenset(
    {
        *("type", "properties", "required", "additionalProperties"),
        *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description"),
    }
)


def _changed_schema(
    tool: str, given: Mapping[str, Any], changes: Mapping[str, Change], names: Mapping[str, str]
) -> dict[str, Any]:
    """Return the JSON Schema of the arguments that are left, under their new names."""
    unknown = sorted(given.keys() - _KNOWN_KEYWORDS)
    if unknown and changes:
        raise ValueError(
            f"the arguments of {tool!r} cannot be changed: its input schema has {unknown[0]!r}"
        )
    properties: dict[str, Any] = {}
    required = list(given.get("required", ()))
    for old, new in names.items():
        change = cast("Argument", changes.get(old) or Argument())
        schema = given["properties"][old]
        if change.description is not None:
            schema = {**schema, "description": change.description}
        if change.default is not msgspec.NODEFAULT:
            schema = {**schema, "default": change.default}
            required = [name for name in required if name != old]
        properties[new] = schema
    changed = {**given, "properties": properties}
    if "required" in given:
        changed["required"] = [names.get(name, name) for name in required if name in names]
    return changed


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class TransformedSchema(GivenSchema):
    """The signature of a transformed tool that was registered with a JSON Schema.

    Attributes:
        base: The signature of the base.
        changes: The changes of arguments, by their names in the base.
        names: The name of each argument that is not fixed, by its name in the base.
    """

    base: Signature
    changes: Mapping[str, Change]
    names: Mapping[str, str]

    @functools.cached_property
    def _replaced_names(self) -> Sequence[str]:
        """The names in the base that clients must not send, also if the schema is open."""
        return sorted(self.changes.keys() - set(self.names.values()))

    def decode(self, raw: msgspec.Raw | bytes | None) -> Any:
        """Decode the arguments of a call, and validate them against the changed schema.

        Raises:
            ArgumentsError: The arguments are invalid; the error has a line for each error in them.
        """
        arguments = super().decode(raw)
        lines = [f"{name}: unknown argument" for name in self._replaced_names if name in arguments]
        if lines:
            raise ArgumentsError(lines)
        return arguments

    def restored(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for the base; see `TransformedSignature`."""
        old_names = {new: old for old, new in self.names.items()}
        values = {
            name: change.value if isinstance(change, Fixed) else change.default
            for name, change in self.changes.items()
            if isinstance(change, Fixed) or change.default is not msgspec.NODEFAULT
        }
        return copy.deepcopy(values) | {old_names.get(it, it): given[it] for it in given}
