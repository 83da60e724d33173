"""What the fields before a body say, however they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._protocol.http_headers import HttpRequest, accepts, media_type_of

JSON = "application/json"
EVENTS = "text/event-stream"


def test_a_head_keeps_what_came_and_parts_the_query_from_the_path():
    head = HttpRequest.of("POST", "/a%20b/mcp?x=1?2", [], scheme="https", client="192.0.2.7")
    assert (head.method, head.path, head.query) == ("POST", "/a%20b/mcp", "x=1?2")
    assert (head.scheme, head.client, head.principal) == ("https", "192.0.2.7", None)
    assert HttpRequest.of("GET", "/mcp", []).query == ""


@pytest.mark.requirement("HDR-05", "TRAP-33", "TRAP-46")
@pytest.mark.parametrize("name", [b"Mcp-Session-Id", b"MCP-Session-Id", b"mcp-session-id"])
def test_names_of_fields_compare_without_case_and_values_with_it(name):
    head = HttpRequest.of("POST", "/mcp", [(name, b"AbC")])
    assert head.header("MCP-SESSION-ID") == head.header("Mcp-Session-Id") == "AbC"


@pytest.mark.requirement("HDR-06", "TRAP-46")
@pytest.mark.parametrize("value", [b"  a b", b"a b\t", b" \t a b \t ", b"a b"])
def test_space_around_a_value_is_no_part_of_it(value):
    assert HttpRequest.of("POST", "/", [(b"Mcp-Name", value)]).header("mcp-name") == "a b"


def test_only_spaces_and_tabs_are_taken_from_a_value():
    assert HttpRequest.of("POST", "/", [(b"x", b"\xa0\x0b ")]).header("x") == "\xa0\x0b"


def test_a_field_that_came_several_times_is_joined_and_noted():
    head = HttpRequest.of("GET", "/", [(b"Accept", b"a/b"), (b"Host", b"x"), (b"ACCEPT", b" c/d ")])
    assert head.header("accept") == "a/b, c/d"
    assert head.repeated == {"accept"}
    assert head.header("origin") is None


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
