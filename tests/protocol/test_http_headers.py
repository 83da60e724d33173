"""HTTP headers: requests, content negotiation, and parameter headers."""

import base64
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._protocol.http_headers import (
    HeaderMismatchError,
    HttpRequest,
    ParameterHeaderError,
    accepts,
    check_headers_match,
    decoded_value,
    encoded_value,
    headers_from_body,
    media_type_of,
    parameter_paths,
)

# Requests and content negotiation.

JSON = "application/json"
EVENTS = "text/event-stream"


def test_a_request_separates_the_query_from_the_path():
    request = HttpRequest.of("POST", "/a%20b/mcp?x=1?2", [], scheme="https", client="192.0.2.7")
    assert (request.method, request.path, request.query) == ("POST", "/a%20b/mcp", "x=1?2")
    assert (request.scheme, request.client, request.principal) == ("https", "192.0.2.7", None)
    assert HttpRequest.of("GET", "/mcp", []).query == ""


@pytest.mark.requirement("HDR-05", "TRAP-33", "TRAP-46")
@pytest.mark.parametrize("name", [b"Mcp-Session-Id", b"MCP-Session-Id", b"mcp-session-id"])
def test_header_names_ignore_case_and_values_keep_it(name):
    request = HttpRequest.of("POST", "/mcp", [(name, b"AbC")])
    assert request.header("MCP-SESSION-ID") == request.header("Mcp-Session-Id") == "AbC"


@pytest.mark.requirement("HDR-06", "TRAP-46")
@pytest.mark.parametrize("value", [b"  a b", b"a b\t", b" \t a b \t ", b"a b"])
def test_white_space_around_a_header_value_is_removed(value):
    assert HttpRequest.of("POST", "/", [(b"Mcp-Name", value)]).header("mcp-name") == "a b"


def test_only_spaces_and_tabs_are_taken_from_a_value():
    assert HttpRequest.of("POST", "/", [(b"x", b"\xa0\x0b ")]).header("x") == "\xa0\x0b"


def test_a_field_that_came_several_times_is_joined_and_noted():
    request = HttpRequest.of(
        "GET", "/", [(b"Accept", b"a/b"), (b"Host", b"x"), (b"ACCEPT", b" c/d ")]
    )
    assert request.header("accept") == "a/b, c/d"
    assert request.repeated == {"accept"}
    assert request.header("origin") is None


@pytest.mark.requirement("TRAP-31")
@pytest.mark.parametrize(
    ("accept", "accepts_json", "takes_events"),
    [
        (None, True, True),
        ("", True, True),
        (" , ,", True, True),
        ("application/json, text/event-stream", True, True),
        ("Application/JSON,TEXT/Event-Stream", True, True),
        ("text/event-stream;q=0.5 , application/json ; charset=utf-8", True, True),
        ("*/*", True, True),
        ("text/html, */*;q=0.1", True, True),
        ("text/*", False, True),
        ("application/*", True, False),
        ("application/json", True, False),
        ("text/event-stream", False, True),
        ("text/html", False, False),
        ("application/jsonx, text/event-streams", False, False),
        ("application/json;q=0, */*", False, True),
        ("*/*, application/json;Q=0.000", False, True),
        ("application/*;q=0, application/json", True, False),
        ("application/json; q=0, application/json;v=2", True, False),
        ("text/event-stream;q=0.001", False, True),
        ("text/event-stream;q=nonsense", False, True),
        ('x/y;z="a,application/json", text/event-stream', False, True),
        ('x/y;z="a\\",application/json"', False, False),
        ('x/y;z="a,application/json', False, False),
    ],
)
def test_accept_is_a_list_of_ranges_with_weights(accept, accepts_json, takes_events):
    assert (accepts(accept, JSON), accepts(accept, EVENTS)) == (accepts_json, takes_events)


def test_a_long_list_is_read_like_a_short_one():
    assert accepts("text/html, " * 1000 + JSON, JSON)
    assert not accepts("text/html, " * 1000 + JSON, EVENTS)


@given(st.text(alphabet=' \t,;="\\/*aq0.', max_size=80))
def test_any_list_can_be_read(accept):
    assert accepts(accept, JSON) in {True, False}


