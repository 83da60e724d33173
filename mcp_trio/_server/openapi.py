"""Servers from OpenAPI documents: each operation of an HTTP API becomes a tool or a resource.

`Server.from_openapi` documents the rules. An operation is read into a `RequestTemplate`, a schema
of its arguments and one of its result. Every function that reads a part of an operation raises
`Unsupported` if that part has no equivalent in MCP; the operation is then rejected with its text.
"""

import base64
import inspect
import keyword
import logging
import os
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, TypeVar, cast

import attrs
import msgspec

from mcp_trio._protocol.http_headers import JSON, is_json_type, media_type_of
from mcp_trio._protocol.uri_templates import TemplateError, UriTemplate
from mcp_trio._server.context import Context
from mcp_trio._server.http_effects import EffectTransport
from mcp_trio._server.openapi_requests import (
    FORM,
    MULTIPART,
    STYLES,
    Location,
    RequestArgument,
    RequestTemplate,
)
from mcp_trio._server.openapi_schemas import (
    Document,
    Schema,
    Unsupported,
    is_array,
    is_object,
    unique,
)
from mcp_trio._server.results import BYTES_URI, Audio, Image, tool_failure
from mcp_trio._server.sessions import sessions_of
from mcp_trio._transports.http_libraries import library_of
from mcp_trio.errors import ResourceNotFound, SchemaError, ToolError
from mcp_trio.limits import Limits
from mcp_trio.types import (
    EmbeddedResource,
    ResourceContents,
    ToolAnnotations,
)

if TYPE_CHECKING:
    import httpx
    import httpx2

    from mcp_trio._server.results import OutputSchema
    from mcp_trio._server.server import Server

    HttpClient: TypeAlias = httpx2.AsyncClient | httpx.AsyncClient

logger = logging.getLogger("mcp_trio")

T = TypeVar("T")


# The report -------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class OpenApiOperation:
    """An operation of an OpenAPI document.

    Attributes:
        method: The HTTP method, such as `GET`.
        path: The path, with its parameters in braces.
        id: The `operationId`, else the method and the path, such as `GET /pets`.
        summary: The summary.
        description: The description.
        tags: The tags.
        is_deprecated: Whether the document marks it as deprecated.
    """

    method: str
    path: str
    id: str
    summary: str = ""
    description: str = ""
    tags: Sequence[str] = ()
    is_deprecated: bool = False


Outcome: TypeAlias = Literal["tool", "resource", "resource template", "excluded", "rejected"]


@attrs.frozen(kw_only=True)
class OpenApiEntry:
    """The outcome of an operation.

    Attributes:
        operation: The operation.
        outcome: "tool", "resource" or "resource template"; "excluded" by `include=` or `exclude=`;
            or "rejected", because it cannot be called.
        name: The name of the tool, the URI of the resource, or the template; "" if there is none.
        reason: The reason for which the operation is rejected; for others, the parts that are left
            out, if any.
    """

    operation: OpenApiOperation
    outcome: Outcome
    name: str = ""
    reason: str = ""

    def __str__(self) -> str:
        operation = self.operation
        name = f" {self.name}" if self.name else ""
        reason = f": {self.reason}" if self.reason else ""
        return f"{operation.method} {operation.path} → {self.outcome}{name}{reason}"


@attrs.frozen(kw_only=True)
class OpenApiReport:
    """The outcome of each operation of an OpenAPI document; `str()` has a line for each.

    Attributes:
        title: The title of the document.
        entries: The operations, in the order of the document.
    """

    title: str
    entries: Sequence[OpenApiEntry]

    @property
    def accepted(self) -> Sequence[OpenApiEntry]:
        """The operations that became tools or resources."""
        return [each for each in self.entries if each.outcome not in ("excluded", "rejected")]

    @property
    def rejected(self) -> Sequence[OpenApiEntry]:
        """The operations that cannot be called."""
        return [each for each in self.entries if each.outcome == "rejected"]

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries))


# Reading a document ------------------------------------------------------------------------------

_VERSION: Final = re.compile(r"3\.([01])(?:\..*)?")

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


class _Info(msgspec.Struct):
    title: str = ""
    version: str | int | float = "0"  # an unquoted 1.0 is a number in YAML


