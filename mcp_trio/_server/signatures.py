"""Signatures of handlers: from annotations and docstrings to JSON Schemas and decoded arguments.

A `Signature` is made when a handler is registered. Only parameters that cannot receive an argument
by name are rejected then; types, schemas and decoders are built on first use.

Arguments are decoded once, strictly typed, into a struct with one field per parameter. If that
fails, the arguments are walked member by member, so that the caller receives all validation errors
and not only the first.
"""

import contextlib
import copy
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import attrs
import msgspec

from mcp_trio._server.introspection import (
    SCALARS,
    DeclaredParameter,
    annotations_of,
    check_parameter_kinds,
    declared_parameters,
    is_union,
    parameter_label,
    plain_function,
    resolved_hint,
    resolved_return,
)
from mcp_trio._server.results import JsonWriter
from mcp_trio._server.type_adapters import (
    TypeAdapter,
    annotated,
    convert,
    description_in,
    error_line,
    error_lines,
    is_pydantic_class,
    json_schema,
    plain_schema,
    structure,
    with_keywords_at_root,
)
from mcp_trio.errors import MCPError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from cattrs import Converter

    from mcp_trio._protocol.json_schema import SchemaValidator


# Docstrings -------------------------------------------------------------------------------------


class DocstringStyle(msgspec.Struct, frozen=True, kw_only=True):
    """The patterns of a docstring style, as texts: few servers need to compile them.

    Attributes:
        section: Splits a docstring into prose and pairs of a section's title and body.
        end: Splits the body of a section from prose that follows it.
        item: Splits the dedented body of a section into pairs of parameter names and text.
    """

    section: str
    end: str
    item: str


# The titles of sections that describe parameters, in all styles.
_PARAMETER_TITLES: Final = frozenset(
    {
        *("Args", "Arguments", "Parameters", "Keyword Args", "Keyword Arguments"),
        *("Other Parameters", "param", "parameter", "arg", "argument", "key", "keyword"),
    }
)

_GOOGLE: Final = DocstringStyle(
    section=(
        r"(?m)^(Args|Arguments|Parameters|Keyword Args|Keyword Arguments|Returns?|Yields?|Raises"
        r"|Attributes|Examples?|Notes?|Warnings?|Warns|References|See Also|Todo):[ \t]*$"
    ),
    end=r"\n(?=\S)",
    item=r"(?m)^(\w+)[ \t]*(?:\([^\n]*?\))?[ \t]*:",
)

# NumPy does not indent the names of parameters, so only their form distinguishes them from prose.
_NUMPY_NAMES: Final = r"\w+(?:,[ \t]*\w+)*"
_NUMPY_TYPE: Final = r"[ \t]*(?::[^\n]*)?$"

_NUMPY: Final = DocstringStyle(
    section=(
        r"(?m)^(Parameters|Other Parameters|Returns|Yields|Receives|Raises|Warns|Warnings|See Also"
        r"|Notes|References|Examples|Attributes|Methods)[ \t]*\n-{3,}[ \t]*$"
    ),
    end=rf"(?m)\n(?=\S)(?!{_NUMPY_NAMES}{_NUMPY_TYPE})",
    item=rf"(?m)^({_NUMPY_NAMES}){_NUMPY_TYPE}",
)

_SPHINX: Final = DocstringStyle(
    section=(
        r"(?m)^:(param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|except"
        r"|exception|yields?|ytype|var|ivar|cvar|vartype|meta)\b"
    ),
    end=r"\n(?=\S)",
    item=r"\A[^:\n]*?(\w+)[ \t]*:",
)


class Docstring(msgspec.Struct, frozen=True, gc=False):
    """A parsed docstring: the prose outside of sections, and the text for each parameter."""

    description: str
    parameters: dict[str, str]


