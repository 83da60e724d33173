"""From a handler's signature to the schema of its arguments, and from the wire to its keywords.

A `Signature` is made when a handler is registered and costs next to nothing then: only what
arguments by name can never fill is refused. Everything else is built when it is first needed.

Decoding is strict and happens once, straight into a struct with one field for each parameter. Only
when that fails, a second pass reads member by member, so that the caller hears of every mistake
at once and not of the first one only.
"""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

import attrs
import msgspec

from mcp_trio._errors import MCPError
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._server.callables import (
    place,
    plain_function,
    refuse_unnameable,
    resolved_hint,
)
from mcp_trio._server.constraints import with_meta
from mcp_trio._server.custom_types import custom_schema, structure, unstructure
from mcp_trio._server.docstrings import Docstring, parse_docstring
from mcp_trio._server.ordering import in_order

Handler = Callable[..., Any]


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
    if not description:
        return hint
    base, *metadata = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    annotated: Any = Annotated
    return annotated[(base, msgspec.Meta(description=description), *metadata)]


def _checked(function: types.FunctionType, parameter: str, hint: Any) -> Any:
    """The type as msgspec reads it."""
    try:
        hint = with_meta(hint)
        msgspec.json.schema(hint, schema_hook=custom_schema)
        msgspec.json.Decoder(hint)
    except Exception as error:
        raise TypeError(f"{place(function, parameter)}: {error}") from error
    return hint


_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError)


def _line(name: str, error: object) -> str:
    """From "Expected `int`, got `str` - at `$[0]`" to "days[0]: expected int, got str"."""
    message, _, path = str(error).replace("`", "").partition(" - at ")
    before, _, after = path.partition("$")
    return f"{before}{name}{after}: {message[:1].lower()}{message[1:]}"


def _default_keyword(default: Any) -> dict[str, Any]:
    """A default without a JSON form is the function's own affair and stays unsaid."""
    try:
        plain = in_order(default)
        return {"default": msgspec.to_builtins(plain, enc_hook=unstructure)}
    except TypeError:
        return {}


# Signatures -------------------------------------------------------------------------------------

# Values that msgspec takes as a struct's default as they are; any other hides behind a factory.
_PLAIN_DEFAULTS: Final = frozenset({types.NoneType, bool, int, float, str})


@attrs.frozen
class Parameter:
    """One parameter that arrives over the wire; `default` is `msgspec.NODEFAULT` if required."""

    name: str
    hint: Any
    default: Any

    @property
    def is_required(self) -> bool:
        """Whether a call without it is refused."""
        return self.default is msgspec.NODEFAULT

    def as_field(self) -> tuple[str, Any, Any]:
        """The row for `msgspec.defstruct`; what is left out becomes the function's own default."""
        default = self.default
        if self.is_required or type(default) in _PLAIN_DEFAULTS:
            return self.name, self.hint, msgspec.field(default=default)
        return self.name, self.hint, msgspec.field(default_factory=lambda: default)


@attrs.define(kw_only=True, eq=False)
class Signature:
    """What a handler takes from the wire; built piece by piece, when first asked.

    Attributes:
        handler: Any callable whose parameters have names.
        context_type: The class by whose annotation the context parameter is known.
        foreign_context_types: Contexts that other kinds of handlers get, and this one does not.
        limits: How many lines an `ArgumentsError` may have, and how long they are.

    Raises:
        TypeError: At once for `*args`, `**kwargs`, positional-only parameters and things that are
            no Python function; at first need for annotations that cannot be resolved or decoded.
            Function and parameter are named.
    """

    handler: Handler
    context_type: type[Any]
    foreign_context_types: tuple[type[Any], ...] = ()
    limits: Limits = DEFAULT_LIMITS
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
        hint = _checked(self._function, item.name, self._hints[item.name])
        described = _described(hint, self.docstring.parameters.get(item.name))
        is_required = item.default is inspect.Parameter.empty
        return Parameter(item.name, described, msgspec.NODEFAULT if is_required else item.default)

    @functools.cached_property
    def arguments_type(self) -> type[msgspec.Struct]:
        """A struct with one field for each parameter, closed to unknown members."""
        fields = [parameter.as_field() for parameter in self.parameters.values()]
        return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments: a closed object, named types under `$defs`."""
        (root,), definitions = msgspec.json.schema_components(
            [self.arguments_type], schema_hook=custom_schema, ref_template="#/$defs/{name}"
        )
        for definition in definitions.values():
            definition.pop("title", None)
        schema: dict[str, Any] = definitions.pop(root["$ref"].removeprefix("#/$defs/"))
        for parameter in self.parameters.values():
            if not parameter.is_required:
                schema["properties"][parameter.name].update(_default_keyword(parameter.default))
        return schema | ({"$defs": definitions} if definitions else {})

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
            return msgspec.convert(values, self.arguments_type, strict=False, dec_hook=structure)
        except msgspec.ValidationError as error:
            read = functools.partial(msgspec.convert, strict=False, dec_hook=structure)
            raise ArgumentsError(self._lines(values, read, error)) from error

    def _lines_of_json(self, text: msgspec.Raw | bytes, error: Exception) -> list[str]:
        try:
            members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except _DECODE_ERRORS as fault:
            return [_line("arguments", fault)]
        return self._lines(
            members, functools.partial(msgspec.json.decode, dec_hook=structure), error
        )

    def _lines(
        self, members: Mapping[str, Any], read: Callable[..., Any], error: Exception
    ) -> list[str]:
        lines = [*self._mistakes(members, read)] or [_line("arguments", error)]
        shown = lines[: self.limits.argument_errors_max]
        more = [f"and {len(lines) - len(shown)} more"] if len(lines) > len(shown) else []
        return [line[: self.limits.argument_error_chars_max] for line in shown] + more

    def _mistakes(self, members: Mapping[str, Any], read: Callable[..., Any]) -> Iterator[str]:
        for name, parameter in self.parameters.items():
            if name in members:
                try:
                    read(members[name], type=parameter.hint)
                except _DECODE_ERRORS as error:
                    yield _line(name, error)
            elif parameter.is_required:
                yield f"{name}: missing"
        for name in members:
            if name not in self.parameters:
                yield _line(name, "unknown argument")

    def bind(self, arguments: msgspec.Struct, context: Any) -> dict[str, Any]:
        """The keywords to call the handler with; the values stay the decoded objects."""
        keywords = msgspec.structs.asdict(arguments)
        if self.context_parameter is not None:
            keywords[self.context_parameter] = context
        return keywords