class _Server(msgspec.Struct, rename="camel"):
    url: str = "/"
    variables: dict[str, dict[str, Any]] = {}

    def filled(self) -> str:
        """Return the URL, with the defaults of its variables."""
        url = self.url
        for name, variable in self.variables.items():
            url = url.replace(f"{{{name}}}", str(variable.get("default", "")))
        return url


class _Encoding(msgspec.Struct, rename="camel"):
    content_type: str | None = None
    style: str | None = None
    explode: bool | None = None
    allow_reserved: bool = False


_DEFAULT_ENCODING: Final = _Encoding()


class _MediaType(msgspec.Struct):
    schema: Any = msgspec.field(default_factory=dict[str, Any])
    encoding: dict[str, _Encoding] = {}


class _Parameter(msgspec.Struct, rename="camel"):
    name: str
    location: Literal["path", "query", "header", "cookie"] = msgspec.field(name="in")
    description: str = ""
    required: bool = False
    schema: Any = None
    content: dict[str, _MediaType] = {}
    style: str | None = None
    explode: bool | None = None
    allow_reserved: bool = False


class _RequestBody(msgspec.Struct):
    content: dict[str, _MediaType]
    description: str = ""
    required: bool = False


class _Response(msgspec.Struct):
    content: dict[str, _MediaType] = {}


class _Operation(msgspec.Struct, rename="camel"):
    operation_id: str = ""
    summary: str = ""
    description: str = ""
    tags: list[str] = []
    parameters: list[Any] = []
    request_body: Any = None
    responses: dict[str, Any] = {}
    callbacks: dict[str, Any] = {}
    deprecated: bool = False
    servers: list[_Server] = []


def _converted(value: Any, kind: type[T]) -> T:
    """Return a part of a document as an object of a class; members that are null are left out."""
    if is_object(value):
        value = {name: member for name, member in value.items() if member is not None}
    return msgspec.convert(value, kind)


def read_document(spec: Mapping[str, Any] | str | os.PathLike[str]) -> Document:
    """Return an OpenAPI document, given as an object, as text in JSON or YAML, or by its path.

    Raises:
        ImportError: The document is YAML, and PyYAML is not installed.
        OSError: The file cannot be read.
        ValueError: The document is not one of OpenAPI 3.0 or 3.1.
    """
    contents: Any = dict(spec) if isinstance(spec, Mapping) else _read_contents(spec)
    # JSON has names that are strings only: the status `200:` of a response is a number in YAML.
    contents = msgspec.to_builtins(contents, str_keys=True)
    document: Schema = contents if is_object(contents) else {}
    if "swagger" in document:
        raise ValueError(
            f"the document is Swagger {document['swagger']}: convert it to OpenAPI 3 first"
        )
    found = _VERSION.fullmatch(str(document.get("openapi")))
    if found is None or not is_object(document.get("paths", {})):
        raise ValueError(
            f"this is not an OpenAPI document of version 3.0 or 3.1, an object with `openapi` and"
            f" `paths`: it has openapi: {document.get('openapi')}"
        )
    return Document(document, is_3_0=found[1] == "0")


def _read_contents(spec: str | os.PathLike[str]) -> Any:
    """Return the parsed contents of a text in JSON or YAML, or of the file at a path."""
    if isinstance(spec, str) and (spec.lstrip(_BLANKS).startswith("{") or "\n" in spec):
        text, name = spec, "the text"
    elif isinstance(spec, str) and re.match("https?://", spec):
        raise ValueError(f"from_openapi() fetches nothing: download {spec}, and give its path")
    else:
        text, name = Path(spec).read_text(encoding="utf-8"), os.fspath(spec)
    stripped = text.lstrip(_BLANKS)
    if stripped.startswith("{"):
        try:
            return msgspec.json.decode(stripped)
        except msgspec.DecodeError as error:
            raise ValueError(f"{name} is not JSON: {error}") from error
    try:
        import yaml as library
    except ImportError as error:
        text = f"{name} is YAML, which needs PyYAML: pip install 'mcp_trio[openapi]'"
        raise ImportError(text) from error

    yaml: Any = library

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """YAML 1.2 with its JSON schema; PyYAML alone reads `no` as False, and dates as dates."""

        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    for tag, pattern, first in _YAML_SCALARS:
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is not YAML: {error}") from error