@pytest.mark.parametrize(
    ("content_type", "media_type"),
    [
        (None, ""),
        ("", ""),
        ("application/json", JSON),
        (" Application/JSON ; charset=utf-8", JSON),
        ("application/json, application/json", "application/json, application/json"),
    ],
)
def test_a_media_type_is_read_without_its_parameters(content_type, media_type):
    assert media_type_of(content_type) == media_type


# The annotations of parameter headers in tool schemas.


def tool(**properties):
    return {"type": "object", "properties": properties}


def param_headers(name="Region", kind="string", **more):
    return {"type": kind, "x-mcp-header": name, **more}


@pytest.mark.requirement("HDR-08", "HDR-13", "HDR-15", "TRAP-49")
def test_annotated_properties_are_found_at_any_depth_of_properties():
    schema = tool(
        region=param_headers("Region"),
        plain={"type": "string"},
        page=tool(limit=param_headers("Limit", "integer"), deeper=tool(x=param_headers("X-1"))),
        dry=param_headers("Dry", "boolean"),
        odd=True,
    )
    found = {
        "Region": ("region",),
        "Dry": ("dry",),
        "Limit": ("page", "limit"),
        "X-1": ("page", "deeper", "x"),
    }
    assert parameter_paths(schema) == found
    assert parameter_paths({"type": "object"}) == {}


@pytest.mark.requirement("HDR-10", "HDR-11")
@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "a:b",
        "a\n",
        "a\tb",
        "\x00",
        "\x7f",
        "K\xf8b",
        "a/b",
        "a,b",
        '"a"',
        "(a)",
        None,
        1,
        pytest.param(10**5000, id="huge"),
        ["A"],
    ],
)
def test_an_annotation_that_is_no_token_is_rejected(name):
    with pytest.raises(ParameterHeaderError, match=r"x-mcp-header of 'region' is not a token"):
        parameter_paths(tool(region=param_headers(name)))


def test_any_token_will_do():
    names = ["!#$%&'*+-.^_`|~", "0", "a.B_c"]
    schema = tool(**{f"p{number}": param_headers(name) for number, name in enumerate(names)})
    assert list(parameter_paths(schema)) == names


@pytest.mark.requirement("HDR-12")
@pytest.mark.parametrize("other", ["Region", "region", "REGION"])
def test_two_annotations_that_are_the_same_in_any_case_are_rejected(other):
    with pytest.raises(
        ParameterHeaderError, match=f"two properties have the same x-mcp-header {other!r}"
    ):
        parameter_paths(tool(a=param_headers("Region"), b=tool(c=param_headers(other))))


@pytest.mark.requirement("HDR-13", "TRAP-49")
@pytest.mark.parametrize(
    "kind", ["number", "object", "array", "null", "text", ["string"], ["string", "null"], None]
)
def test_only_strings_integers_and_booleans_are_sent_in_headers(kind):
    with pytest.raises(ParameterHeaderError, match="'region' must be a string, integer or boolean"):
        parameter_paths(tool(region=param_headers(kind=kind)))


def test_a_property_without_a_type_is_not_sent_in_a_header():
    with pytest.raises(ParameterHeaderError, match="must be a string"):
        parameter_paths(tool(page=tool(region={"x-mcp-header": "Region", "$ref": "#/$defs/r"})))


@pytest.mark.requirement("HDR-15")
@pytest.mark.parametrize(
    "schema",
    [
        param_headers(),
        tool(a={"type": "array", "items": param_headers()}),
        tool(a={"type": "array", "items": [{}, param_headers()]}),
        tool(a={"type": "array", "prefixItems": [param_headers()]}),
        tool(a={"type": "array", "contains": tool(b=param_headers())}),
        tool(a={"anyOf": [param_headers(), {"type": "null"}]}),
        {"allOf": [tool(a=param_headers())]},
        {"oneOf": [tool(a=param_headers())]},
        {"not": tool(a=param_headers())},
        {"if": tool(a=param_headers())},
        {"then": tool(a=param_headers())},
        {"else": tool(a=param_headers())},
        {"$defs": {"a": param_headers()}},
        {"definitions": {"a": tool(b=param_headers())}},
        {"additionalProperties": param_headers()},
        {"patternProperties": {"^a": param_headers()}},
        {"dependentSchemas": {"a": tool(b=param_headers())}},
        {"dependencies": {"c": ["a"], "a": tool(b=param_headers())}},
        {"propertyNames": param_headers()},
        {"unevaluatedProperties": param_headers()},
        tool(a={"contentSchema": param_headers()}),
        tool(fine=param_headers("Fine"), a={"items": param_headers()}),
    ],
)
def test_an_annotation_that_properties_alone_do_not_lead_to_is_rejected(schema):
    with pytest.raises(ParameterHeaderError, match="not reached by `properties` alone"):
        parameter_paths(schema)


