"""HTTP requests made of the arguments of a call, by the parameters of an OpenAPI operation.

https://spec.openapis.org/oas/v3.1.1#style-values
https://spec.openapis.org/oas/v3.1.1#style-examples
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

import attrs
import msgspec

from mcp_trio._protocol.http_headers import JSON
from mcp_trio._server.openapi_schemas import is_array, is_object
from mcp_trio.errors import ToolError

Location: TypeAlias = Literal["path", "query", "header", "cookie", "member", "body"]
"""The place of an argument: a parameter, a member of the body's object, or the whole body."""

FORM: Final = "application/x-www-form-urlencoded"
MULTIPART: Final = "multipart/form-data"

# By style: the text between the items of an array that is not exploded, in a query or form.
_SEPARATORS: Final = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}

# The same for the items of an exploded array, or the members of an exploded object, in a path.
_PATH_SEPARATORS: Final[Mapping[str, str]] = {"simple": ",", "label": ".", "matrix": ";"}

STYLES: Final[Mapping[Location, Sequence[str]]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
    "member": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "body": ("form",),
}
"""The styles of each location, the default first."""

_RESERVED: Final = ":/?#[]@!$&'()*+,;="

# Visible ASCII, with inner spaces and tabs (RFC 9110, section 5.5).
_FIELD_VALUE: Final = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")

_VARIABLE: Final = re.compile(r"\{([^{}]+)\}")
_SEGMENT_END: Final = re.compile("/|%2F|%5C")


@attrs.frozen(kw_only=True)
class RequestArgument:
    """An argument of a tool, and its place in the request.

    Attributes:
        wire_name: Its name in the request.
        style: The style in which an array or object is written.
        is_exploded: Whether each item or member is a parameter of its own.
        keeps_reserved: Whether reserved characters of a query are sent as they are.
        is_json: Whether the value is written as JSON text.
    """

    name: str
    location: Location
    wire_name: str
    style: str = "form"
    is_exploded: bool = True
    keeps_reserved: bool = False
    is_json: bool = False


@attrs.frozen(kw_only=True)
class RequestParts:
    """The parts of an HTTP request, from which an HTTP client builds it.

    Attributes:
        url: The path and the query, relative to the base URL.
        headers: The headers that the arguments and the body need.
        cookies: The cookies among the arguments, as in the header `Cookie`.
        content: The body, if it is not multipart.
        files: The fields of a multipart body: name, text and media type of each.
    """

    url: str
    headers: Mapping[str, str]
    cookies: str = ""
    content: bytes | None = None
    files: Sequence[tuple[str, tuple[None, bytes, str | None]]] | None = None


@attrs.frozen(kw_only=True)
class RequestTemplate:
    """The request of an operation, without the values of its arguments.

    Attributes:
        path: The path, with the parameters in braces.
        media_type: The media type of the body; None if there is none.
        needs_body: Whether there is a body even if no argument has a value in it.
        wants_json: Whether the request asks for a result in JSON.
    """

    method: str
    path: str
    arguments: Sequence[RequestArgument]
    media_type: str | None = None
    needs_body: bool = False
    wants_json: bool = False

    def parts(self, values: Mapping[str, Any]) -> RequestParts:
        """Return the request for a call; arguments without a value are left out.

        Raises:
            ToolError: A value cannot be sent in its place.
        """
        # Only JSON has a null; elsewhere the parameter is left out.
        with_null = ("member", "body") if self.media_type not in (FORM, MULTIPART) else ()
        by_location: dict[Location, list[tuple[RequestArgument, Any]]] = {}
        for argument in self.arguments:
            value: Any = values.get(argument.name)
            if value is None and argument.location == "path":
                raise ToolError(f"the argument {argument.name!r} cannot be empty")
            if value is not None or (argument.name in values and argument.location in with_null):
                by_location.setdefault(argument.location, []).append((argument, value))
        query = "&".join(
            field
            for argument, value in by_location.get("query", ())
            for field in _fields(argument, value)
        )
        in_path = {each.wire_name: _path_text(each, it) for each, it in by_location.get("path", ())}
        path = _VARIABLE.sub(lambda found: in_path[found[1]], self.path)
        # A client would remove such a segment together with the one before it, which leads to the
        # path of another operation (RFC 3986, section 5.2.4). Some servers do so after decoding.
        if not {".", ".."}.isdisjoint(_SEGMENT_END.split(path)):
            raise ToolError("an argument of the path cannot have the segment '.' or '..'")
        headers = {
            each.wire_name: _header_text(each, value)
            for each, value in by_location.get("header", ())
        }
        # An exploded array or object would have `&` between its fields, as in a query.
        cookies = "; ".join(
            field
            for argument, value in by_location.get("cookie", ())
            for field in _fields(attrs.evolve(argument, is_exploded=False), value)
        )
        parts = RequestParts(
            url=f"{path}?{query}" if query else path, headers=headers, cookies=cookies
        )
        whole, members = by_location.get("body", ()), by_location.get("member", ())
        if self.media_type is None or not (whole or members or self.needs_body):
            return parts
        if self.media_type == MULTIPART:
            return _multipart(parts, members)
        value = whole[0][1] if whole else {each.wire_name: it for each, it in members}
        if self.media_type == FORM and not isinstance(value, str):
            if not is_object(value):
                raise ToolError("the body has to be an object, or a string that is encoded already")
            arguments = members or [
                (RequestArgument(name=name, location="member", wire_name=name), it)
                for name, it in value.items()
            ]
            fields = (field for argument, it in arguments for field in _fields(argument, it))
            content = "&".join(fields).encode()
        elif self.media_type == FORM or self.media_type.startswith("text/"):
            content = _text(value).encode()
        else:
            content = msgspec.json.encode(value)
        headers["Content-Type"] = self.media_type
        return attrs.evolve(parts, headers=headers, content=content)