# The characters that may be before a document: white space, and a byte order mark.
_BLANKS: Final = "\ufeff \t\r\n"

# https://yaml.org/spec/1.2.2/#1022-tag-resolution
_YAML_SCALARS: Final = (
    ("merge", r"<<\Z", "<"),  # of YAML 1.1, but in use
    ("null", r"(?:null|~|)\Z", "n~"),
    ("bool", r"(?:true|false)\Z", "tf"),
    ("int", r"-?(?:0|[1-9][0-9]*)\Z", "-0123456789"),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?\Z", "-0123456789"),
)


# Reading an operation ----------------------------------------------------------------------------

# A function that chooses operations, such as `include=` of `Server.from_openapi`.
Rule: TypeAlias = Callable[[OpenApiOperation], bool]

# Parameters of these names are no arguments: https://spec.openapis.org/oas/v3.1.1#parameter-object
_IGNORED_HEADERS: Final = frozenset({"accept", "content-type", "authorization"})

_NAME_CHARS_MAX: Final = 64  # as in the APIs of models
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+")
_NOT_IN_ARGUMENTS: Final = re.compile(r"[^A-Za-z0-9_.-]+")

# The styles for which `explode` is true unless the document says otherwise.
_EXPLODED: Final = ("form", "deepObject")

_HINTS: Final[Mapping[str, ToolAnnotations]] = {
    **dict.fromkeys(
        ("GET", "HEAD", "OPTIONS", "TRACE"),
        ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True),
    ),
    "PUT": ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True),
    "DELETE": ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True),
    "POST": ToolAnnotations(read_only_hint=False, idempotent_hint=False),
    "PATCH": ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False),
}
"""The hints of each method (RFC 9110, section 9.2); POST may do anything, so it has fewer."""