def test_annotations_inside_other_values_are_ignored():
    looks = {"x-mcp-header": "a b"}
    schema = tool(
        **{"x-mcp-header": {"type": "string", "default": looks, "examples": [looks]}},
        a={"const": looks, "enum": [looks], "x-other": looks},
        properties=param_headers("P"),
    )
    assert parameter_paths(schema | {"$defs": {"x-mcp-header": {}}}) == {"P": ("properties",)}


def test_a_schema_of_odd_shape_has_no_annotations():
    assert parameter_paths({"properties": [], "$defs": 1, "items": None, "allOf": [1, None]}) == {}


def test_a_deep_schema_is_read():
    schema = param_headers()
    for _ in range(5000):
        schema = tool(a=schema)
    assert parameter_paths(schema) == {"Region": ("a",) * 5000}


# Requests whose headers and body disagree are rejected.

VERSION = "2026-07-28"
PATHS = {"Region": ("region",), "Limit": ("page", "limit"), "Dry": ("dry",), "Method": ("how",)}


def marked(value):
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def call(**arguments):
    return {"name": "tide", "arguments": arguments}


# Values.

PLAIN = ["", "us-west1", "a b  c", "~!\"'(),:;<=>?@[]{}", "=?base64?", "=?base64?YQ==", "YQ==?="]
ENCODED_VALUES = [
    "K\xf8benhavn",
    "\u6f6e",
    " a",
    "a ",
    "\ta",
    "a\t",
    "a\tb",
    "a\nb",
    "a\r\nb: c",
    "a\x00",
]
ENCODED_VALUES += [
    "\x7f",
    "\x80",
    " ",
    "\t",
    "\u2028",
    "\U0001f30a",
    "\xa0a",
    "=?base64?YQ==?=",
    "=?base64??=",
]
ENCODED_VALUES += ["=?base64?not base64?=", "=?base64?="]


@pytest.mark.requirement("HDR-22", "HDR-28", "TRAP-48")
@pytest.mark.parametrize("value", PLAIN)
def test_a_plain_value_is_sent_unchanged(value):
    assert encoded_value(value) == value
    assert decoded_value("Mcp-Name", value) == value


@pytest.mark.requirement("HDR-23", "HDR-24", "HDR-26", "TRAP-48")
@pytest.mark.parametrize("value", ENCODED_VALUES)
def test_any_other_value_is_sent_as_base64_between_markers(value):
    assert encoded_value(value) == marked(value)
    assert decoded_value("Mcp-Name", marked(value)) == value


@pytest.mark.requirement("HDR-26", "TRAP-48")
@pytest.mark.parametrize(
    "text", ["=?BASE64?YQ==?=", "=?Base64?YQ==?=", "=?base64?=", "a=?base64?YQ==?="]
)
def test_a_value_without_exact_markers_is_literal(text):
    assert decoded_value("Mcp-Name", text) == text


def test_a_tab_inside_is_read_though_never_sent():
    assert decoded_value("Mcp-Name", "a\tb") == "a\tb"


@pytest.mark.requirement("HDR-27")
@pytest.mark.parametrize(
    "inner",
    [
        "SGVsbG8",
        "SGVs!!!bG8=",
        "SGVs bG8=",
        "SGVsbG8==",
        "SGVsbG8=YQ==",
        "=",
        "QR==",
        "_-8=",
        "/w==",
        "*",
    ],
)
def test_bad_base64_between_the_markers_is_rejected(inner):
    with pytest.raises(HeaderMismatchError, match="invalid Base64"):
        decoded_value("Mcp-Name", f"=?base64?{inner}?=")


@pytest.mark.requirement("HDR-30")
@pytest.mark.parametrize("text", ["K\xf8benhavn", "a\x00", "a\nb", "\x7f", "=?base64?\xe4?="])
def test_characters_that_should_have_been_wrapped_are_rejected(text):
    with pytest.raises(HeaderMismatchError, match="characters"):
        decoded_value("Mcp-Name", text)


