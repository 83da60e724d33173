"""Servers from OpenAPI documents, with an API that listens on a loopback socket."""

import json
import logging
import re
from datetime import date
from pathlib import Path

import attrs
import httpx
import httpx2
import pytest
import trio

from mcp_trio import Client, Limits, RequestError, ResourceNotFound, Server, ToolError
from mcp_trio._server.openapi_requests import RequestArgument, RequestTemplate
from mcp_trio.http import EffectTransport
from mcp_trio.limits import MessageLimits
from tests.server.conftest import played_again

PATH = Path(__file__).with_name("harbour_openapi.yaml")
SHIP = {"id": 1, "name": "Ada"}


def answer(body=b"", content_type="application/json", status="200 OK"):
    head = [f"HTTP/1.1 {status}", f"content-type: {content_type}", f"content-length: {len(body)}"]
    return "\r\n".join([*head, "", ""]).encode() + body


@attrs.define(eq=False)
class Api:
    """An API that gives one answer to every request; `requests` are their bytes."""

    answer: bytes = answer(b"[]")
    url: str = ""
    requests: list = attrs.field(factory=list)

    async def serve(self, stream):
        async with stream:
            data = b""
            while chunk := await stream.receive_some():
                data += chunk
                head, end, body = data.partition(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                if end and len(body) >= int(length[1] if length else 0):
                    self.requests.append(data)
                    data = b""
                    await stream.send_all(self.answer)

    @property
    def target(self):
        """The method and the target of the last request."""
        return self.requests[-1].split(b" HTTP/1.1")[0].decode()

    @property
    def body(self):
        return self.requests[-1].partition(b"\r\n\r\n")[2]

    def header(self, name):
        found = re.search(rf"(?im)^{name}: (.*)\r$".encode(), self.requests[-1])
        return found and found[1].decode()


@pytest.fixture
async def api(nursery):
    listeners = await nursery.start(trio.serve_tcp, (made := Api()).serve, 0)
    made.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1"
    return made


@pytest.fixture(params=[httpx2, httpx], ids=["httpx2", "httpx"])
def library(request):
    return request.param


@pytest.fixture
async def harbour(api):
    async with httpx2.AsyncClient(base_url=api.url) as client:
        yield Server.from_openapi(PATH, client=client)


@pytest.fixture
async def harbour_client(harbour):
    async with Client(harbour, raise_tool_errors=False) as client:
        yield client


def document(paths, version="3.1.0", **components):
    return {
        "openapi": version,
        "info": {"title": "api", "version": "1"},
        "servers": [{"url": "http://127.0.0.1:9"}],
        "paths": paths,
        "components": components,
    }


def operation(**members):
    return {"/x": {"post": {"operationId": "x", "responses": {"200": {}}, **members}}}


def body_of(schema, media_type="application/json", **content):
    return {"required": True, "content": {media_type: {"schema": schema, **content}}}


def tool_of(spec, name="x", **options):
    server = Server.from_openapi(spec, **options)
    entry = server.openapi_report.entries[0]
    assert entry.outcome == "tool", entry.reason
    return server._registry.tools[name].definition()


def reason_of(spec):
    (entry,) = Server.from_openapi(spec).openapi_report.rejected
    return entry.reason


# What becomes of operations.


async def test_each_operation_is_taken_or_refused_with_a_reason(harbour, caplog):
    report = harbour.openapi_report
    outcomes = {each.operation.id: (each.outcome, each.name) for each in report.accepted}
    assert outcomes == {
        "ships/list": ("tool", "ships_list"),
        "ships/add": ("tool", "ships_add"),
        "ships/get": ("tool", "ships_get"),
        "ships/replace": ("tool", "ships_replace"),
        "DELETE /ships/{name}": ("tool", "DELETE_ships_name"),
        "ships/log": ("tool", "ships_log"),
        "ships/papers": ("tool", "ships_papers"),
        "ships/photo": ("tool", "ships_photo"),
        "tides": ("tool", "tides"),
        "note": ("tool", "note"),
    }
    reasons = {each.operation.id: each.reason for each in report.rejected}
    assert reasons.pop("broken/parameter").startswith("a parameter is malformed: Invalid enum")
    assert reasons == {
        "ships/set_photo": "the request body, which is image/png, cannot be sent",
        "ships/add_photo": "the request uploads a file, in the field photo",
        "alarms/subscribe": "the API calls back (onAlarm), which a server of MCP cannot receive",
        "notes/elsewhere": "its server is https://other.example, and not https://harbour.example/v1",
        "broken/path": "the path has {what}, which is none of the parameters",
        "broken/reference": "the reference #/components/schemas/Missing leads to nothing",
        "broken/document": "other.yaml#/What is in another document: bundle the documents into one"
        " first",
    }
    assert len(report.entries) == len(report.accepted) + len(report.rejected) == 18
    assert "PUT /ships/{name}/photo → rejected: the request body" in str(report)


def test_a_warning_names_the_number_of_refused_operations(caplog):
    with caplog.at_level(logging.INFO, "mcp_trio"):
        Server.from_openapi(PATH)
    (record,) = caplog.records
    assert record.getMessage() == (
        "Harbour API: 8 of 18 operations are rejected; server.openapi_report has the reasons"
    )


async def test_the_server_has_the_name_and_the_version_of_the_document(harbour):
    assert (harbour.name, harbour.version) == ("Harbour API", "2.1.0")
    own = Server.from_openapi(PATH, name="own", version="3", instructions="Ask first.")
    assert (own.name, own.version, own.instructions) == ("own", "3", "Ask first.")
    with pytest.raises(TypeError, match="nmae"):
        Server.from_openapi(PATH, nmae="own")


async def test_a_tool_has_the_texts_of_its_operation_and_the_hints_of_its_method(harbour_client):
    tools = {tool.name: tool for tool in await harbour_client.list_tools()}
    listed = tools["ships_list"]
    assert (listed.title, listed.description) == ("List ships", "Lists the ships in the harbour.")
    assert listed.meta["fastmcp"] == {"tags": ["ships"]}
    deleted = tools["DELETE_ships_name"]
    assert deleted.description == "Deprecated. DELETE /ships/{name}"
    hints = {
        name: (
            it.annotations.read_only_hint,
            it.annotations.destructive_hint,
            it.annotations.idempotent_hint,
        )
        for name, it in tools.items()
    }
    assert hints["ships_list"] == (True, False, True)
    assert hints["ships_replace"] == hints["DELETE_ships_name"] == (False, True, True)
    assert hints["ships_add"] == (False, None, False)


# Schemas.


async def test_schemas_of_openapi_3_0_are_translated(harbour):
    add = harbour._registry.tools["ships_add"].definition()
    ship = add.input_schema["$defs"]["Ship"]
    assert add.input_schema["required"] == ["name"]  # `id` is only in responses
    assert set(add.input_schema["properties"]) == {"name", "length", "flag", "key", "tows", "owner"}
    assert add.input_schema["additionalProperties"] is False
    assert ship["properties"]["length"] == {"type": ["number", "null"]}
    assert ship["properties"]["flag"] == {"type": ["string", "null"], "enum": ["no", "se", None]}
    assert ship["properties"]["owner"] == {
        "anyOf": [{"allOf": [{"$ref": "#/$defs/Owner"}]}, {"type": "null"}]
    }
    assert ship["properties"]["name"] == {"type": "string"}  # RE2 cannot search its pattern
    owner = add.input_schema["$defs"]["Owner"]["properties"]
    assert owner == {
        "name": {"type": "string"},
        "born": {"type": "string", "default": "1815-12-10"},
    }
    listed = harbour._registry.tools["ships_list"].definition()
    assert listed.input_schema["properties"]["length"]["exclusiveMinimum"] == 0
    assert listed.output_schema["items"] == {"$ref": "#/$defs/Ship"}


async def test_a_cycle_of_references_stays_one_in_the_definitions(harbour):
    get = harbour._registry.tools["ships_get"].definition()
    assert get.output_schema["type"] == "object"
    assert get.output_schema["required"] == ["id", "name"]
    assert "key" not in get.output_schema["properties"]
    assert get.output_schema["properties"]["tows"]["items"] == {"$ref": "#/$defs/Ship"}
    assert set(get.output_schema["$defs"]) == {"Ship", "Owner"}


def test_schemas_of_openapi_3_1_are_kept():
    schema = {
        "type": ["object", "null"],
        "properties": {"a": {"$ref": "#/components/schemas/A", "title": "an A"}},
    }
    spec = document(operation(requestBody=body_of(schema)), schemas={"A": {"const": 1}})
    made = tool_of(spec).input_schema
    assert made["properties"] == {
        "body": {
            "type": ["object", "null"],
            "properties": {"a": {"$ref": "#/$defs/A", "title": "an A"}},
        }
    }
    assert made["$defs"] == {"A": {"const": 1}}


def test_parts_of_an_all_of_are_merged():
    part = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    schema = {"allOf": [{"$ref": "#/components/schemas/Part"}, {"properties": {"b": True}}]}
    spec = document(operation(requestBody=body_of(schema)), schemas={"Part": part})
    made = tool_of(spec).input_schema
    assert made["properties"] == {"a": {"type": "string"}, "b": {}}
    assert made["required"] == ["a"]


@pytest.mark.parametrize("other", [{"properties": {"b": True}}, {}])
def test_a_part_of_an_all_of_may_require_members_of_another(other):
    part = {"type": "object", "properties": {"a": {"type": "string"}, "c": True}}
    schema = {"allOf": [part, {**other, "required": ["a"]}]}
    made = tool_of(document(operation(requestBody=body_of(schema)))).input_schema
    assert list(made["properties"]) == ["a", "c", *other.get("properties", {})]
    assert made["required"] == ["a"]


def test_a_part_to_which_many_parts_refer_is_merged_once():
    def parts(name):
        return {"allOf": [{"$ref": f"#/components/schemas/{name}"}] * 2}

    schemas = {f"P{depth}": parts(f"P{depth + 1}") for depth in range(100)}
    schemas["P100"] = {"properties": {"a": True}, "required": ["a"]}
    spec = document(operation(requestBody=body_of(parts("P0"))), schemas=schemas)
    made = tool_of(spec).input_schema
    assert (made["properties"], made["required"]) == ({"a": {}}, ["a"])


def test_a_reference_in_a_default_value_is_kept_as_data():
    properties = {"a": {"default": {"$ref": "x"}}, "b": {"enum": [{"$ref": "#/$defs/y"}]}}
    made = tool_of(document(operation(requestBody=body_of({"properties": properties}))))
    assert made.input_schema["properties"] == properties
    assert "$defs" not in made.input_schema


def test_references_in_old_definitions_lead_to_the_new_ones():
    schema = {"definitions": {"b": {"$ref": "#/components/schemas/A"}}, "type": "array"}
    spec = document(operation(requestBody=body_of(schema)), schemas={"A": {"const": 1}})
    made = tool_of(spec).input_schema
    assert made["properties"]["body"]["definitions"] == {"b": {"$ref": "#/$defs/A"}}
    assert made["$defs"] == {"A": {"const": 1}}


def test_a_schema_that_contains_itself_is_one_argument():
    schemas = {"A": {"allOf": [{"$ref": "#/components/schemas/A"}], "properties": {"a": {}}}}
    spec = document(operation(requestBody=body_of({"$ref": "#/components/schemas/A"})))
    spec["components"] = {"schemas": schemas}
    assert list(tool_of(spec).input_schema["properties"]) == ["body"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {}},
        {"oneOf": [{"type": "object"}]},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object"},
        True,
    ],
)
def test_a_body_that_is_no_object_of_known_members_is_one_argument(schema):
    made = tool_of(document(operation(requestBody=body_of(schema)))).input_schema
    assert list(made["properties"]) == made["required"] == ["body"]