def parse_docstring(text: str) -> Docstring:
    """Parse a docstring in the Google, NumPy or Sphinx style.

    Sections about anything but parameters are left out. Text in a section of parameters that
    describes none of them goes into the description.
    """
    clean = inspect.cleandoc(text)
    if "\n" not in clean and not clean.startswith(":"):
        return Docstring(clean, {})  # A single line has no sections, but those of Sphinx.
    parsed = (_parse_as(style, clean) for style in (_GOOGLE, _NUMPY, _SPHINX))
    # The docstring has the style that finds the most parameters; of several, the one that leaves
    # the shortest description, since it recognises the most sections.
    return max(parsed, key=lambda found: (len(found.parameters), -len(found.description)))


def _parse_as(style: DocstringStyle, text: str) -> Docstring:
    start, *sections = re.split(style.section, text)
    prose, parameters = [start], dict[str, str]()
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        inside, *after = re.split(style.end, body, maxsplit=1)
        if title in _PARAMETER_TITLES:
            other, *items = re.split(style.item, textwrap.dedent(inside))
            prose.append(other)
            for names, description in zip(items[::2], items[1::2], strict=True):
                for name in names.split(","):
                    parameters[name.strip()] = " ".join(description.split())
        prose += after
    parts = filter(None, (part.strip() for part in prose))
    return Docstring("\n\n".join(parts), parameters)


# Parameters -------------------------------------------------------------------------------------

Handler = Callable[..., Any]

# A default of one of these types is copied for each call, because a handler could modify it, or an
# object inside it, for all later calls.
_MUTABLE_DEFAULTS: Final = (list, dict, set, bytearray, tuple)
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError)
# The annotations of nearly all handlers; `is_plain` compares hints, which takes longer.
_PLAIN_TYPES: Final = (str, int, float, bool)
_read_text: Final = partial(convert, strict=False)