@pytest.mark.requirement("HDR-23", "HDR-24", "HDR-26")
@given(st.one_of(st.text(), st.text(alphabet="=?base64 \t"), st.text().map(marked)))
def test_any_string_survives_as_a_valid_header(value):
    text = encoded_value(value)
    assert decoded_value("Mcp-Name", text) == value
    assert set(text) <= set(string.printable) - set("\t\n\r\x0b\x0c")
    assert text == text.strip()


@given(st.text(max_size=40))
def test_any_text_between_markers_is_decoded_or_rejected(inner):
    try:
        value = decoded_value("Mcp-Name", f"=?base64?{inner}?=")
    except HeaderMismatchError:
        return
    assert marked(value) == f"=?base64?{inner}?="


# Sent headers.


def sent(method="tools/call", params=None, paths=None):
    headers = headers_from_body(version=VERSION, method=method, params=params, paths=paths)
    assert len(dict(headers)) == len(headers)
    return dict(headers)


@pytest.mark.requirement("HDR-01", "HDR-02", "HDR-03", "HDR-04", "MHTTP-10", "TRAP-47")
@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("tools/call", {"name": "tide", "uri": "no"}, "tide"),
        ("prompts/get", {"name": "tide", "taskId": "no"}, "tide"),
        ("resources/read", {"name": "no", "uri": "file:///a%20b.txt"}, "file:///a%20b.txt"),
        ("tasks/get", {"name": "no", "taskId": "t-1"}, "t-1"),
        ("tasks/update", {"taskId": "t-1"}, "t-1"),
        ("tasks/cancel", {"taskId": "t-1"}, "t-1"),
        ("tools/list", {"name": "no"}, None),
        ("server/discover", None, None),
        ("tools/call", {"name": 1}, None),
        ("tools/call", {}, None),
        ("tools/call", None, None),
    ],
)
def test_a_request_repeats_its_version_its_method_and_its_name(method, params, name):
    headers = sent(method, params)
    assert headers.pop("MCP-Protocol-Version") == VERSION
    assert headers.pop("Mcp-Method") == method
    assert headers == ({} if name is None else {"Mcp-Name": name})


@pytest.mark.requirement("HDR-25")
@pytest.mark.parametrize("name", ["k\xf8", " tide", "=?base64?YQ==?=", "a\r\nHost: evil"])
def test_a_name_is_encoded_if_necessary(name):
    assert sent(params={"name": name})["Mcp-Name"] == marked(name)


@pytest.mark.requirement("HDR-09", "HDR-19", "HDR-22", "HDR-23", "HDR-28", "TRAP-51")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, {}),
        ({"region": None, "page": None}, {}),
        ({"page": {"limit": None}}, {}),
        ({"page": 7}, {}),
        ({"limit": 7, "other": "x"}, {}),
        ({"region": ""}, {"Region": ""}),
        ({"region": "us west"}, {"Region": "us west"}),
        ({"region": "\u6f6e"}, {"Region": marked("\u6f6e")}),
        ({"dry": False}, {"Dry": "false"}),
        ({"dry": True}, {"Dry": "true"}),
        ({"page": {"limit": 0}}, {"Limit": "0"}),
        ({"page": {"limit": -42}}, {"Limit": "-42"}),
        ({"page": {"limit": 42.0}}, {"Limit": "42"}),
        ({"page": {"limit": 2**53 - 1}}, {"Limit": "9007199254740991"}),
        ({"page": {"limit": -(2**53 - 1)}}, {"Limit": "-9007199254740991"}),
        ({"how": "x"}, {"Method": "x"}),
        ({"region": ["a"], "dry": {}, "page": {"limit": 1.5}}, {}),
    ],
)
def test_arguments_are_sent_in_headers_as_text(arguments, expected):
    headers = sent(params=call(**arguments), paths=PATHS)
    assert headers["Mcp-Method"] == "tools/call"
    param_headers = {name: text for name, text in headers.items() if name.startswith("Mcp-Param-")}
    assert param_headers == {f"Mcp-Param-{suffix}": text for suffix, text in expected.items()}


@pytest.mark.parametrize("params", [None, {}, {"arguments": None}, {"arguments": [1]}])
def test_a_call_without_arguments_sends_no_parameter_headers(params):
    assert len(sent(params=params, paths=PATHS)) == 2