@pytest.mark.requirement("TOOL-09", "TOOL-10")
def test_names_are_made_valid_and_unique():
    long = "x" * 70
    ids = ["a b", "a/b", "a_b", long, long + "y", "ä"]
    paths = {f"/{n}": {"get": {"operationId": it, "responses": {}}} for n, it in enumerate(ids)}
    entries = Server.from_openapi(document(paths)).openapi_report.entries
    names = [each.name for each in entries]
    assert names == ["a_b", "a_b_2", "a_b_3", "x" * 64, "x" * 62 + "_2", "operation"]


def test_names_of_arguments_are_made_valid_and_unique():
    parameters = [
        {"name": "id", "in": "query", "schema": {"type": "string"}},
        {"name": "id", "in": "header", "schema": {"type": "string"}, "description": "Mine."},
        {"name": "$top", "in": "query", "schema": {"type": "integer"}},
    ]
    schema = {"type": "object", "properties": {"id": {}, "top": {}}}
    spec = document(operation(parameters=parameters, requestBody=body_of(schema)))
    assert tool_of(spec).input_schema["properties"] == {
        "id": {"type": "string"},
        "id_header": {
            "type": "string",
            "description": "Mine.\n\nSent as the header parameter `id`.",
        },
        "top": {"type": "integer", "description": "Sent as the query parameter `$top`."},
        "id_body": {"description": "Sent as the member of the body `id`."},
        "top_body": {"description": "Sent as the member of the body `top`."},
    }