@attrs.define(kw_only=True, eq=False, repr=False)
class _OperationReader:
    """A reader of one operation, and the parts that it has read so far.

    Attributes:
        objects_max: The maximum number of objects and arrays in a schema.
        properties: The schemas of the arguments, by name.
        notes: The parts that are left out, as texts for the report.
        media_type: The media type of the request body; None if there is none.
        output: The schema of the result, if all successful responses have one.
    """

    document: Document
    objects_max: int
    properties: dict[str, Any] = attrs.field(factory=dict[str, Any], init=False)
    required: list[str] = attrs.field(factory=list[str], init=False)
    arguments: list[RequestArgument] = attrs.field(factory=list[RequestArgument], init=False)
    notes: list[str] = attrs.field(factory=list[str], init=False)
    media_type: str | None = attrs.field(default=None, init=False)
    needs_body: bool = attrs.field(default=False, init=False)
    output: dict[str, Any] | None = attrs.field(default=None, init=False)
    result_media_type: str | None = attrs.field(default=None, init=False)

    def read(self, path: str, operation: _Operation, shared: Sequence[Any]) -> None:
        """Read an operation; `shared` are the parameters of all operations at its path."""
        if operation.callbacks:
            names = ", ".join(operation.callbacks)
            raise Unsupported(f"the API calls back ({names}), which a server of MCP cannot receive")
        parameters: dict[tuple[str, str], _Parameter] = {}
        for each in (*shared, *operation.parameters):
            parameter = self._part(each, _Parameter, "a parameter")
            parameters[parameter.location, parameter.name] = parameter
        if "?" in path or "#" in path:
            raise Unsupported("the path has a query or a fragment")
        in_path = set(re.findall(r"\{([^{}]+)\}", path))
        for name in sorted(in_path - {name for at, name in parameters if at == "path"}):
            raise Unsupported(f"the path has {{{name}}}, which is none of the parameters")
        for parameter in parameters.values():
            if parameter.location == "path" and parameter.name not in in_path:
                self.notes.append(f"without the parameter {parameter.name}, which the path lacks")
            elif not (
                parameter.location == "header" and parameter.name.lower() in _IGNORED_HEADERS
            ):
                self._add_parameter(parameter)
        if operation.request_body is not None:
            self._add_body(self._part(operation.request_body, _RequestBody, "the request body"))
        self._read_responses(operation.responses)

    def _part(self, value: Any, kind: type[T], name: str) -> T:
        """Return a part of the document, or what it refers to, as an object of a class."""
        try:
            return _converted(self.document.resolve(value), kind)
        except msgspec.ValidationError as error:
            raise Unsupported(f"{name} is malformed: {error}") from error

    # Arguments.

    def _add_parameter(self, parameter: _Parameter) -> None:
        is_required = parameter.required or parameter.location == "path"
        schema, is_json = parameter.schema, False
        for media_type, content in parameter.content.items():
            schema, is_json = content.schema, True
            if not is_json_type(media_type):
                text = f"the parameter {parameter.name}, which is {media_type}"
                if is_required:
                    raise Unsupported(f"{text}, cannot be sent")
                self.notes.append(f"without {text}")
                return
        self._add_argument(
            {} if schema is None else schema,
            parameter.location,
            parameter.name,
            description=parameter.description,
            is_required=is_required,
            encoding=parameter,
            is_json=is_json,
        )

    def _add_argument(
        self,
        schema: Any,
        location: Location,
        wire_name: str,
        *,
        description: str = "",
        is_required: bool,
        encoding: _Parameter | _Encoding = _DEFAULT_ENCODING,
        is_json: bool = False,
    ) -> None:
        """Add an argument; a name that is taken gets its location, or a number, at its end."""
        style = encoding.style or STYLES[location][0]
        if style not in STYLES[location]:
            part = "field" if location == "member" else "parameter"
            raise Unsupported(f"the {part} {wire_name} has the unknown style {style}")
        name = _NOT_IN_ARGUMENTS.sub("_", wire_name).strip("_") or "argument"
        if name in self.properties and location != "body":
            name = f"{name}_{'body' if location == 'member' else location}"
        name = unique(name, self.properties, _NAME_CHARS_MAX)
        converted = self.document.json_schema(schema, "request")
        members: dict[str, Any] = {} if converted is True else converted
        texts = [description or members.get("description", "")]
        if name != wire_name and location != "body":
            place = "member of the body" if location == "member" else f"{location} parameter"
            texts.append(f"Sent as the {place} `{wire_name}`.")
        text = "\n\n".join(filter(None, texts))
        self.properties[name] = members | ({"description": text} if text else {})
        if is_required:
            self.required.append(name)
        self.arguments.append(
            RequestArgument(
                name=name,
                location=location,
                wire_name=wire_name,
                style=style,
                is_exploded=style in _EXPLODED if encoding.explode is None else encoding.explode,
                keeps_reserved=encoding.allow_reserved,
                is_json=is_json,
            )
        )

    def _add_body(self, body: _RequestBody) -> None:
        chosen = _chosen_media_type(body.content)
        if chosen is None:
            text = f"the request body, which is {' or '.join(body.content) or 'not described'}"
            if body.required:
                raise Unsupported(f"{text}, cannot be sent")
            self.notes.append(f"without {text}")
            return
        given, self.media_type = chosen
        self.needs_body = body.required
        content = body.content[given]
        is_text = self.media_type.startswith("text/")
        members = None if is_text else self.document.request_properties(content.schema)
        if members is None:
            if self.media_type == MULTIPART:
                raise Unsupported("the multipart request body has no fields that are known")
            self._add_argument(
                content.schema,
                "body",
                "body",
                description=body.description,
                is_required=body.required,
            )
            return
        properties, required = members
        for name, schema in properties.items():
            is_required = body.required and name in required
            encoding = content.encoding.get(name, _DEFAULT_ENCODING)
            if self.media_type == MULTIPART and self._is_file(schema, encoding):
                if is_required:
                    raise Unsupported(f"the request uploads a file, in the field {name}")
                self.notes.append(f"without the field {name}, which is a file")
                continue
            resolved = self.document.resolve(schema)
            kind = resolved.get("type") if is_object(resolved) else None
            # Without a style, a field that is an object is JSON text.
            is_json = encoding.style is None and kind == "object"
            self._add_argument(
                schema, "member", name, is_required=is_required, encoding=encoding, is_json=is_json
            )

    def _is_file(self, schema: Any, encoding: _Encoding) -> bool:
        given = self.document.resolve(schema)
        if not is_object(given):
            return False
        if given.get("type") == "array":
            return self._is_file(given.get("items", {}), encoding)
        is_encoded = "contentEncoding" in given  # as text
        media_type = encoding.content_type or ("" if is_encoded else given.get("contentMediaType"))
        is_text = not media_type or media_type.startswith("text/") or is_json_type(media_type)
        return given.get("format") == "binary" or not is_text

    # Results.

    def _read_responses(self, responses: Mapping[str, Any]) -> None:
        """Find the schema of the result: that of all successful responses, if they are all JSON."""
        schemas: list[Any] = []
        has_others = False
        for status, each in responses.items():
            if not status.startswith("2"):
                continue
            content = self._part(each, _Response, f"the response {status}").content
            json_type = next(filter(is_json_type, content), None)
            self.result_media_type = (
                self.result_media_type or json_type or next(iter(content), None)
            )
            schema = None if json_type is None else content[json_type].schema
            if schema:
                schemas.append(schema)
            else:
                has_others = True
        if has_others or not schemas:
            return
        try:
            converted = [self.document.json_schema(schema, "response") for schema in schemas]
            distinct = [it for index, it in enumerate(converted) if it not in converted[:index]]
            schema = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
            self.output = self.document.with_definitions(
                schema, "response", objects_max=self.objects_max
            )
        except Unsupported as error:
            self.notes.append(f"without an output schema: {error}")

    def input_schema(self) -> dict[str, Any]:
        """Return the schema of the arguments."""
        schema = {
            "type": "object",
            "properties": self.properties,
            "required": self.required,
            "additionalProperties": False,
        }
        return self.document.with_definitions(schema, "request", objects_max=self.objects_max)