@pytest.mark.requirement("HDR-34")
def test_without_a_known_schema_no_argument_is_sent_in_a_header():
    assert not any(name.startswith("Mcp-Param") for name in sent(params=call(region="x")))


@pytest.mark.requirement("HDR-14")
@pytest.mark.parametrize("number", [2**53, -(2**53), 2.0**53, pytest.param(10**5000, id="huge")])
def test_an_integer_beyond_double_precision_is_not_sent_in_a_header(number):
    params = call(page={"limit": number})
    with pytest.raises(HeaderMismatchError, match="Mcp-Param-Limit"):
        sent(params=params, paths=PATHS)
    with pytest.raises(HeaderMismatchError, match="Mcp-Param-Limit"):
        check({"Mcp-Param-Limit": "9007199254740992"}, params=params)


@pytest.mark.parametrize("method", ["a\r\nHost: evil", "k\xf8", " a", "a\t"])
def test_a_method_that_no_header_can_carry_is_not_sent(method):
    with pytest.raises(HeaderMismatchError, match="Mcp-Method cannot carry"):
        sent(method)


# Checked headers.


def request(fields):
    pairs = fields.items() if isinstance(fields, dict) else fields
    return HttpRequest.of("POST", "/mcp", [(n.encode(), v.encode("latin-1")) for n, v in pairs])


def check(fields, *, method="tools/call", params=None, version=VERSION, is_request=True):
    """Check the headers of a request: these, and valid ones for the others."""
    params = call() if params is None else params
    right = {"MCP-Protocol-Version": VERSION, "Mcp-Method": method, "Mcp-Name": "tide"}
    wanted = {**right, **fields} if isinstance(fields, dict) else fields
    lines = (
        {name: text for name, text in wanted.items() if text is not None}
        if isinstance(wanted, dict)
        else wanted
    )
    check_headers_match(
        request(lines),
        version=version,
        method=method,
        params=params,
        paths=PATHS,
        is_request=is_request,
    )


def test_headers_that_repeat_the_body_are_accepted():
    check({})
    check({"Mcp-Param-Unknown": "\xe4"})
    check({"Mcp-Name": None}, method="tools/list", params={})
    check({"Mcp-Name": "whatever"}, method="tools/list", params={})
    check({"Mcp-Name": None}, params={"arguments": {}})
    check_headers_match(
        request({"MCP-Protocol-Version": VERSION, "Mcp-Method": "server/discover"}),
        version=VERSION,
        method="server/discover",
        params=None,
        paths=None,
        is_request=True,
    )


@pytest.mark.requirement("HDR-05", "HDR-06", "TRAP-46")
def test_names_in_any_case_and_padded_values_pass():
    check(
        [
            ("mcp-protocol-VERSION", f" {VERSION}\t"),
            ("MCP-METHOD", "\ttools/call "),
            ("mcp-name", " tide "),
        ]
    )
    check({"mcp-param-REGION": " us west "}, params=call(region="us west"))


@pytest.mark.requirement("HDR-01", "HDR-02", "HDR-03", "HDR-05", "HDR-07", "MHTTP-30", "TRAP-46")
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"MCP-Protocol-Version": None},
            "MCP-Protocol-Version is missing; the body has '2026-07-28'",
        ),
        ({"MCP-Protocol-Version": "2025-11-25"}, "MCP-Protocol-Version is '2025-11-25'; "),
        ({"MCP-Protocol-Version": ""}, "MCP-Protocol-Version is ''; "),
        ({"Mcp-Method": None}, "Mcp-Method is missing; the body has 'tools/call'"),
        ({"Mcp-Method": "TOOLS/CALL"}, "Mcp-Method is 'TOOLS/CALL'; the body has 'tools/call'"),
        ({"Mcp-Method": "tools/list"}, "Mcp-Method is 'tools/list'; "),
        ({"Mcp-Method": marked("tools/call")}, "Mcp-Method is "),
        ({"Mcp-Name": None}, "Mcp-Name is missing; the body has 'tide'"),
        ({"Mcp-Name": "Tide"}, "Mcp-Name is 'Tide'; the body has 'tide'"),
        ({"Mcp-Name": "t" * 500}, f"Mcp-Name is '{'t' * 100}'; the body has 'tide'"),
        ({"Mcp-Name": "=?base64?dGlkZQ?="}, "Mcp-Name has invalid Base64"),
        ({"Mcp-Name": "tid\xe9"}, "Mcp-Name has characters"),
    ],
)
def test_headers_that_differ_from_the_body_are_rejected(fields, text):
    with pytest.raises(HeaderMismatchError) as caught:
        check(fields)
    assert str(caught.value).startswith(text)


