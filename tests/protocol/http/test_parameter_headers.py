"""Requests whose headers and body disagree are rejected."""

import base64
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._protocol.http_headers import (
    HeaderMismatchError,
    HttpRequest,
    check_headers_match,
    decoded_value,
    encoded_value,
    headers_from_body,
)

VERSION = "2026-07-28"
PATHS = {"Region": ("region",), "Limit": ("page", "limit"), "Dry": ("dry",), "Method": ("how",)}


def marked(value):
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def call(**arguments):
    return {"name": "tide", "arguments": arguments}


# Values.

PLAIN = ["", "us-west1", "a b  c", "~!\"'(),:;<=>?@[]{}", "=?base64?", "=?base64?YQ==", "YQ==?="]
NOT_PLAIN = [
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
NOT_PLAIN += [
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
NOT_PLAIN += ["=?base64?not base64?=", "=?base64?="]


@pytest.mark.requirement("HDR-22", "HDR-28", "TRAP-48")
@pytest.mark.parametrize("value", PLAIN)
def test_a_plain_value_is_sent_as_it_is(value):
    assert encoded_value(value) == value
    assert decoded_value(value) == value


@pytest.mark.requirement("HDR-23", "HDR-24", "HDR-26", "TRAP-48")
@pytest.mark.parametrize("value", NOT_PLAIN)
def test_any_other_value_is_sent_as_base64_between_markers(value):
    assert encoded_value(value) == marked(value)
    assert decoded_value(marked(value)) == value


@pytest.mark.requirement("HDR-26", "TRAP-48")
@pytest.mark.parametrize(
    "text", ["=?BASE64?YQ==?=", "=?Base64?YQ==?=", "=?base64?=", "a=?base64?YQ==?="]
)
def test_what_lacks_a_marker_in_its_case_is_literal(text):
    assert decoded_value(text) == text


def test_a_tab_inside_is_read_though_never_sent():
    assert decoded_value("a\tb") == "a\tb"


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
        decoded_value(f"=?base64?{inner}?=")


@pytest.mark.requirement("HDR-30")
@pytest.mark.parametrize("text", ["K\xf8benhavn", "a\x00", "a\nb", "\x7f", "=?base64?\xe4?="])
def test_characters_that_should_have_been_wrapped_are_rejected(text):
    with pytest.raises(HeaderMismatchError, match="characters"):
        decoded_value(text)


@pytest.mark.requirement("HDR-23", "HDR-24", "HDR-26")
@given(st.one_of(st.text(), st.text(alphabet="=?base64 \t"), st.text().map(marked)))
def test_any_string_comes_back_and_is_a_legal_field_on_the_way(value):
    text = encoded_value(value)
    assert decoded_value(text) == value
    assert set(text) <= set(string.printable) - set("\t\n\r\x0b\x0c")
    assert text == text.strip()


@given(st.text(max_size=40))
def test_whatever_comes_between_markers_is_read_or_rejected(inner):
    try:
        value = decoded_value(f"=?base64?{inner}?=")
    except HeaderMismatchError:
        return
    assert marked(value) == f"=?base64?{inner}?="


# What a client sends.


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
def test_a_name_is_wrapped_where_it_has_to_be(name):
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
def test_a_call_without_arguments_mirrors_none(params):
    assert len(sent(params=params, paths=PATHS)) == 2


@pytest.mark.requirement("HDR-34")
def test_without_a_known_schema_no_argument_is_sent_in_a_header():
    assert not any(name.startswith("Mcp-Param") for name in sent(params=call(region="x")))


@pytest.mark.requirement("HDR-14")
@pytest.mark.parametrize("number", [2**53, -(2**53), 2.0**53, pytest.param(10**5000, id="huge")])
def test_an_integer_that_not_everybody_reads_exactly_is_not_sent_in_a_header(number):
    params = call(page={"limit": number})
    with pytest.raises(HeaderMismatchError, match="Mcp-Param-Limit"):
        sent(params=params, paths=PATHS)
    with pytest.raises(HeaderMismatchError, match="Mcp-Param-Limit"):
        check({"Mcp-Param-Limit": "9007199254740992"}, params=params)


@pytest.mark.parametrize("method", ["a\r\nHost: evil", "k\xf8", " a", "a\t"])
def test_a_method_that_no_head_can_repeat_is_not_sent(method):
    with pytest.raises(HeaderMismatchError, match="Mcp-Method cannot carry"):
        sent(method)


# What a server refuses.


def head(fields):
    pairs = fields.items() if isinstance(fields, dict) else fields
    return HttpRequest.of("POST", "/mcp", [(n.encode(), v.encode("latin-1")) for n, v in pairs])


def check(fields, *, method="tools/call", params=None, version=VERSION, is_request=True):
    """Check a head of these fields, and the right ones where they say nothing."""
    params = call() if params is None else params
    right = {"MCP-Protocol-Version": VERSION, "Mcp-Method": method, "Mcp-Name": "tide"}
    wanted = {**right, **fields} if isinstance(fields, dict) else fields
    lines = (
        {name: text for name, text in wanted.items() if text is not None}
        if isinstance(wanted, dict)
        else wanted
    )
    check_headers_match(
        head(lines),
        version=version,
        method=method,
        params=params,
        paths=PATHS,
        is_request=is_request,
    )


def test_a_head_that_repeats_the_body_passes():
    check({})
    check({"Mcp-Param-Unknown": "\xe4"})
    check({"Mcp-Name": None}, method="tools/list", params={})
    check({"Mcp-Name": "whatever"}, method="tools/list", params={})
    check({"Mcp-Name": None}, params={"arguments": {}})
    check_headers_match(
        head({"MCP-Protocol-Version": VERSION, "Mcp-Method": "server/discover"}),
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
def test_a_head_that_says_something_else_is_rejected(fields, text):
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
def test_a_wrapped_name_is_compared_by_what_it_stands_for():
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
def test_a_notification_says_its_version_and_nothing_wrong():
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
        head(fields),
        version=VERSION,
        method="tools/call",
        params=params,
        paths=PATHS,
        is_request=True,
    )
