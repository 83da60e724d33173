"""From a handler's signature to the schema of its arguments, and from the wire to its keywords.

A `Signature` is made when a handler is registered and costs next to nothing then: only what
arguments by name can never fill is refused. Everything else is built when it is first needed.

Decoding is strict and happens once, straight into a struct with one field for each parameter. Only
when that fails, a second pass reads member by member, so that the caller hears of every mistake
at once and not of the first one only.
"""

import copy
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import attrs
import msgspec

from mcp_trio._errors import MCPError
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._server.callables import (
    place,
    plain_function,
    refuse_unnameable,
    resolved_hint,
    resolved_return,
)
from mcp_trio._server.constraints import annotated
from mcp_trio._server.custom_types import TypeReader
from mcp_trio._server.docstrings import Docstring, parse_docstring
from mcp_trio._server.json_schemas import json_schema
from mcp_trio._server.mistakes import line, lines_of
from mcp_trio._server.ordering import JsonWriter
from mcp_trio._server.stand_ins import convert, structure

if TYPE_CHECKING:
    from cattrs import Converter

Handler = Callable[..., Any]

# Values that msgspec takes as a struct's default as they are; any other hides behind a factory.
_PLAIN_DEFAULTS: Final = frozenset({types.NoneType, bool, int, float, str})
# Values that a handler could change for all later calls, or what is in them, if each did not get
# its own.
_MUTABLE_DEFAULTS: Final = (list, dict, set, bytearray, tuple)
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError)
_read_text: Final = functools.partial(convert, strict=False)


class ArgumentsError(MCPError):
    """The arguments do not fit the handler; `lines` has one short line for each of them."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def _is_context(hint: Any, kinds: tuple[type[Any], ...]) -> bool:
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _is_context(hint.__origin__, kinds)
    if origin in (typing.Union, types.UnionType):
        others = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        return len(others) == 1 and _is_context(others[0], kinds)
    kind = origin or hint
    return isinstance(kind, type) and issubclass(kind, kinds)


def _described(hint: Any, description: str | None) -> Any:
    """The docstring's words come first, so that a `Meta` in the annotation overrides them."""
    return annotated(hint, [msgspec.Meta(description=description)] if description else [])


def _itself(default: Any) -> Any:
    return default


@attrs.frozen
class Parameter:
    """One parameter that arrives over the wire; `default` is `msgspec.NODEFAULT` if required.

    A default that `is_mutable` is copied for each call.
    """

    name: str
    hint: Any
    default: Any
    is_mutable: bool

    @property
    def is_required(self) -> bool:
        """Whether a call without it is refused."""
        return self.default is msgspec.NODEFAULT

    def as_field(self) -> tuple[str, Any, Any]:
        """The row for `msgspec.defstruct`; what is left out becomes the function's own default."""
        default = self.default
        if self.is_required or type(default) in _PLAIN_DEFAULTS:
            return self.name, self.hint, msgspec.field(default=default)
        factory = functools.partial(copy.deepcopy if self.is_mutable else _itself, default)
        return self.name, self.hint, msgspec.field(default_factory=factory)