@pytest.mark.requirement("HDR-04", "TRAP-47")
@pytest.mark.parametrize(
    ("method", "member"),
    [
        ("prompts/get", "name"),
        ("resources/read", "uri"),
        ("tasks/get", "taskId"),
        ("tasks/cancel", "taskId"),
    ],
)
def test_each_method_has_its_own_source_of_the_name(method, member):
    params = {"name": "no", "uri": "no", "taskId": "no", member: "tide"}
    check({}, method=method, params=params)
    with pytest.raises(HeaderMismatchError, match="Mcp-Name"):
        check({"Mcp-Name": "no"}, method=method, params=params)


@pytest.mark.requirement("HDR-26")
def test_an_encoded_name_is_compared_by_its_value():
    check({"Mcp-Name": marked("tide")})
    check({"Mcp-Name": marked("\u6f6e")}, params={"name": "\u6f6e"})
    with pytest.raises(HeaderMismatchError, match="Mcp-Name is '\u6f6e'; the body has 'tide'"):
        check({"Mcp-Name": marked("\u6f6e")})


@pytest.mark.parametrize(
    "field", ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Param-Region"]
)
def test_a_field_that_came_twice_is_rejected_even_if_both_agree(field):
    right = {"MCP-Protocol-Version": VERSION, "Mcp-Method": "tools/call", "Mcp-Name": "tide"}
    right["Mcp-Param-Region"] = "a"
    with pytest.raises(HeaderMismatchError, match=f"{field} was sent more than once"):
        check([*right.items(), (field.lower(), right[field])], params=call(region="a, a"))


@pytest.mark.requirement("HDR-20", "HDR-26", "HDR-28", "HDR-29", "TRAP-51")
@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({}, {}),
        ({"region": None}, {}),
        ({"region": ""}, {"Region": ""}),
        ({"region": "a"}, {"Region": "a"}),
        ({"region": "a"}, {"Region": marked("a")}),
        ({"region": "=?base64?YQ=="}, {"Region": "=?base64?YQ=="}),
        ({"region": "a\tb"}, {"Region": "a\tb"}),
        ({"dry": False}, {"Dry": "false"}),
        ({"page": {"limit": 42}}, {"Limit": "42"}),
        ({"page": {"limit": 42}}, {"Limit": "42.0"}),
        ({"page": {"limit": 42.0}}, {"Limit": "42"}),
        ({"page": {"limit": 42.0}}, {"Limit": "42.000"}),
        ({"page": {"limit": 42}}, {"Limit": marked("42")}),
        ({"page": {"limit": 0}}, {"Limit": "-0"}),
        ({"page": {"limit": 2**53 - 1}}, {"Limit": "9007199254740991.0"}),
        ({"region": 42}, {"Region": "42"}),
        ({"region": ["a"]}, {}),
    ],
)
def test_arguments_in_headers_that_agree_pass(arguments, fields):
    check({f"Mcp-Param-{it}": text for it, text in fields.items()}, params=call(**arguments))