# Requests.


BERTH = (
    "berth%5Bpier%5D=A%201",
    "berth%5Bsides%5D%5B0%5D=n",
    "berth%5Bsides%5D%5B1%5D%5Bx%5D=1",
)
CALLS = {
    "ships_list": [
        ({}, "GET /v1/ships"),
        ({"flag": ["no", "s&e"]}, "GET /v1/ships?flag=no&flag=s%26e"),
        ({"flag": []}, "GET /v1/ships"),
        ({"id": [1, 2]}, "GET /v1/ships?id=1,2"),
        (
            {"berth": {"pier": "A 1", "sides": ["n", {"x": 1}]}},
            f"GET /v1/ships?{'&'.join(BERTH)}",
        ),
        ({"size": [1.5, 2]}, "GET /v1/ships?size=1.5%7C2"),
        ({"length": 3}, "GET /v1/ships?length%3E=3"),
        ({"filter": {"a": True}}, "GET /v1/ships?filter=%7B%22a%22%3Atrue%7D"),
    ],
    "ships_photo": [
        ({"name": "a/b?c=ä%"}, "GET /v1/ships/a%2Fb%3Fc%3D%C3%A4%25/photo"),
        ({"name": "%2e%2e"}, "GET /v1/ships/%252e%252e/photo"),
    ],
    "tides": [({"place": "a.b", "day": [1, 2]}, "GET /v1/tides/.a.b/;day=1;day=2")],
}


@pytest.mark.parametrize(
    ("name", "arguments", "target"),
    [(name, *call) for name, calls in CALLS.items() for call in calls],
)
async def test_parameters_are_written_in_their_style(api, harbour_client, name, arguments, target):
    await harbour_client.call_tool(name, arguments)
    assert api.target == target


BLUE, RGB = ["blue", "black"], {"R": 100, "G": 200}
# https://spec.openapis.org/oas/v3.1.1#style-examples
STYLES = [
    ("path", "matrix", False, "blue", ";color=blue"),
    ("path", "matrix", False, BLUE, ";color=blue,black"),
    ("path", "matrix", False, RGB, ";color=R,100,G,200"),
    ("path", "matrix", True, BLUE, ";color=blue;color=black"),
    ("path", "matrix", True, RGB, ";R=100;G=200"),
    ("path", "label", False, "blue", ".blue"),
    ("path", "label", False, BLUE, ".blue,black"),
    ("path", "label", False, RGB, ".R,100,G,200"),
    ("path", "label", True, BLUE, ".blue.black"),
    ("path", "label", True, RGB, ".R=100.G=200"),
    ("path", "simple", False, BLUE, "blue,black"),
    ("path", "simple", False, RGB, "R,100,G,200"),
    ("path", "simple", True, BLUE, "blue,black"),
    ("path", "simple", True, RGB, "R=100,G=200"),
    ("header", "simple", False, BLUE, "blue,black"),
    ("header", "simple", False, RGB, "R,100,G,200"),
    ("header", "simple", True, RGB, "R=100,G=200"),
    ("cookie", "form", True, BLUE, "color=blue,black"),
    ("query", "form", False, BLUE, "color=blue,black"),
    ("query", "form", False, RGB, "color=R,100,G,200"),
    ("query", "form", True, BLUE, "color=blue&color=black"),
    ("query", "form", True, RGB, "R=100&G=200"),
    ("query", "spaceDelimited", False, BLUE, "color=blue%20black"),
    ("query", "spaceDelimited", False, RGB, "color=R%20100%20G%20200"),
    ("query", "pipeDelimited", False, BLUE, "color=blue%7Cblack"),
    ("query", "pipeDelimited", False, RGB, "color=R%7C100%7CG%7C200"),
    ("query", "deepObject", True, RGB, "color%5BR%5D=100&color%5BG%5D=200"),
]


@pytest.mark.parametrize(("location", "style", "is_exploded", "value", "text"), STYLES)
def test_values_are_written_as_in_the_table_of_the_specification(
    location, style, is_exploded, value, text
):
    argument = RequestArgument(
        name="a", location=location, wire_name="color", style=style, is_exploded=is_exploded
    )
    path = "/x/{color}" if location == "path" else "/x"
    parts = RequestTemplate(method="GET", path=path, arguments=[argument]).parts({"a": value})
    found = {
        "path": parts.url.removeprefix("/x/"),
        "query": parts.url.removeprefix("/x?"),
        "header": parts.headers.get("color"),
        "cookie": parts.cookies,
    }
    assert found[location] == text