def _path_text(argument: RequestArgument, value: Any) -> str:
    """Return the text of a parameter in the path, encoded."""
    name, is_exploded = quote(argument.wire_name, safe=""), argument.is_exploded
    if _is_single(argument, value):
        texts, is_exploded = [quote(_text(value, is_json=argument.is_json), safe="")], False
    elif is_object(value):
        sign = "=" if is_exploded else ","
        pairs = [(quote(key, safe=""), quote(_text(it), safe="")) for key, it in value.items()]
        texts = [f"{key}{sign}{text}" for key, text in pairs]
    else:
        start = f"{name}=" if is_exploded and argument.style == "matrix" else ""
        texts = [start + quote(_text(item), safe="") for item in value]
    joined = (_PATH_SEPARATORS[argument.style] if is_exploded else ",").join(texts)
    if not joined:
        raise ToolError(f"the argument {argument.name!r} cannot be empty")
    matrix_start = ";" if is_exploded else f";{name}="
    return {"simple": "", "label": ".", "matrix": matrix_start}[argument.style] + joined


def _fields(argument: RequestArgument, value: Any) -> list[str]:
    """Return the fields of a query, a form or a cookie: `name=value`, both encoded."""
    safe = _RESERVED.replace("&", "").replace("#", "") if argument.keeps_reserved else ""
    name = quote(argument.wire_name, safe="")
    if _is_single(argument, value):
        return [f"{name}={quote(_text(value, is_json=argument.is_json), safe=safe)}"]
    if argument.style == "deepObject":
        return [
            f"{quote(path, safe='')}={quote(text, safe=safe)}"
            for path, text in _deep_fields(argument.wire_name, value)
        ]
    if is_object(value):
        pairs = [(quote(key, safe=""), quote(_text(it), safe=safe)) for key, it in value.items()]
        if argument.is_exploded:
            return [f"{key}={text}" for key, text in pairs]
        texts = [text for pair in pairs for text in pair]
    else:
        texts = [quote(_text(item), safe=safe) for item in value]
        if argument.is_exploded:
            return [f"{name}={text}" for text in texts]
    return [f"{name}={_SEPARATORS[argument.style].join(texts)}"] if texts else []


def _deep_fields(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each leaf: `a[b][0]`. OpenAPI itself describes one level."""
    if is_object(value):
        for key, member in value.items():
            yield from _deep_fields(f"{path}[{key}]", member)
    elif is_array(value):
        for index, item in enumerate(value):
            yield from _deep_fields(f"{path}[{index}]", item)
    else:
        yield path, _text(value)


def _header_text(argument: RequestArgument, value: Any) -> str:
    if _is_single(argument, value):
        text = _text(value, is_json=argument.is_json)
    elif is_object(value):
        sign = "=" if argument.is_exploded else ","
        text = ",".join(f"{key}{sign}{_text(it)}" for key, it in value.items())
    else:
        text = ",".join(map(_text, value))
    if not _FIELD_VALUE.fullmatch(text):
        raise ToolError(
            f"the argument {argument.name!r} is sent in a header, which takes visible ASCII only"
        )
    return text


def _multipart(parts: RequestParts, members: Sequence[tuple[RequestArgument, Any]]) -> RequestParts:
    files: list[tuple[str, tuple[None, bytes, str | None]]] = []
    for argument, value in members:
        for item in value if is_array(value) else [value]:
            is_json = isinstance(item, dict | list)
            part = None, _text(item).encode(), JSON if is_json else None
            files.append((argument.wire_name, part))
    # A random boundary would make the body of a replay differ from the recorded one.
    digest = hashlib.sha256(repr(files).encode()).hexdigest()[:32]
    headers = {**parts.headers, "Content-Type": f"{MULTIPART}; boundary=mcp_trio-{digest}"}
    return attrs.evolve(parts, headers=headers, files=files)


def _is_single(argument: RequestArgument, value: Any) -> bool:
    """Return whether a value is written as one text, and not item by item or member by member."""
    return argument.is_json or not (is_array(value) or is_object(value))


def _text(value: Any, *, is_json: bool = False) -> str:
    """Return a string as it is, and any other value as JSON."""
    return value if isinstance(value, str) and not is_json else msgspec.json.encode(value).decode()