def _chosen_media_type(content: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the media type of a request body as it is given, and as it is sent."""
    names = {given: media_type_of(given) for given in content}
    for given, name in names.items():
        if is_json_type(name):
            return given, name
    for given, name in names.items():
        if name in ("*/*", "application/*"):
            return given, JSON
    for wanted in (FORM, MULTIPART, "text/"):
        for given, name in names.items():
            if name.startswith(wanted):
                return given, "text/plain" if name == "text/*" else name
    return None


# Calling an operation ----------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False, repr=False)
class _Sender:
    """The sender of the requests of all operations; each request is one effect of the handler.

    Attributes:
        client: The user's client; None for `ctx.http`.
        base_url: The URL before each path; empty if the client has one.
    """

    client: "HttpClient | None"
    base_url: str

    async def send(
        self, context: Context, template: RequestTemplate, arguments: Mapping[str, Any]
    ) -> Any:
        """Return the response to the request for a call; without one, raise `ToolError`."""
        parts = template.parts(arguments)
        client: Any = context.http if self.client is None else self.client
        library = library_of(client)
        headers = {**parts.headers}
        if template.wants_json and client.headers.get("accept") == "*/*":  # the client's default
            headers["Accept"] = JSON
        try:
            request = client.build_request(
                template.method,
                self.base_url + parts.url,
                headers=headers,
                content=parts.content,
                files=parts.files,
            )
            if parts.cookies:
                of_client = request.headers.get("cookie")
                cookies = f"{of_client}; {parts.cookies}" if of_client else parts.cookies
                request.headers["Cookie"] = cookies
            if self.client is None:
                return await client.send(request)
            # The client itself is the inner transport, so it adds its authentication.
            inner: Any = SimpleNamespace(handle_async_request=partial(client.send, stream=True))
            return await EffectTransport(inner).handle_async_request(request)
        except (library.HTTPError, library.InvalidURL) as error:
            raise ToolError(f"the request to the API failed: {type(error).__name__}") from error


def _status_text(status: int) -> str:
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def _content(response: Any) -> Any:
    """Return the body of a response as text, an image, audio or bytes."""
    body, media_type = response.content, media_type_of(response.headers.get("content-type"))
    for kind, media in (("image/", Image), ("audio/", Audio)):
        if media_type.startswith(kind) and media_type != "image/svg+xml":
            return media(body, media_type)
    try:
        return body.decode(response.charset_encoding or "utf-8")
    except (UnicodeDecodeError, LookupError):
        return body


def _failure_text(response: Any, limits: Limits) -> str:
    """Return the status and the text of the body, of which an error page may have megabytes."""
    text, chars_max = response.text, limits.messages.error_text_chars_max
    shortened = text if len(text) <= chars_max else f"{text[:chars_max]}…"
    return "\n\n".join(filter(None, [_status_text(response.status_code), shortened]))


@attrs.define(kw_only=True, eq=False, repr=False)
class _Tool:
    """The handler of a tool that calls an operation."""

    sender: _Sender
    template: RequestTemplate
    output: "OutputSchema | None" = None

    async def __call__(self, arguments: dict[str, Any], ctx: Context) -> Any:
        response = await self.sender.send(ctx, self.template, arguments)
        if not response.is_success:
            return tool_failure(_failure_text(response, ctx.server.limits))
        if self.output is not None:
            return self._structured(response, self.output)
        content = _content(response)
        if isinstance(content, bytes) and content:
            media_type = media_type_of(response.headers.get("content-type")) or None
            blob = base64.b64encode(content).decode()
            resource = ResourceContents(uri=BYTES_URI, mime_type=media_type, blob=blob)
            return EmbeddedResource(resource=resource)
        return content or _status_text(response.status_code)

    def _structured(self, response: Any, output: "OutputSchema") -> Any:
        # RFC 8259, section 8.1: a reader may ignore a byte order mark.
        body: bytes = response.content.removeprefix(BOM_UTF8)
        try:
            value = msgspec.json.decode(body)
            errors = output.validation_errors(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            errors, value = [f"it is not JSON: {error}"], None
        if not errors:
            return value
        # The result has to conform to the output schema. An API that does not conform to its own
        # document has still done what it was asked to, which the model has to know.
        status = _status_text(response.status_code)
        text = f"{status}: the API has answered, but not as its document says ({'; '.join(errors)})"
        return tool_failure(f"{text}\n\n{response.text}")


# Registering -------------------------------------------------------------------------------------


def _resource_uri(
    reader: _OperationReader, method: str, path: str
) -> tuple[str, dict[str, RequestArgument]]:
    """Return the URI, or URI template, of an operation, and the arguments by variable."""
    if method != "GET":
        raise Unsupported("a resource is read by GET")
    arguments: dict[str, RequestArgument] = {}
    in_path: dict[str, str] = {}
    in_query: list[str] = []
    for argument in reader.arguments:
        kind = reader.properties[argument.name].get("type")
        is_text = kind not in ("array", "object") and not argument.is_json
        if argument.location not in ("path", "query") or not is_text:
            place = f"the argument {argument.name}, which a URI cannot contain"
            if argument.name in reader.required:
                raise Unsupported(f"a resource cannot have {place}")
            reader.notes.append(f"without {place}")
            continue
        name = re.sub(r"\W", "_", argument.name, flags=re.ASCII)
        if keyword.iskeyword(name) or not name.isidentifier() or name == "ctx":
            name = f"_{name}"
        variable = unique(name, arguments)
        arguments[variable] = argument
        if argument.location == "path":
            in_path[argument.wire_name] = variable
        else:
            in_query.append(variable)
    path = re.sub(r"\{([^{}]+)\}", lambda found: f"{{{in_path[found[1]]}}}", path)
    query = f"{{?{','.join(in_query)}}}" if in_query else ""
    return f"api:{path}{query}", arguments


def _resource_handler(
    sender: _Sender,
    template: RequestTemplate,
    uri: UriTemplate,
    arguments: Mapping[str, RequestArgument],
    required: Sequence[str],
) -> Any:
    """Return the handler of a resource, which has a parameter for each variable of its URI."""

    async def read(*, ctx: Context, **values: str | None) -> str | bytes:
        given = {name: value for name, value in values.items() if value is not None}
        by_argument = {arguments[name].name: value for name, value in given.items()}
        response = await sender.send(ctx, template, by_argument)
        if response.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
            raise ResourceNotFound(uri.expand(given))
        if not response.is_success:
            raise ToolError(_failure_text(response, ctx.server.limits))
        content = _content(response)
        return content if isinstance(content, str) else bytes(response.content)

    only, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = [inspect.Parameter("ctx", only, annotation=Context)]
    for variable, argument in arguments.items():
        hint, default = (str, empty) if argument.name in required else (str | None, None)
        parameters.append(inspect.Parameter(variable, only, annotation=hint, default=default))
    cast("Any", read).__signature__ = inspect.Signature(parameters)
    return read


# The minimum number of steps that reading an object of a schema takes; in five large public
# documents it was 34 to 56.
_STEPS_PER_OBJECT: Final = 30


@attrs.define(kw_only=True, eq=False, repr=False)
class OperationRegistration:
    """The registration of a document's operations at a server.

    `Server.from_openapi` documents the attributes.

    Raises:
        TypeError: The client is no `AsyncClient` of httpx2 or httpx.
        ValueError: Neither the client nor the document has a base URL; or, by `run`, a name in
            `rename` is invalid or given twice, or no operation has its id.
    """

    server: "Server"
    document: Document
    client: "HttpClient | None"
    resources: Rule | None
    include: Rule | None
    exclude: Rule | None
    rename: Mapping[str, str]
    output_schemas: bool
    _sender: _Sender = attrs.field(init=False)
    _names: dict[str, object] = attrs.field(factory=dict[str, object], init=False)

    def __attrs_post_init__(self) -> None:
        client, base_url = self.client, ""
        if client is not None:
            library = library_of(client)
            if library is None or not isinstance(client, library.AsyncClient):
                raise TypeError(
                    "client= takes an AsyncClient of httpx2 or httpx, not"
                    f" {type(client).__module__}.{type(client).__name__}"
                )
        if client is None or not str(client.base_url):
            try:
                base_url = (_server_url(self.document.contents) or "").rstrip("/")
            except Unsupported as error:
                raise ValueError(f"the document cannot be read: {error}") from error
            if not re.match("https?://", base_url):
                raise ValueError(
                    "the document names no absolute URL of a server: write"
                    ' client=httpx2.AsyncClient(base_url="https://…")'
                )
        self._sender = _Sender(client=client, base_url=base_url)

    def run(self) -> OpenApiReport:
        """Register all operations, and return the outcome of each."""
        if len(set(self.rename.values())) < len(self.rename):
            raise ValueError("rename= gives one name to several operations")
        self._names.update(dict.fromkeys(self.rename.values()))
        entries: list[OpenApiEntry] = []
        limits = self.server.limits.messages
        # A schema that would take too many steps is left out before it is copied.
        objects_max = min(limits.schema_objects_max, limits.schema_steps_max // _STEPS_PER_OBJECT)
        for operation, parsed, path_item in self._operations():
            is_included = self.include is None or self.include(operation)
            if not is_included or (self.exclude is not None and self.exclude(operation)):
                entries.append(OpenApiEntry(operation=operation, outcome="excluded"))
                continue
            reader = _OperationReader(document=self.document, objects_max=objects_max)
            try:
                if isinstance(parsed, Unsupported):
                    raise parsed
                outcome, name = self._register(operation, parsed, path_item, reader)
                reason = "; ".join(reader.notes)
            except (Unsupported, SchemaError, TemplateError) as error:
                outcome, name, reason = "rejected", "", str(error)
            entries.append(
                OpenApiEntry(operation=operation, outcome=outcome, name=name, reason=reason)
            )
        unknown = sorted(self.rename.keys() - {each.operation.id for each in entries})
        if unknown:
            raise ValueError(f"rename= has ids that no operation has: {', '.join(unknown)}")
        for name in self.document.contents.get("webhooks", {}):
            webhook = OpenApiOperation(method="WEBHOOK", path=name, id=f"WEBHOOK {name}")
            reason = "a webhook is called by the API"
            entries.append(OpenApiEntry(operation=webhook, outcome="rejected", reason=reason))
        report = OpenApiReport(title=self.server.name, entries=entries)
        if report.rejected:
            logger.warning(
                "%s: %s of %s operations are rejected; server.openapi_report has the reasons",
                report.title,
                len(report.rejected),
                len(entries),
            )
        return report

    def _operations(self) -> Iterator[tuple[OpenApiOperation, _Operation | Unsupported, Schema]]:
        """Yield each operation, the object that describes it, or an error, and its path item."""
        for path, given in self.document.contents.get("paths", {}).items():
            item: Any = None
            error = Unsupported("the path item is malformed")
            try:
                item = self.document.resolve(given)
            except Unsupported as reason:
                error = reason
            if not is_object(item):
                yield OpenApiOperation(method="*", path=path, id=f"* {path}"), error, {}
                continue
            for method in [key for key in item if key in _METHODS]:
                key = f"{method.upper()} {path}"
                try:
                    parsed = _converted(self.document.resolve(item[method]), _Operation)
                except (Unsupported, msgspec.ValidationError) as reason:
                    operation = OpenApiOperation(method=method.upper(), path=path, id=key)
                    yield operation, Unsupported(f"the operation is malformed: {reason}"), item
                    continue
                operation = OpenApiOperation(
                    method=method.upper(),
                    path=path,
                    id=parsed.operation_id or key,
                    summary=parsed.summary,
                    description=parsed.description,
                    tags=tuple(parsed.tags),
                    is_deprecated=parsed.deprecated,
                )
                yield operation, parsed, item

    def _register(
        self,
        operation: OpenApiOperation,
        parsed: _Operation,
        path_item: Schema,
        reader: _OperationReader,
    ) -> tuple[Outcome, str]:
        """Register an operation; return its outcome and its name."""
        url, own_url = _server_url(self.document.contents), _server_url(path_item)
        own_url = parsed.servers[0].filled() if parsed.servers else own_url
        if own_url is not None and url is not None and own_url.rstrip("/") != url.rstrip("/"):
            raise Unsupported(f"its server is {own_url}, and not {url}")
        given = path_item.get("parameters")
        shared: Any = [] if given is None else given
        if not is_array(shared):
            raise Unsupported("the parameters of the path item are malformed")
        reader.read(operation.path, parsed, shared)
        template = RequestTemplate(
            method=operation.method,
            path=operation.path,
            arguments=reader.arguments,
            media_type=reader.media_type,
            needs_body=reader.needs_body,
            wants_json=is_json_type(reader.result_media_type),
        )
        description = operation.description or operation.summary or operation.id
        if operation.is_deprecated:
            description = f"Deprecated. {description}"
        listed: dict[str, Any] = {
            "title": operation.summary or None,
            "description": description,
            "tags": operation.tags,
        }
        name = self.rename.get(operation.id)
        if name is None:
            name = _NOT_IN_NAMES.sub("_", operation.id).strip("_") or "operation"
            name = unique(name, self._names, _NAME_CHARS_MAX)
        self._names[name] = operation
        if self.resources is not None and self.resources(operation):
            text, arguments = _resource_uri(reader, operation.method, operation.path)
            uri = UriTemplate.parse(text)
            handler = _resource_handler(self._sender, template, uri, arguments, reader.required)
            media_type = reader.result_media_type
            self.server.resource(text, name=name, mime_type=media_type, **listed)(handler)
            return ("resource template" if arguments else "resource"), text
        tool = _Tool(sender=self._sender, template=template)
        output = reader.output if self.output_schemas else None
        hints, schema = _HINTS[operation.method], reader.input_schema()
        register = partial(
            self.server.tool, name=name, input_schema=schema, annotations=hints, **listed
        )
        try:
            register(output_schema=output, structured=None if output else False)(tool)
        except SchemaError as error:
            if output is None:
                raise
            register(structured=False)(tool)
            reader.notes.append(f"without an output schema: {error}")
        tool.output = sessions_of(self.server).registry.tools[name].given_output
        return "tool", name


def info_of(document: Document) -> dict[str, str]:
    """Return the name and the version of a server for a document."""
    try:
        info = msgspec.convert(document.contents.get("info"), _Info)
    except msgspec.ValidationError as error:
        raise ValueError(f"the info of the document is malformed: {error}") from error
    return {"name": info.title or "openapi", "version": str(info.version)}


def _server_url(contents: Schema) -> str | None:
    """Return the URL of the first server that a document or a path item names."""
    try:
        servers = msgspec.convert(contents.get("servers", []), list[_Server])
    except msgspec.ValidationError as error:
        raise Unsupported(f"the servers are malformed: {error}") from error
    return servers[0].filled() if servers else None