def test_reserved_characters_of_a_query_may_be_kept():
    argument = RequestArgument(name="a", location="query", wire_name="a", keeps_reserved=True)
    template = RequestTemplate(method="GET", path="/x", arguments=[argument])
    assert template.parts({"a": "b/c?d:e&f#g"}).url == "/x?a=b/c?d:e%26f%23g"
    assert template.parts({"a": None}).url == "/x"  # only JSON has a null


async def test_headers_and_cookies_are_sent(api, harbour_client, harbour):
    await harbour_client.call_tool("ships_list", {"X-Trace": "7", "watch": "a b"})
    assert (api.header("x-trace"), api.header("cookie")) == ("7", "watch=a%20b")
    assert api.header("accept") == "application/json"
    assert "Accept" not in harbour._registry.tools["ships_list"].signature.schema["properties"]


@pytest.mark.requirement("TOOL-38")
@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("ships_photo", {"name": ".."}, "segment '.' or '..'"),
        ("ships_photo", {"name": "../tides"}, "segment '.' or '..'"),
        ("ships_photo", {"name": "a\\..\\b"}, "segment '.' or '..'"),
        ("ships_photo", {"name": ""}, "'name' cannot be empty"),
        ("tides", {"place": "x", "day": []}, "'day' cannot be empty"),
        ("ships_list", {"X-Trace": "a\r\nb: c"}, "takes visible ASCII only"),
    ],
)
async def test_a_value_that_would_change_the_request_is_an_error(
    api, harbour_client, name, arguments, text
):
    result = await harbour_client.call_tool(name, arguments)
    assert result.is_error
    assert text in result.content[0].text
    assert api.requests == []


@pytest.mark.parametrize("schema", [{}, {"type": ["string", "null"]}])
async def test_null_in_the_path_is_an_error(api, schema):
    given = [{"name": "id", "in": "path", "required": True, "schema": schema}]
    spec = document({"/ships/{id}": {"delete": {"operationId": "x", "parameters": given}}})
    client = httpx2.AsyncClient(base_url=api.url)
    async with client, Client(Server.from_openapi(spec, client=client)) as mine:
        with pytest.raises(ToolError, match="the argument 'id' cannot be empty"):
            await mine.call_tool("x", {"id": None})
    assert api.requests == []


async def test_a_json_body_has_the_members_of_the_document(api, harbour_client):
    api.answer = answer(json.dumps(SHIP).encode(), status="201 Created")
    result = await harbour_client.call_tool("ships_add", {"length": None, "name": "Ada"})
    assert (api.target, api.header("content-type")) == ("POST /v1/ships", "application/json")
    assert api.body == b'{"name":"Ada","length":null}'
    assert result.structured_content == SHIP
    api.answer = answer(status="204 No Content")
    await harbour_client.call_tool("ships_replace", {"name": "Ada", "name_body": "Bea"})
    assert (api.target, api.body) == ("PUT /v1/ships/Ada", b'{"name":"Bea"}')


async def test_a_required_body_is_sent_without_members(api):
    spec = document(operation(requestBody=body_of({"type": "object", "properties": {"a": {}}})))
    client = httpx2.AsyncClient(base_url=api.url)
    async with client, Client(Server.from_openapi(spec, client=client)) as mine:
        await mine.call_tool("x")
        assert (api.header("content-type"), api.body) == ("application/json", b"{}")


async def test_a_form_is_sent(api, harbour_client):
    api.answer = answer(b"done", "text/plain")
    arguments = {"name": "Ada", "text": "a&b c", "tags": ["x", "y"], "wind": {"b": 3}}
    result = await harbour_client.call_tool("ships_log", {**arguments, "crew": {"n": 2}})
    assert api.header("content-type") == "application/x-www-form-urlencoded"
    assert api.body == b"text=a%26b%20c&tags=x&tags=y&wind=%7B%22b%22%3A3%7D&crew%5Bn%5D=2"
    assert result.content[0].text == "done"


async def test_a_form_that_is_a_map_is_one_argument(api):
    media_type = "application/x-www-form-urlencoded"
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    spec = document(operation(requestBody=body_of(schema, media_type)))
    client = httpx2.AsyncClient(base_url=api.url)
    async with client, Client(Server.from_openapi(spec, client=client)) as mine:
        await mine.call_tool("x", {"body": {"a": "1", "b": "2"}})
    assert api.body == b"a=1&b=2"


async def test_the_body_of_a_form_without_a_schema_is_an_object_or_a_string(api):
    body = {"content": {"application/x-www-form-urlencoded": {}}}
    spec = document(operation(requestBody=body))
    client = httpx2.AsyncClient(base_url=api.url)
    async with client, Client(Server.from_openapi(spec, client=client)) as mine:
        for value in ({"a": "1", "b": "ä"}, "a=1&b=%C3%A4"):
            await mine.call_tool("x", {"body": value})
            assert api.body == b"a=1&b=%C3%A4"
        with pytest.raises(ToolError, match="the body has to be an object"):
            await mine.call_tool("x", {"body": [1]})


OWNER = (
    b'Content-Disposition: form-data; name="owner"\r\n'
    b'Content-Type: application/json\r\n\r\n{"name":"B"}'
)


async def test_a_multipart_body_has_text_fields(api, harbour, harbour_client):
    api.answer = answer(status="202 Accepted")
    (entry,) = [it for it in harbour.openapi_report.accepted if it.operation.id == "ships/papers"]
    assert entry.reason == "without the field scan, which is a file"
    arguments = {"name": "Ada", "kind": "map", "pages": [1, 2], "owner": {"name": "B"}}
    for _ in range(2):
        await harbour_client.call_tool("ships_papers", arguments)
    assert api.requests[0] == api.requests[1]  # the boundary is no random one
    boundary = api.header("content-type").partition("boundary=")[2].encode()
    parts = [part.strip() for part in api.body.split(b"--" + boundary)]
    assert parts == [
        b"",
        b'Content-Disposition: form-data; name="kind"\r\n\r\nmap',
        b'Content-Disposition: form-data; name="pages"\r\n\r\n1',
        b'Content-Disposition: form-data; name="pages"\r\n\r\n2',
        OWNER,
        b"--",
    ]