class ArgumentsError(MCPError):
    """The arguments of a call are invalid; `lines` has one short line for each error."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def _is_context(hint: Any, kinds: tuple[type[Any], ...]) -> bool:
    if type(hint) is type:
        return issubclass(hint, kinds)
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _is_context(hint.__origin__, kinds)
    if is_union(hint):
        others = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        return len(others) == 1 and _is_context(others[0], kinds)
    kind = origin or hint
    return isinstance(kind, type) and issubclass(kind, kinds)


def _is_pydantic_field(default: Any) -> bool:
    kind: type[Any] = default.__class__
    return kind.__name__ == "FieldInfo" and is_pydantic_class(kind)


class Parameter(msgspec.Struct, frozen=True):
    """A parameter that receives an argument of the call.

    Attributes:
        hint: The type, in a form that msgspec decodes.
        default: The default, or `msgspec.NODEFAULT` for a required parameter.
        is_mutable: True if the default is copied for each call.
    """

    name: str
    hint: Any
    default: Any
    is_mutable: bool

    @property
    def is_required(self) -> bool:
        """Return whether a call without the argument is rejected."""
        return self.default is msgspec.NODEFAULT

    def as_field(self) -> tuple[str, Any, Any]:
        """Return the parameter as a field for `msgspec.defstruct`."""
        default = self.default
        if self.is_required or type(default) in SCALARS:
            return self.name, self.hint, msgspec.field(default=default)
        # msgspec accepts any other default only from a factory.
        factory = partial(copy.deepcopy, default) if self.is_mutable else lambda: default
        return self.name, self.hint, msgspec.field(default_factory=factory)


# Signatures -------------------------------------------------------------------------------------


# Without slots, because attrs makes cached properties slower in classes with slots.
@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class Signature:
    """The parameters of a handler, and the decoder of its arguments.

    Attributes:
        handler: Any callable whose parameters have names.
        context_types: The annotations of the parameter that receives the context, the first one
            for error texts. A parameter `ctx` without an annotation receives it, too.
        foreign_context_types: The types of contexts that only other kinds of handlers receive.
        limits: The limits of the number and length of lines in an `ArgumentsError`.
        converter: A cattrs converter for types that msgspec does not support.

    Raises:
        TypeError: At once for `*args`, `**kwargs`, a positional-only parameter, or a handler that
            is no Python function; on first use, or by `check`, for an annotation that cannot be
            resolved or decoded. The text names function, line and parameter.
    """

    handler: Handler
    context_types: tuple[type[Any], ...]
    foreign_context_types: tuple[type[Any], ...] = ()
    limits: Limits = DEFAULT_LIMITS
    converter: "Converter | None" = None
    _function: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._function = plain_function(self.handler)
        check_parameter_kinds(self.handler, self._function)

    @property
    def needs_check(self) -> bool:
        """Return whether `check`, which takes longer, could fail: not for plain types alone."""
        known = (*_PLAIN_TYPES, *self.context_types)
        annotations = annotations_of(self._function).items()
        hints = [hint for name, hint in annotations if name != "return"]
        contexts = [hint for hint in hints if hint in self.context_types]
        return len(contexts) > 1 or any(hint not in known for hint in hints)

    def check(self) -> None:
        """Check that each argument can be decoded.

        Raises:
            TypeError: An annotation cannot be resolved or decoded; its cause is a `NameError` if a
                name is not defined (yet).
        """
        _ = self.parameters

    @cached_property
    def docstring(self) -> Docstring:
        """The parsed docstring of the handler."""
        return parse_docstring(self._function.__doc__ or "")

    @cached_property
    def _declared_parameters(self) -> list[DeclaredParameter]:
        return declared_parameters(self.handler)

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The types of the parameters; a pydantic `Field` as a default belongs to its type."""
        hints: dict[str, Any] = {}
        for item in self._declared_parameters:
            hint = resolved_hint(self._function, item)
            hints[item.name] = (
                Annotated[hint, item.default] if _is_pydantic_field(item.default) else hint
            )
        return hints

    @cached_property
    def context_parameter(self) -> str | None:
        """The name of the parameter that receives the context, if there is one."""
        # Most handlers have no context, so that one search for all kinds of it is enough.
        kinds = (*self.foreign_context_types, *self.context_types)
        names = [name for name, hint in self.hints.items() if _is_context(hint, kinds)]
        foreign = [
            name for name in names if _is_context(self.hints[name], self.foreign_context_types)
        ]
        if foreign:
            raise TypeError(
                f"{parameter_label(self._function, foreign[0])} has to be a "
                f"{self.context_types[0].__name__}: only a `def` handler in a thread receives a "
                "ThreadContext"
            )
        if not names:
            names = [
                item.name
                for item in self._declared_parameters
                if item.name == "ctx" and item.annotation is inspect.Parameter.empty
            ]
        if len(names) > 1:
            label = parameter_label(self._function, names[1])
            raise TypeError(f"{label} is a second context; a handler has one")
        return names[0] if names else None

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters that receive arguments, in the order of the function."""
        parameters: dict[str, Parameter] = {}
        for item in self._declared_parameters:
            name, hint = item.name, self.hints[item.name]
            if name == self.context_parameter:
                continue
            if self.plain_schema(hint) is None:
                try:
                    hint = self.adapter.decodable(hint)
                    json_schema(hint)
                except Exception as error:
                    raise TypeError(f"{parameter_label(self._function, name)}: {error}") from error
            description = description_in(self.hints[name]) or self.docstring.parameters.get(name)
            if description:
                # It comes first, so that a `Meta` or `doc` in the annotation overrides it.
                hint = annotated(hint, [msgspec.Meta(description=description)])
            default = item.default
            if _is_pydantic_field(default):
                default = (
                    inspect.Parameter.empty
                    if default.is_required()
                    else default.get_default(call_default_factory=True)
                )
            if default is inspect.Parameter.empty:
                default = msgspec.NODEFAULT
            parameters[name] = self.parameter(name, hint, default)
        return parameters

    def parameter(self, name: str, hint: Any, default: Any) -> Parameter:
        """Return the parameter with a type that msgspec decodes."""
        is_mutable = isinstance(default, _MUTABLE_DEFAULTS) or (
            default is not msgspec.NODEFAULT
            and type(default) not in SCALARS
            and self.adapter.may_be_mutable(default)
        )
        return Parameter(name, hint, default, is_mutable)

    @cached_property
    def adapter(self) -> TypeAdapter:
        return TypeAdapter(self.converter)

    @property
    def returns(self) -> Any:
        """The return annotation of the handler; `Any` if there is none."""
        return resolved_return(self._function)

    @cached_property
    def arguments_type(self) -> type[msgspec.Struct]:
        """A struct with one field for each parameter, which rejects unknown members."""
        fields = [parameter.as_field() for parameter in self.parameters.values()]
        # A class whose name is an underscore does not change the names of fields like `__city`.
        return msgspec.defstruct("_", fields, kw_only=True, forbid_unknown_fields=True)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments: a closed object, with named types under `$defs`."""
        schema = self._schema_of_plain_parameters()
        if schema is None:
            schema = with_keywords_at_root(json_schema(self.arguments_type))
        if len(schema["required"]) < len(schema["properties"]):
            for parameter in self.parameters.values():
                if not parameter.is_required:
                    # A default without a JSON form works, but is not listed.
                    with contextlib.suppress(TypeError):
                        default = JsonWriter(self.converter).plain(parameter.default)
                        schema["properties"][parameter.name]["default"] = default
        return schema

    def _schema_of_plain_parameters(self) -> dict[str, Any] | None:
        """Return the schema that `json_schema` would, but faster; None for other parameters."""
        context, texts = self.context_parameter, self.docstring.parameters
        properties: dict[str, dict[str, Any]] = {}
        required: list[str] = []
        for name, _, default in self._declared_parameters:
            if name == context:
                continue
            schema = self.plain_schema(self.hints[name])
            if schema is None:
                return None
            properties[name] = (
                {"description": texts[name], **schema} if name in texts else {**schema}
            )
            if default is inspect.Parameter.empty:
                required.append(name)
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def plain_schema(self, hint: Any) -> dict[str, Any] | None:
        """Return the schema of a type of JSON itself, which is decoded as it is; None for others.

        A converter may have a hook for any type.
        """
        return plain_schema(hint) if self.converter is None else None

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[msgspec.Struct]:
        return msgspec.json.Decoder(self.arguments_type, dec_hook=structure)

    def decode(self, raw: msgspec.Raw | bytes | None) -> msgspec.Struct:
        """Decode the arguments of a call, strictly typed; None is a call without arguments.

        Raises:
            ArgumentsError: An argument is wrong, missing or unknown; the error has a line for each.
        """
        text = b"{}" if raw is None else raw
        try:
            return self._decoder.decode(text)
        except _DECODE_ERRORS as error:
            try:
                values = msgspec.json.decode(text)
            except _DECODE_ERRORS as syntax_error:
                raise ArgumentsError([error_line(syntax_error)]) from error
            raise ArgumentsError(self._errors_in(values, convert, error)) from error

    def decode_text(self, values: Mapping[str, str]) -> msgspec.Struct:
        """Decode arguments as `decode`, but all are strings, of prompts and templates.

        The string for a list or an object is its JSON text.
        """
        given = {name: self._with_json_read(name, text) for name, text in values.items()}
        try:
            arguments: msgspec.Struct = _read_text(given, self.arguments_type)
        except msgspec.ValidationError as error:
            raise ArgumentsError(self._errors_in(given, _read_text, error)) from error
        return arguments

    def _with_json_read(self, name: str, text: str) -> Any:
        """Return the list or object in a text, if the argument of this name cannot be the text."""
        if not text.lstrip().startswith(("[", "{")) or name not in self.parameters:
            return text
        try:
            _read_text(text, self.parameters[name].hint)
        except msgspec.ValidationError:
            with contextlib.suppress(*_DECODE_ERRORS):
                return msgspec.json.decode(text)
        return text

    def _errors_in(
        self, values: Any, read: Callable[[Any, Any], Any], error: Exception
    ) -> list[str]:
        lines = error_lines(self.arguments_type, values, read=read, limits=self.limits)
        return lines or [error_line(error)[: self.limits.messages.validation_error_chars_max]]

    def bind(self, arguments: msgspec.Struct, context: Any) -> dict[str, Any]:
        """Return the keyword arguments for a call of the handler."""
        keywords = msgspec.structs.asdict(arguments)
        if self.context_parameter is not None:
            keywords[self.context_parameter] = context
        return keywords


