"""Signatures of handlers: from annotations and docstrings to schemas and arguments."""

import copy
import functools
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import attrs
import msgspec

from mcp_trio._protocol.http_headers import parameter_paths
from mcp_trio._protocol.json_schema import SchemaValidator
from mcp_trio._server.introspection import (
    place,
    plain_function,
    reject_unnameable,
    resolved_hint,
    resolved_return,
)
from mcp_trio._server.results import JsonWriter
from mcp_trio._server.type_adapters import TypeReader, annotated, convert, json_schema, structure
from mcp_trio._server.validation_errors import line, lines_of
from mcp_trio.errors import MCPError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from cattrs import Converter


# --------------------
# What a handler's docstring says about it and its parameters.
#
# A style of docstring is a row of patterns; one function reads them all. The style in which a
# docstring has the most parameters is its own.


@attrs.frozen(kw_only=True)
class DocstringStyle:
    """How a style marks its sections and, inside them, its parameters.

    `section` splits a docstring into prose and pairs of title and body, `end` a body from the prose
    after it, and `item` a dedented body into pairs of names and text. `parameter_titles` are the
    sections that describe parameters.
    """

    section: re.Pattern[str]
    end: re.Pattern[str]
    item: re.Pattern[str]
    parameter_titles: frozenset[str]


GOOGLE: Final = DocstringStyle(
    section=re.compile(
        r"^(Args|Arguments|Parameters|Keyword Args|Keyword Arguments|Returns?|Yields?|Raises"
        r"|Attributes|Examples?|Notes?|Warnings?|Warns|References|See Also|Todo):[ \t]*$",
        re.MULTILINE,
    ),
    end=re.compile(r"\n(?=\S)"),
    item=re.compile(r"^(\w+)[ \t]*(?:\([^\n]*?\))?[ \t]*:", re.MULTILINE),
    parameter_titles=frozenset(
        {"Args", "Arguments", "Parameters", "Keyword Args", "Keyword Arguments"}
    ),
)

# A parameter stands where a section begins, so that only its form tells it from prose.
_NUMPY_NAMES: Final = r"\w+(?:,[ \t]*\w+)*"
_NUMPY_TYPE: Final = r"[ \t]*(?::[^\n]*)?$"

NUMPY: Final = DocstringStyle(
    section=re.compile(
        r"^(Parameters|Other Parameters|Returns|Yields|Receives|Raises|Warns|Warnings|See Also"
        r"|Notes|References|Examples|Attributes|Methods)[ \t]*\n-{3,}[ \t]*$",
        re.MULTILINE,
    ),
    end=re.compile(rf"\n(?=\S)(?!{_NUMPY_NAMES}{_NUMPY_TYPE})", re.MULTILINE),
    item=re.compile(rf"^({_NUMPY_NAMES}){_NUMPY_TYPE}", re.MULTILINE),
    parameter_titles=frozenset({"Parameters", "Other Parameters"}),
)

SPHINX: Final = DocstringStyle(
    section=re.compile(
        r"^:(param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|except"
        r"|exception|yields?|ytype|var|ivar|cvar|vartype|meta)\b",
        re.MULTILINE,
    ),
    end=re.compile(r"\n(?=\S)"),
    item=re.compile(r"\A[^:\n]*?(\w+)[ \t]*:"),
    parameter_titles=frozenset({"param", "parameter", "arg", "argument", "key", "keyword"}),
)

STYLES: Final = (GOOGLE, NUMPY, SPHINX)


@attrs.frozen
class Docstring:
    """The prose outside of sections, and a text for each parameter."""

    description: str
    parameters: dict[str, str]


def parse_docstring(text: str) -> Docstring:
    """Read a docstring; sections that are not about parameters are left out.

    What stands between the parameters and cannot be read as one belongs to the description.
    """
    clean = inspect.cleandoc(text)
    return max((_read(clean, style) for style in STYLES), key=_weight)


def _weight(found: Docstring) -> tuple[int, int]:
    """How much of a docstring a style explains; sections of any kind make the prose shorter."""
    return len(found.parameters), -len(found.description)