async def test_a_text_is_sent_as_it_is(api, harbour_client):
    await harbour_client.call_tool("note", {"body": "low tide"})
    assert (api.header("content-type"), api.body) == ("text/plain", b"low tide")


async def test_arguments_are_checked_by_the_schema(api, harbour_client):
    result = await harbour_client.call_tool("ships_list", {"id": ["x"], "more": 1})
    assert result.is_error
    assert "id[0]" in result.content[0].text
    assert "more" in result.content[0].text
    assert api.requests == []


# Results.


@pytest.mark.requirement("TOOL-29")
async def test_a_response_without_success_is_an_error_with_the_text_of_the_body(
    api, harbour_client
):
    api.answer = answer(b'{"reason":"fog"}', status="409 Conflict")
    result = await harbour_client.call_tool("ships_get", {"name": "Ada"})
    assert result.is_error
    assert result.content[0].text == 'HTTP 409 Conflict\n\n{"reason":"fog"}'


async def test_a_long_body_of_a_response_without_success_is_shortened(api):
    spec = document({"/x": {"get": {"operationId": "x"}}})
    limits = Limits(messages=MessageLimits(error_text_chars_max=10))
    api.answer = answer(b"<html>" + b"x" * 1000, "text/html", status="502 Bad Gateway")
    async with httpx2.AsyncClient(base_url=api.url) as client:
        tools = Server.from_openapi(spec, client=client, limits=limits)
        async with Client(tools, raise_tool_errors=False) as mine:
            result = await mine.call_tool("x")
        resources = Server.from_openapi(
            spec, client=client, limits=limits, resources=lambda _: True
        )
        async with Client(resources) as mine:
            with pytest.raises(RequestError) as caught:
                await mine.read_resource("api:/x")
    text = "HTTP 502 Bad Gateway\n\n<html>xxxx…"
    assert result.content[0].text == text
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("response", "kind", "text"),
    [
        (answer(b"\x89PNG", "image/png"), "ImageContent", "iVBORw=="),
        (answer(b"RIFF", "audio/wav"), "AudioContent", "UklGRg=="),
        (answer(b"\xff", "application/zip"), "EmbeddedResource", "/w=="),
        (answer("ä".encode("latin-1"), "text/plain; charset=latin-1"), "TextContent", "ä"),
        (answer(b"<x/>", "application/xml"), "TextContent", "<x/>"),
        (answer(status="204 No Content"), "TextContent", "HTTP 204 No Content"),
    ],
)
async def test_a_response_becomes_content_by_its_media_type(
    api, harbour_client, response, kind, text
):
    api.answer = response
    (content,) = (await harbour_client.call_tool("ships_photo", {"name": "Ada"})).content
    assert type(content).__name__ == kind
    found = (
        content.resource.blob
        if kind == "EmbeddedResource"
        else getattr(content, "text" if kind == "TextContent" else "data")
    )
    assert found == text


async def test_a_response_in_json_may_have_a_byte_order_mark(api, harbour_client):
    api.answer = answer(b'\xef\xbb\xbf{"id": 1, "name": "Ada"}', status="201 Created")
    result = await harbour_client.call_tool("ships_add", {"name": "Ada"})
    assert result.structured_content == {"id": 1, "name": "Ada"}


@pytest.mark.requirement("TOOL-24")
@pytest.mark.parametrize("body", [b'{"name": 3}', b"{", b""])
async def test_a_response_that_does_not_fit_its_schema_is_an_error_with_the_whole_body(
    api, harbour_client, body
):
    api.answer = answer(body, status="201 Created")
    result = await harbour_client.call_tool("ships_add", {"name": "Ada"})
    assert result.is_error
    text = result.content[0].text
    assert text.startswith("HTTP 201 Created: the API has answered, but not as its document says (")
    assert text.endswith(body.decode())


async def test_output_schemas_can_be_left_out(api):
    client = httpx2.AsyncClient(base_url=api.url)
    server = Server.from_openapi(PATH, client=client, output_schemas=False)
    api.answer = answer(b'{"name": 3}')
    async with client, Client(server) as mine:
        assert (await mine.list_tools())[0].output_schema is None
        result = await mine.call_tool("ships_get", {"name": "Ada"})
    assert result.content[0].text == '{"name": 3}'


def test_an_output_schema_needs_json_in_all_successful_responses():
    content = {"application/json": {"schema": {"type": "integer"}}}
    several = {"200": {"content": content}, "201": {"content": content}, "404": {}}
    assert tool_of(document(operation(responses=several))).output_schema == {"type": "integer"}
    text = {"application/json": {"schema": {"type": "string"}}}
    other = {"200": {"content": content}, "2XX": {"content": text}}
    assert tool_of(document(operation(responses=other))).output_schema == {
        "anyOf": [{"type": "integer"}, {"type": "string"}]
    }
    mixed = {"200": {"content": content}, "204": {}}
    assert tool_of(document(operation(responses=mixed))).output_schema is None


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"schema_objects_max": 5}, "the schema has more than 5 objects"),
        ({"schema_steps_max": 750}, "schema_steps_max=750"),
    ],
)
def test_a_schema_over_the_limits_is_left_out_or_refused(limits, text):
    member = {f"a{n}": {"type": "string", "enum": ["b", "c"]} for n in range(9)}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Big"}}}
    big = {"type": "object", "properties": {"b": {"$ref": "#/components/schemas/Members"}}}
    schemas = {"Big": big, "Members": {"type": "object", "properties": member}}
    own = Limits(messages=MessageLimits(**limits))
    spec = document(operation(responses={"200": {"content": content}}), schemas=schemas)
    (entry,) = Server.from_openapi(spec, limits=own).openapi_report.entries
    assert entry.outcome == "tool"
    assert entry.reason.startswith("without an output schema: ")
    assert text in entry.reason
    spec = document(operation(requestBody=body_of(big)), schemas=schemas)
    (entry,) = Server.from_openapi(spec, limits=own).openapi_report.entries
    assert entry.outcome == "rejected"
    assert text in entry.reason