@attrs.define(kw_only=True, eq=False, slots=False)  # with them, all is found more slowly here
class Signature:
    """What a handler takes from the wire; built piece by piece, when first asked.

    Attributes:
        handler: Any callable whose parameters have names.
        context_type: The class by whose annotation the context parameter is known.
        foreign_context_types: Contexts that other kinds of handlers get, and this one does not.
        limits: How many lines an `ArgumentsError` may have, and how long they are.
        converter: Knows the types that nothing here does.

    Raises:
        TypeError: At once for `*args`, `**kwargs`, positional-only parameters and things that are
            no Python function; at first need for annotations that cannot be resolved or decoded.
            Function and parameter are named.
    """

    handler: Handler
    context_type: type[Any]
    foreign_context_types: tuple[type[Any], ...] = ()
    limits: Limits = DEFAULT_LIMITS
    converter: "Converter | None" = None
    _function: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._function = plain_function(self.handler)
        refuse_unnameable(self.handler, self._function)

    @functools.cached_property
    def docstring(self) -> Docstring:
        """The description of the handler, and of its parameters."""
        return parse_docstring(self._function.__doc__ or "")

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        parameters = inspect.signature(self.handler).parameters.values()
        return {item.name: resolved_hint(self._function, item) for item in parameters}

    @functools.cached_property
    def context_parameter(self) -> str | None:
        """The name of the parameter that takes the context, if there is one."""
        foreign = self._context_names(self.foreign_context_types)
        if foreign:
            raise TypeError(
                f"{place(self._function, foreign[0])} is to be a {self.context_type.__name__}: "
                "a `def` handler gets a ThreadContext, any other a Context"
            )
        names = self._context_names((self.context_type,))
        if len(names) > 1:
            raise TypeError(f"{place(self._function, names[1])} is a second context")
        return names[0] if names else None

    def _context_names(self, kinds: tuple[type[Any], ...]) -> list[str]:
        return [name for name, hint in self._hints.items() if _is_context(hint, kinds)]

    @functools.cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters that arrive over the wire, in the function's order."""
        return {
            item.name: self._parameter(item)
            for item in inspect.signature(self.handler).parameters.values()
            if item.name != self.context_parameter
        }

    def _parameter(self, item: inspect.Parameter) -> Parameter:
        hint = _described(self._readable(item.name), self.docstring.parameters.get(item.name))
        default = msgspec.NODEFAULT if item.default is inspect.Parameter.empty else item.default
        is_mutable = isinstance(default, _MUTABLE_DEFAULTS) or self.reader.may_change(default)
        return Parameter(item.name, hint, default, is_mutable)

    @functools.cached_property
    def reader(self) -> TypeReader:
        """Makes this handler's annotations readable."""
        return TypeReader(self.converter)

    @property
    def returns(self) -> Any:
        """What the handler says that it returns; `Any` if it says nothing."""
        return resolved_return(self._function)

    def _readable(self, name: str) -> Any:
        """The type of a parameter as msgspec reads it."""
        try:
            hint = self.reader.readable(self._hints[name])
            json_schema(hint)
        except Exception as error:
            raise TypeError(f"{place(self._function, name)}: {error}") from error
        return hint

    @functools.cached_property
    def arguments_type(self) -> type[msgspec.Struct]:
        """A struct with one field for each parameter, closed to unknown members."""
        fields = [parameter.as_field() for parameter in self.parameters.values()]
        return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments: a closed object, named types under `$defs`."""
        schema = json_schema(self.arguments_type)
        definitions: dict[str, Any] = schema["$defs"]
        own: dict[str, Any] = definitions.pop(schema["$ref"].removeprefix("#/$defs/"))
        for parameter in self.parameters.values():
            if not parameter.is_required:
                own["properties"][parameter.name].update(self._default_keyword(parameter.default))
        return own | ({"$defs": definitions} if definitions else {})

    def _default_keyword(self, default: Any) -> dict[str, Any]:
        """A default without a JSON form is the function's own affair and stays unsaid."""
        try:
            return {"default": JsonWriter(self.converter).plain(default)}
        except TypeError:
            return {}

    @functools.cached_property
    def _decoder(self) -> msgspec.json.Decoder[msgspec.Struct]:
        return msgspec.json.Decoder(self.arguments_type, dec_hook=structure)

    def decode(self, raw: msgspec.Raw | bytes | None) -> msgspec.Struct:
        """The arguments of a call, strictly typed; None stands for a call without any.

        Raises:
            ArgumentsError: with one line for each argument that is wrong, missing or unknown.
        """
        text = b"{}" if raw is None else raw
        try:
            return self._decoder.decode(text)
        except _DECODE_ERRORS as error:
            raise ArgumentsError(self._lines_of_json(text, error)) from error

    def decode_text(self, values: Mapping[str, str]) -> msgspec.Struct:
        """The same for arguments that are always text (prompts, templates): "3" fits an `int`."""
        try:
            arguments: msgspec.Struct = _read_text(values, self.arguments_type)
        except msgspec.ValidationError as error:
            raise ArgumentsError(self._lines(values, _read_text, error)) from error
        return arguments

    def _lines_of_json(self, text: msgspec.Raw | bytes, error: Exception) -> list[str]:
        try:
            values = msgspec.json.decode(text)
        except _DECODE_ERRORS as fault:
            return [line(fault)]
        return self._lines(values, convert, error)

    def _lines(self, values: Any, read: Callable[[Any, Any], Any], error: Exception) -> list[str]:
        lines = lines_of(self.arguments_type, values, read=read, limits=self.limits)
        return lines or [line(error)[: self.limits.argument_error_chars_max]]

    def bind(self, arguments: msgspec.Struct, context: Any) -> dict[str, Any]:
        """The keywords to call the handler with; the values stay the decoded objects."""
        keywords = msgspec.structs.asdict(arguments)
        if self.context_parameter is not None:
            keywords[self.context_parameter] = context
        return keywords