# Signatures of handlers whose first parameter receives the raw value --------------------------


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class RawSignature(Signature):
    """The signature of a handler whose first parameter receives all params as one value.

    Handlers of methods, completions, and tools with a given JSON Schema have such a signature. The
    name of the parameter does not matter.
    """

    values_max: ClassVar[int] = 1

    @cached_property
    def raw_parameters(self) -> list[str]:
        """The parameters that receive the values: the first, and others without a default."""
        own = [item for item in self._declared_parameters if item.name != self.context_parameter]
        needed = own[:1] + [item for item in own[1:] if item.default is inspect.Parameter.empty]
        for item in needed[self.values_max :]:
            raise TypeError(
                f"{parameter_label(self._function, item.name)} receives no value: give it a default"
            )
        return [item.name for item in needed]

    def check(self) -> None:
        _ = self.raw_type

    @property
    def raw_type(self) -> Any:
        """The annotated type of the first value; `Any` if there is no annotation."""
        return self.hints[self.raw_parameters[0]] if self.raw_parameters else Any

    def bind(self, arguments: Any, context: Any) -> dict[str, Any]:
        return self._keywords((arguments,), context)

    def _keywords(self, values: Sequence[Any], context: Any) -> dict[str, Any]:
        keywords = dict(zip(self.raw_parameters, values, strict=False))
        if self.context_parameter is not None:
            keywords[self.context_parameter] = context
        return keywords


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class GivenSchemaSignature(RawSignature):
    """The signature of a tool that was registered with a JSON Schema; its arguments are one dict.

    Raises:
        SchemaError: At once, if the schema cannot be used.
        ValueError: At once, if the root of the schema has no `"type": "object"`, which the protocol
            requires, or if an `x-mcp-header` in it breaks a rule.
    """

    given: Mapping[str, Any]
    _checker: "SchemaValidator" = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        from mcp_trio._protocol.json_schema import SchemaValidator  # most servers need none

        super().__attrs_post_init__()
        if self.given.get("type") != "object":
            raise ValueError('an input schema needs "type": "object" at its root')
        param_headers_of(self.given)
        self._checker = SchemaValidator(self.given, name="arguments", limits=self.limits)

    @cached_property
    def schema(self) -> dict[str, Any]:
        return dict(self.given)

    def decode(self, raw: msgspec.Raw | bytes | None) -> Any:
        arguments = msgspec.json.decode(b"{}" if raw is None else raw)
        lines = self._checker.check(arguments)
        if lines:
            raise ArgumentsError(lines)
        return arguments


def param_headers_of(schema: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    """Return the paths of the arguments that clients repeat in headers, by the header's name.

    Raises:
        ValueError: An `x-mcp-header` breaks a rule of the specification; or it annotates a secret,
            which must not appear in headers, because these are often logged.
    """
    from mcp_trio._protocol.http_headers import parameter_paths  # only clients over HTTP send them

    paths = parameter_paths(schema)
    for field, path in paths.items():
        annotated_schema = schema
        for step in path:
            annotated_schema = annotated_schema["properties"][step]
        if annotated_schema.get("format") == "password":
            name = ".".join(path)
            raise ValueError(f"x-mcp-header {field!r} annotates {name!r}, which is a secret")
    return paths