# Clients, recordings and replays.


async def test_a_client_of_either_library_has_base_url_and_authentication(api, library):
    headers = {"X-Key": "k", "Accept": "application/vnd.harbour+json"}
    client = library.AsyncClient(
        base_url=api.url, auth=("ada", "secret"), headers=headers, cookies={"a": "1"}
    )
    async with client, Client(Server.from_openapi(PATH, client=client)) as mine:
        await mine.call_tool("ships_list", {"watch": "2"})
    assert api.target == "GET /v1/ships"
    assert api.header("authorization") == "Basic YWRhOnNlY3JldA=="
    assert (api.header("x-key"), api.header("cookie")) == ("k", "a=1; watch=2")
    assert api.header("accept") == "application/vnd.harbour+json"


async def test_without_a_client_the_context_sends_to_the_server_of_the_document(api):
    spec = document(operation())
    spec["servers"] = [{"url": api.url}]
    async with Client(Server.from_openapi(spec)) as mine:
        await mine.call_tool("x")
    assert api.target == "POST /v1/x"


async def test_a_client_without_a_base_url_gets_that_of_the_document(api):
    spec = document(operation())
    spec["servers"] = [{"url": api.url + "/"}]
    client = httpx2.AsyncClient(headers={"X-Key": "k"})
    async with client, Client(Server.from_openapi(spec, client=client)) as mine:
        await mine.call_tool("x")
    assert (api.target, api.header("x-key")) == ("POST /v1/x", "k")


async def test_an_api_that_does_not_answer_is_an_error_of_the_tool(library):
    def fail(request):
        raise library.ConnectError("no way to 10.0.0.1", request=request)

    client = library.AsyncClient(
        base_url="http://127.0.0.1:9", transport=library.MockTransport(fail)
    )
    server = Server.from_openapi(PATH, client=client)
    async with Client(server, raise_tool_errors=False) as mine:
        result = await mine.call_tool("ships_list")
    assert result.is_error
    assert result.content[0].text == "the request to the API failed: ConnectError"


@pytest.mark.parametrize("kind", ["plain", "with an EffectTransport", "none"])
async def test_a_recorded_session_replays_without_the_api(api, record, kind, library):
    spec = document(operation(requestBody=body_of({"type": "object", "properties": {"a": {}}})))
    spec["servers"] = [{"url": api.url}]

    clients = []

    def make(url):
        if kind == "none":
            return Server.from_openapi(spec)
        transport = EffectTransport() if kind == "with an EffectTransport" else None
        client = library.AsyncClient(base_url=url, auth=("ada", "secret"), transport=transport)
        clients.append(client)
        return Server.from_openapi(spec, client=client)

    asker, recorded = await record(make(api.url))
    api.answer = answer(b"done", "text/plain")
    assert await asker.call("x", a=1) == "done"
    api.answer = answer(b"fog", "text/plain", "503 Service Unavailable")
    assert "503" in await asker.failure("x", {"a": 2})
    commands = [body for kind, body in recorded() if kind == "cmd"]
    assert [each["name"] for each in commands] == ["ctx.http", "ctx.http"]
    assert commands[0]["arguments"]["body"] == '{"a":1}'
    assert commands[0]["arguments"]["url"] == f"{api.url}/x"
    assert b"YWRhOnNlY3JldA" not in recorded.path.read_bytes()
    seen = len(api.requests)
    report = await played_again(asker, recorded, make(api.url))
    assert report.requests == 2
    assert len(api.requests) == seen == 2
    for client in clients:
        await client.aclose()


async def test_a_multipart_request_replays(api, record):
    api.answer = answer(status="202 Accepted")
    async with httpx2.AsyncClient(base_url=api.url) as client:
        server = Server.from_openapi(PATH, client=client)
        asker, recorded = await record(server)
        params = {"name": "ships_papers", "arguments": {"name": "Ada", "kind": "map"}}
        result = await asker.result("tools/call", params)
        assert result["content"][0]["text"] == "HTTP 202 Accepted"
        await played_again(asker, recorded, server)
    assert len(api.requests) == 1


# Resources.