def _read(text: str, style: DocstringStyle) -> Docstring:
    start, *sections = style.section.split(text)
    prose, parameters = [start], dict[str, str]()
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        inside, *after = style.end.split(body, maxsplit=1)
        if title in style.parameter_titles:
            unread, *items = style.item.split(textwrap.dedent(inside))
            prose.append(unread)
            parameters.update(_items(items))
        prose += after
    parts = filter(None, (part.strip() for part in prose))
    return Docstring("\n\n".join(parts), parameters)


def _items(items: list[str]) -> Iterator[tuple[str, str]]:
    for names, text in zip(items[::2], items[1::2], strict=True):
        for name in names.split(","):
            yield name.strip(), " ".join(text.split())


# --------------------
# From a handler's signature to the schema of its arguments, and from the wire to its keywords.
#
# A `Signature` is made when a handler is registered and costs next to nothing then: only what
# arguments by name can never fill is refused. Everything else is built when it is first needed.
#
# Decoding is strict and happens once, straight into a struct with one field for each parameter.
# Only when that fails, a second pass reads member by member, so that the caller hears of every
# mistake at once and not of the first one only.


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
        """Return whether a call without it is refused."""
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
        reject_unnameable(self.handler, self._function)

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
        return lines or [line(error)[: self.limits.messages.validation_error_chars_max]]

    def bind(self, arguments: msgspec.Struct, context: Any) -> dict[str, Any]:
        """The keywords to call the handler with; the values stay the decoded objects."""
        keywords = msgspec.structs.asdict(arguments)
        if self.context_parameter is not None:
            keywords[self.context_parameter] = context
        return keywords


# --------------------
# Which arguments of our own tools clients repeat in the head of an HTTP request.


def param_headers_of(schema: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    """The path of each argument that is mirrored, by its field (HDR-08).

    Raises:
        ValueError: An `x-mcp-header` breaks a rule (HDR-10 to HDR-15), or stands at a secret, which
            heads would carry into logs (HDR-35).
    """
    paths = parameter_paths(schema)
    for field, path in paths.items():
        if _property_at(schema, path).get("format") == "password":
            name = ".".join(path)
            raise ValueError(f"x-mcp-header {field!r} stands at {name!r}, which is a secret")
    return paths


def _property_at(schema: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    for step in path:
        schema = schema["properties"][step]
    return schema


# --------------------
# Handlers that take what arrives as one value: low-level methods, completions, given schemas.


@attrs.define(kw_only=True, eq=False, slots=False)  # as what it extends
class RawSignature(Signature):
    """A signature whose first parameter besides the context takes everything, whatever its name."""

    values_max: ClassVar[int] = 1

    @functools.cached_property
    def taking(self) -> list[str]:
        """The parameters that take the values: the first, and others that have no default.

        Raises:
            TypeError: There are more than values.
        """
        every = inspect.signature(self.handler).parameters.values()
        own = [item for item in every if item.name != self.context_parameter]
        filled = own[:1] + [item for item in own[1:] if item.default is inspect.Parameter.empty]
        for item in filled[self.values_max :]:
            raise TypeError(
                f"{place(self._function, item.name)} cannot be filled: "
                f"no more than {self.values_max} can, and the parameters before it are"
            )
        return [item.name for item in filled]

    @property
    def whole_type(self) -> Any:
        """What the annotation says of the value; `Any` if it says nothing."""
        return self._hints[self.taking[0]] if self.taking else Any

    def bind(self, arguments: Any, context: Any) -> dict[str, Any]:
        """The keywords to call the handler with."""
        return self._keywords((arguments,), context)

    def _keywords(self, values: Sequence[Any], context: Any) -> dict[str, Any]:
        keywords = dict(zip(self.taking, values, strict=False))
        if self.context_parameter is not None:
            keywords[self.context_parameter] = context
        return keywords


@attrs.define(kw_only=True, eq=False, slots=False)  # as what it extends
class GivenSchema(RawSignature):
    """The signature of such a tool: its arguments are one dict.

    Raises:
        SchemaError: At once, if the schema cannot be used.
        ValueError: At once, if the schema does not say that it describes an object (TOOL-05), or
            has an `x-mcp-header` that breaks a rule.
    """

    given: Mapping[str, Any]
    _checker: SchemaValidator = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.given.get("type") != "object":
            raise ValueError('an input schema has "type": "object" at its root')
        param_headers_of(self.given)
        self._checker = SchemaValidator(self.given, of="arguments", limits=self.limits)

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