@pytest.mark.requirement("HDR-07", "HDR-21", "HDR-27", "HDR-29", "HDR-30", "TRAP-51")
@pytest.mark.parametrize(
    ("arguments", "fields", "text"),
    [
        ({"region": "a"}, {}, "Mcp-Param-Region is missing; the body has 'a'"),
        ({"region": ""}, {}, "Mcp-Param-Region is missing; the body has ''"),
        ({"dry": False}, {}, "Mcp-Param-Dry is missing; the body has 'false'"),
        ({"page": {"limit": 0}}, {}, "Mcp-Param-Limit is missing; the body has '0'"),
        ({"region": "a"}, {"Region": "A"}, "Mcp-Param-Region is 'A'; the body has 'a'"),
        ({}, {"Region": "a"}, "Mcp-Param-Region is 'a'; the body has nothing"),
        ({}, {"Region": ""}, "Mcp-Param-Region is ''; the body has nothing"),
        ({"region": None}, {"Region": "null"}, "Mcp-Param-Region is 'null'"),
        ({"region": ["a"]}, {"Region": "a"}, "Mcp-Param-Region is 'a'; the body has nothing"),
        ({"dry": True}, {"Dry": "True"}, "Mcp-Param-Dry is 'True'"),
        ({"dry": True}, {"Dry": "1"}, "Mcp-Param-Dry is '1'"),
        ({"page": {"limit": 42}}, {"Limit": "43"}, "Mcp-Param-Limit is '43'"),
        ({"page": {"limit": 42}}, {"Limit": "42.1"}, "Mcp-Param-Limit is '42.1'"),
        ({"page": {"limit": 42}}, {"Limit": "42."}, "Mcp-Param-Limit is '42.'"),
        ({"page": {"limit": 42}}, {"Limit": "4.2e1"}, "Mcp-Param-Limit is '4.2e1'"),
        ({"page": {"limit": 42}}, {"Limit": "0x2a"}, "Mcp-Param-Limit is '0x2a'"),
        ({"page": {"limit": 42}}, {"Limit": "4_2"}, "Mcp-Param-Limit is '4_2'"),
        ({"page": {"limit": 42}}, {"Limit": "0" * 40 + "42"}, "Mcp-Param-Limit is '000"),
        (
            {"page": {"limit": 1.5}},
            {"Limit": "1.5"},
            "Mcp-Param-Limit is '1.5'; the body has nothing",
        ),
        ({"region": "42"}, {"Region": "42.0"}, "Mcp-Param-Region is '42.0'"),
        (
            {"region": "Hello"},
            {"Region": "=?base64?SGVsbG8?="},
            "Mcp-Param-Region has invalid Base64",
        ),
        (
            {"region": "Hello"},
            {"Region": "=?base64?SGVs!!!bG8=?="},
            "Mcp-Param-Region has invalid Base64",
        ),
        ({"region": "Hello"}, {"Region": "SGVsbG8=?="}, "Mcp-Param-Region is 'SGVsbG8=?='"),
        ({"region": "Hello"}, {"Region": "=?BASE64?SGVsbG8=?="}, "Mcp-Param-Region is '=?BASE64?"),
        ({"region": "\xe4"}, {"Region": "\xe4"}, "Mcp-Param-Region has characters"),
    ],
)
def test_arguments_in_headers_that_disagree_are_rejected(arguments, fields, text):
    with pytest.raises(HeaderMismatchError) as caught:
        check({f"Mcp-Param-{it}": each for it, each in fields.items()}, params=call(**arguments))
    assert str(caught.value).startswith(text)


@pytest.mark.requirement("HDR-31")
def test_a_field_that_the_tool_does_not_ask_for_is_ignored():
    check({"Mcp-Param-Other": "x", "Mcp-Param-Another": "=?base64?!?="})


@pytest.mark.requirement("TRAP-57")
def test_a_notification_needs_its_version_and_no_wrong_header():
    note = {"method": "notifications/x", "params": {}, "is_request": False}
    check({"Mcp-Method": None, "Mcp-Name": None}, **note)
    check({"Mcp-Name": None}, **note)
    with pytest.raises(HeaderMismatchError, match="Mcp-Method is 'tools/call'"):
        check({"Mcp-Method": "tools/call"}, **note)
    with pytest.raises(HeaderMismatchError, match="MCP-Protocol-Version is missing"):
        check({"MCP-Protocol-Version": None}, **note)


# Both sides.

JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.floats(-1e15, 1e15).map(lambda it: it if it % 1 else round(it)),
    st.text(max_size=12),
    st.lists(st.integers(), max_size=2),
)


@pytest.mark.requirement("HDR-09", "HDR-25", "HDR-29")
@given(st.text(max_size=12), JSON_VALUES, JSON_VALUES, st.booleans())
def test_a_server_accepts_whatever_a_client_sends(name, region, limit, is_nested):
    page = {"limit": limit} if is_nested else limit
    params = {"name": name, "arguments": {"region": region, "page": page}}
    fields = headers_from_body(version=VERSION, method="tools/call", params=params, paths=PATHS)
    check_headers_match(
        request(fields),
        version=VERSION,
        method="tools/call",
        params=params,
        paths=PATHS,
        is_request=True,
    )