@pytest.fixture
async def reading(api):
    client = httpx2.AsyncClient(base_url=api.url)
    parameters = [
        {"name": "limit", "in": "query", "schema": {"type": "integer"}},
        {"name": "class", "in": "query", "schema": {"type": "string"}},
        {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
    ]
    responses = {"200": {"content": {"application/json": {}}}}
    named = {"name": "ship-name", "in": "path", "required": True, "schema": {"type": "string"}}
    needed = {"name": "q", "in": "query", "required": True, "schema": {"type": "array"}}
    spec = document(
        {
            "/ships": {
                "get": {"summary": "Ships", "parameters": parameters, "responses": responses},
                "post": {"responses": responses},
            },
            "/ships/{ship-name}": {"get": {"parameters": [named], "responses": responses}},
            "/motd": {"get": {"operationId": "motd", "responses": responses}},
            "/found": {"get": {"parameters": [needed], "responses": responses}},
        }
    )
    server = Server.from_openapi(
        spec, client=client, resources=lambda operation: operation.path != "/other"
    )
    async with client, Client(server) as mine:
        yield mine, server.openapi_report


async def test_operations_become_resources_and_templates_by_a_rule(reading):
    client, report = reading
    found = [(each.outcome, each.name, each.reason) for each in report.entries]
    assert found == [
        (
            "resource template",
            "api:/ships{?limit,_class}",
            "without the argument X-Trace, which a URI cannot contain",
        ),
        ("rejected", "", "a resource is read by GET"),
        ("resource template", "api:/ships/{ship_name}", ""),
        ("resource", "api:/motd", ""),
        (
            "rejected",
            "",
            "a resource cannot have the argument q, which a URI cannot contain",
        ),
    ]
    (motd,) = await client.list_resources()
    assert (motd.name, motd.mime_type) == ("motd", "application/json")
    templates = await client.list_resource_templates()
    assert [each.title for each in templates] == ["Ships", None]


@pytest.mark.parametrize(
    ("uri", "target"),
    [
        ("api:/motd", "GET /v1/motd"),
        ("api:/ships?limit=3&_class=a%26b", "GET /v1/ships?limit=3&class=a%26b"),
        ("api:/ships/Ada%20L", "GET /v1/ships/Ada%20L"),
    ],
)
async def test_a_resource_is_read_by_its_request(api, reading, uri, target):
    api.answer = answer(b'{"a":1}')
    (contents,) = (await reading[0].read_resource(uri)).contents
    assert api.target == target
    assert (contents.text, contents.mime_type) == ('{"a":1}', "application/json")


def test_a_path_that_is_no_template_is_no_resource():
    named = [{"name": name, "in": "path", "schema": {"type": "string"}} for name in ("a", "b")]
    spec = document({"/{a}{b}": {"get": {"parameters": named}}})
    (entry,) = Server.from_openapi(spec, resources=lambda _: True).openapi_report.rejected
    assert "two expressions have no text or sign between them" in entry.reason


def test_similar_names_in_the_path_of_a_resource_stay_apart():
    names = ("ship-no", "ship_no")
    parameters = [{"name": name, "in": "path", "required": True} for name in names]
    path = {"/{ship-no}/{ship_no}": {"get": {"parameters": parameters, "responses": {}}}}
    server = Server.from_openapi(document(path), resources=lambda _: True)
    (entry,) = server.openapi_report.entries
    assert entry.name == "api:/{ship_no}/{ship_no_2}", entry.reason


async def test_a_resource_that_the_api_does_not_have_is_not_found(api, reading):
    api.answer = answer(b"no", status="404 Not Found")
    with pytest.raises(ResourceNotFound) as caught:
        await reading[0].read_resource("api:/ships/Ada")
    assert "api:/ships/Ada" in str(caught.value)
    api.answer = answer(b"\xff", "image/png")
    (contents,) = (await reading[0].read_resource("api:/ships/Ada")).contents
    assert contents.blob == "/w=="


# Options.


def test_operations_are_included_excluded_and_renamed():
    server = Server.from_openapi(
        PATH,
        include=lambda operation: operation.id.startswith("ships/"),
        exclude=lambda operation: operation.is_deprecated or operation.method != "GET",
        rename={"ships/get": "ship", "ships/list": "ships_photo"},
    )
    entries = server.openapi_report.entries
    names = {each.operation.id: each.name for each in entries if each.outcome == "tool"}
    assert names == {
        "ships/list": "ships_photo",
        "ships/get": "ship",
        "ships/photo": "ships_photo_2",
    }
    assert {each.outcome for each in entries} == {"tool", "excluded"}


@pytest.mark.parametrize(
    ("rename", "text"),
    [
        ({"ships/gone": "x"}, "ids that no operation has: ships/gone"),
        ({"ships/get": "x", "ships/add": "x"}, "gives one name to several operations"),
        ({"ships/get": "a b"}, "'a b' is not a valid name for a tool"),
    ],
)
def test_a_wrong_name_is_an_error(rename, text):
    with pytest.raises(ValueError, match=text):
        Server.from_openapi(PATH, rename=rename)


@pytest.mark.parametrize("form", ["object", "json", "yaml", "path as a string"])
def test_a_document_is_given_in_several_forms(form, tmp_path):
    spec = document(operation())
    file = tmp_path / "api.json"
    file.write_text(json.dumps(spec))
    forms = {
        "object": spec,
        "json": json.dumps(spec),
        "yaml": PATH.read_text(),
        "path as a string": str(file),
    }
    assert Server.from_openapi(forms[form]).openapi_report.accepted


def test_an_object_of_a_yaml_library_may_have_numbers_as_names():
    get = {"operationId": "x", "responses": {200: {"description": "ships"}}}
    body = body_of({"type": "object", "properties": {"day": {"default": date(2026, 11, 30)}}})
    spec = document({"/x": {"get": get}, "/y": {"post": {"requestBody": body, "responses": {}}}})
    report = Server.from_openapi(spec).openapi_report
    assert [entry.outcome for entry in report.entries] == ["tool", "tool"]


@pytest.mark.parametrize("blanks", ["\ufeff", "\ufeff\n", "\r\n"])
@pytest.mark.parametrize("form", ["text", "file"])
def test_json_may_have_a_byte_order_mark(blanks, form, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    text = blanks + json.dumps(document(operation()))
    file = tmp_path / "api.json"
    file.write_text(text, encoding="utf-8")
    assert Server.from_openapi(text if form == "text" else file).openapi_report.accepted


@pytest.mark.parametrize(
    ("version", "of_api"), [("3.0", 1), ("3.1", 1.5), ("3.1.0-rc1", "2026-11")]
)
def test_versions_may_be_short_or_numbers(version, of_api):
    spec = document(operation(), version)
    spec["info"]["version"] = of_api
    assert Server.from_openapi(spec).version == str(of_api)


def test_a_member_that_is_null_is_left_out():
    parameter = {"name": "a", "in": "query", "description": None, "schema": {"type": "string"}}
    spec = document(
        operation(summary=None, tags=None, requestBody=None, parameters=[parameter]), "3.0.0"
    )
    spec["paths"]["/x"]["parameters"] = None
    assert tool_of(spec).input_schema["properties"] == {"a": {"type": "string"}}


def test_yaml_is_read_as_json_would_be():
    text = PATH.read_text()
    merged = text + "\n  x: &x {a: 1}\n  y:\n    <<: *x\n    on: 010\n"
    from mcp_trio._server.openapi import read_document

    contents = read_document(merged).contents
    assert contents["components"]["y"] == {"a": 1, "on": "010"}
    responses = contents["paths"]["/ships"]["get"]["responses"]
    assert list(responses) == ["200", "default"]


def test_yaml_without_its_library_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(ImportError, match=r"pip install 'mcp_trio\[openapi\]'"):
        Server.from_openapi(PATH)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"swagger": "2.0"}, "Swagger 2.0: convert it"),
        ({"openapi": "3.2.0"}, "has openapi: 3.2.0"),
        ({"openapi": "3.1.0", "paths": []}, "an object with `openapi` and `paths`"),
        ({"openapi": "3.1.0", "info": {"title": 3}}, "the info of the document is malformed"),
        (
            {"openapi": "3.1.0", "info": {}, "servers": 3},
            "the document cannot be read: the servers are malformed",
        ),
        ({"openapi": "3.1.0", "info": {}}, "names no absolute URL of a server"),
        ("{", "the text is not JSON"),
        ("a: [\n", "the text is not YAML"),
        ("- a\n- b\n", "not an OpenAPI document"),
        ("https://api.example/openapi.json", "download https://api.example"),
    ],
)
def test_a_document_that_cannot_be_read_is_an_error(spec, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        Server.from_openapi(spec)


@pytest.mark.parametrize("client", [3, httpx2.Client()], ids=["no client", "synchronous"])
def test_another_client_is_an_error(client):
    with pytest.raises(TypeError, match="takes an AsyncClient of httpx2 or httpx, not"):
        Server.from_openapi(PATH, client=client)


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        ({"/x": 3}, "the path item is malformed"),
        ({"/x": {"$ref": "x.yaml"}}, "x.yaml is in another document"),
        ({"/x": {"$ref": "#/paths/~1x"}}, "the reference #/paths/~1x leads to itself"),
        ({"/x": {"get": {"tags": 3}}}, "the operation is malformed"),
        (operation(parameters=[{"name": "a", "in": "query", "style": "simple"}]), "unknown style"),
        (
            operation(
                parameters=[
                    {"name": "a", "in": "query", "required": True, "content": {"text/csv": {}}}
                ]
            ),
            "the parameter a, which is text/csv, cannot be sent",
        ),
        (
            {
                "/x/{a}": {
                    "get": {
                        "parameters": [{"name": "a", "in": "path", "content": {"text/csv": {}}}]
                    }
                }
            },
            "the parameter a, which is text/csv, cannot be sent",
        ),
        (operation(requestBody=body_of({"type": "object"}, "multipart/form-data")), "no fields"),
        (operation(requestBody=body_of(3)), "3 is not a schema"),
        (operation(requestBody=body_of({"$ref": "#/info/title/a"})), "leads to nothing"),
        (operation(requestBody=body_of({"$ref": "#/servers/a"})), "leads to nothing"),
        (
            operation(
                requestBody=body_of({"$ref": "#/paths/~1x/post/requestBody/required/a"}),
            ),
            "leads to nothing",
        ),
        (operation(requestBody=body_of({"$ref": None})), "the reference None is not a string"),
        (operation(requestBody=body_of({"properties": []})), "properties"),
        (operation(requestBody=body_of({"properties": {"a": {}}, "required": [[]]})), "required"),
        (
            operation(
                requestBody=body_of(
                    {"properties": {"a": {"properties": {"b": {}}, "required": [[]]}}}
                )
            ),
            "required",
        ),
        (operation(requestBody=body_of({"required": True})), "required"),
        (operation(requestBody=body_of({"allOf": {}})), "allOf"),
        ({"/x": {"parameters": {}, "get": {}}}, "the parameters of the path item are malformed"),
        ({"/x": {"servers": {}, "get": {}}}, "the servers are malformed"),
        ({"/x#y": {"get": {}}}, "the path has a query or a fragment"),
        (operation(requestBody=body_of({"type": "strnig"})), "'strnig'"),
        (
            operation(
                requestBody=body_of(
                    {"type": "object", "properties": {"a": {}}},
                    "application/x-www-form-urlencoded",
                    encoding={"a": {"style": "wide"}},
                )
            ),
            "the field a has the unknown style wide",
        ),
    ],
)
def test_an_operation_that_cannot_be_read_is_refused(paths, reason):
    assert reason in reason_of(document(paths))


def test_webhooks_are_rejected():
    spec = document({}) | {"webhooks": {"onFog": {}}}
    assert reason_of(spec) == "a webhook is called by the API"


@pytest.mark.parametrize(
    ("members", "note"),
    [
        (
            {"requestBody": {"content": {"image/png": {}}}},
            "without the request body, which is image/png, cannot be sent",
        ),
        (
            {"parameters": [{"name": "a", "in": "query", "content": {"text/csv": {}}}]},
            "without the parameter a, which is text/csv",
        ),
        (
            {"parameters": [{"name": "a", "in": "path", "required": True}]},
            "without the parameter a, which the path lacks",
        ),
        (
            {"responses": {"200": {"content": {"application/json": {"schema": {"$ref": "x"}}}}}},
            "without an output schema: x is in another document",
        ),
    ],
)
def test_what_is_left_out_of_a_tool_is_noted(members, note):
    (entry,) = Server.from_openapi(document(operation(**members))).openapi_report.entries
    assert entry.outcome == "tool"
    assert entry.reason.startswith(note.removesuffix(", cannot be sent"))


def test_the_media_type_of_a_body_is_chosen():
    text, wild = {"schema": {"type": "string"}}, {"schema": {"type": "integer"}}
    content = {"text/plain": text, "*/*": wild}
    spec = document(operation(requestBody={"content": content}))
    assert tool_of(spec).input_schema["properties"]["body"] == {"type": "integer"}
    content["application/merge-patch+json; charset=utf-8"] = {"schema": {"type": "boolean"}}
    assert tool_of(spec).input_schema["properties"]["body"] == {"type": "boolean"}
