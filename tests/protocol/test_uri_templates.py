"""URI templates: expansion, matching, and the rejection of hostile values."""

import time
from urllib.parse import unquote

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mcp_trio._protocol.uri_templates import TemplateError, TraversalError, UriError, UriTemplate

parse = UriTemplate.parse

VALUES = {
    "var": "value",
    "hello": "Hello World!",
    "path": "/foo/bar",
    "empty": "",
    "x": "1024",
    "y": "768",
}


@pytest.mark.requirement("RES-07")
@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("{var}", "value"),
        ("{hello}", "Hello%20World%21"),
        ("{+hello}", "Hello%20World!"),
        ("{+path}/here", "/foo/bar/here"),
        ("here?ref={+path}", "here?ref=/foo/bar"),
        ("X{#var}", "X#value"),
        ("X{#hello}", "X#Hello%20World!"),
        ("map?{x,y}", "map?1024,768"),
        ("{x,hello,y}", "1024,Hello%20World%21,768"),
        ("{+path,x}/here", "/foo/bar,1024/here"),
        ("{#x,hello,y}", "#1024,Hello%20World!,768"),
        ("X{.x,y}", "X.1024.768"),
        ("{/var,x}/here", "/value/1024/here"),
        ("{;x,y,empty}", ";x=1024;y=768;empty"),
        ("{?x,y,empty}", "?x=1024&y=768&empty="),
        ("?fixed=yes{&x,y}", "?fixed=yes&x=1024&y=768"),
        ("{?x,undef}", "?x=1024"),
        ("a{/undef}{?undef2}", "a"),
        ("caf\u00e9/{x}", "caf%C3%A9/1024"),
    ],
)
def test_expansion_follows_the_examples_of_the_rfc(template, uri):
    assert parse(template).expand(VALUES) == uri


def test_reserved_expansion_keeps_percent_encoded_characters():
    assert parse("{+a}").expand({"a": "50%25 of 100%"}) == "50%25%20of%20100%25"


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        ("weather://now", "weather://now", {}),
        ("weather://now", "weather://now/", None),
        ("weather://{city}/now", "weather://Oslo/now", {"city": "Oslo"}),
        ("weather://{city}/now", "weather://S%C3%A3o%20Paulo/now", {"city": "S\u00e3o Paulo"}),
        ("weather://{city}/now", "weather://S\u00e3o Paulo/now", {"city": "S\u00e3o Paulo"}),
        ("weather://{city}/now", "weather://a/b/now", None),
        ("weather://{city}/now", "weather:///now", None),
        ("weather://{city}/now", "weather://Oslo", None),
        ("caf\u00e9/{x}", "caf\u00e9/1", {"x": "1"}),
        ("{a}", "%zz", None),
        ("{a}2", "b%242", {"a": "b$"}),
        ("{a}2{;b}", "b%242;b=1", {"a": "b$", "b": "1"}),
        ("{a}24", "b%2424", {"a": "b$"}),
        ("{a}4", "b%24", None),
        ("{+path}4/c", "a/b%24/c", None),
        ("{+path}4/c", "a/b%244/c", {"path": "a/b$"}),
        ("{a}", "%ff", None),
        ("file:///{+path}", "file:///a/b/c.txt", {"path": "a/b/c.txt"}),
        ("file:///{+path}", "file:///", {"path": ""}),
        ("{+dir}/{name}", "a/b/c", {"dir": "a/b", "name": "c"}),
        ("{+dir}{?q}", "a/b?q=1", {"dir": "a/b", "q": "1"}),
        ("{+dir}{?q}{#f}", "a/b#x", {"dir": "a/b", "f": "x"}),
        ("{date}-{host}", "2024-a-b", {"date": "2024", "host": "a-b"}),
        ("{date}-{host}", "-b", None),
        ("{a}--{b}", "1-2--3--4", {"a": "1-2", "b": "3--4"}),
        ("{name}.txt", "a.txt.txt", {"name": "a.txt"}),
        ("{name}{?q}.html", "x.html", {"name": "x"}),
        ("x{/a,b}", "x/1/2", {"a": "1", "b": "2"}),
        ("x{/a,b}", "x/1", {"a": "1"}),
        ("x{/a,b}", "x", {}),
        ("x{/a,b}", "x/1/2/3", None),
        ("x{/a,b}", "x/1/", None),
        ("x{/a}", "x/1/2", None),
        ("x{/a}{/b}", "x/1/2", {"a": "1", "b": "2"}),
        ("x{/a,b}/{c}", "x/1/2/3", None),
        ("x{.a,b}", "x.1.2", {"a": "1", "b": "2"}),
        ("x{.a}", "x.tar.gz", {"a": "tar.gz"}),
        ("{a,b}", "1,2", {"a": "1", "b": "2"}),
        ("x{?a,b}", "x?b=2&a=1", {"a": "1", "b": "2"}),
        ("x{?a,b}", "x?b=", {"b": ""}),
        ("x{?a,b}", "x?b", {"b": ""}),
        ("x{?a,b}", "x?b=1=2", {"b": "1=2"}),
        ("x{?a,b}", "x?c=1", None),
        ("x{?a,b}", "x?a=1&a=2", None),
        ("x{?a,b}", "x?", None),
        ("x{?q}", "x?q=a%2Fb", {"q": "a/b"}),
        ("x?v=1{&a}", "x?v=1&a=2", {"a": "2"}),
        ("x{?a}{&b}", "x?a=1&b=2", {"a": "1", "b": "2"}),
        ("x{;a,b}{?q}", "x;a=1;b?q=2", {"a": "1", "b": "", "q": "2"}),
        ("x{#f}", "x#a/b?c", {"f": "a/b?c"}),
        ("x{#f}", "x", {}),
    ],
)
def test_a_match_has_the_values_of_the_variables(template, uri, values):
    assert parse(template).match(uri) == values


@pytest.mark.requirement("RES-22")
@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("file:///{+path}", "file:///../etc/passwd"),
        ("file:///{+path}", "file:///a/../b"),
        ("file:///{+path}", "file:///a/.."),
        ("file:///{+path}", "file:////etc/passwd"),
        ("file:///{+path}", "file:///%2e%2e%2fetc"),
        ("file:///{+path}", "file:///%252e%252e%252fetc"),
        ("file:///{+path}", "file:///%2Fetc"),
        ("file:///{+path}", "file:///a\\b"),
        ("file:///{+path}", "file:///..%5Cb"),
        ("file:///{+path}", "file:///a%00.txt"),
        ("file:///{+path}", "file:///a\0.txt"),
        ("file:///{name}", "file:///.."),
        ("file:///{name}", "file:///%2e%2E"),
        ("file:///{name}", "file:///a%2Fb"),
        ("file:///{name}", "file:///%2e%2e%2fb"),
        ("x{/a}", "x/.."),
        ("x{/a,b}", "x/a/%2e%2e"),
        ("x{?q}", "x?q=a/../b"),
        ("x{#f}", "x#../b"),
        ("x{;p}", "x;p=a%2Fb"),
    ],
)
def test_a_value_that_could_escape_its_path_segment_is_rejected(template, uri):
    with pytest.raises(TraversalError, match="could leave its place"):
        parse(template).match(uri)


@pytest.mark.parametrize("name", ["..a", "a..", "...", ".", "a..b", "100%25"])
def test_harmless_dots_and_percents_pass(name):
    assert parse("file:///{+path}").match(f"file:///d/{name}") is not None


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("a{", "invalid text '{'"),
        ("a}b", "invalid text '}'"),
        ("a{b{c}}", "invalid text '{'"),
        ("a b", "invalid text ' '"),
        ("50%", "invalid text '%'"),
        ("{}", "'' in {} is no variable name"),
        ("{a,}", "'' in {a,} is no variable name"),
        ("{=a}", "'=a' in"),
        ("{a*}", "modifiers"),
        ("{a:3}", "modifiers"),
        ("{a b}", "'a b' in"),
        ("{a}/{a}", "a variable occurs twice"),
        ("{a}{b}", "two expressions have no text or sign between them"),
        ("{a}{+b}", "two expressions have no text or sign between them"),
        ("{/a,b}{/c}", "two expressions have no text or sign between them"),
        ("{?a,b}{&c}", "two expressions have no text or sign between them"),
        ("{+a}/{+b}", "{+…} occurs twice"),
        ("{#a}/{b}", "{#…} is not at the end"),
        ("{#a}.html", "{#…} is not at the end"),
    ],
)
def test_a_malformed_or_ambiguous_template_is_rejected_with_its_reason(template, text):
    with pytest.raises(TemplateError) as caught:
        parse(template)
    assert text in str(caught.value)
    assert repr(template) in str(caught.value)


def test_the_variables_are_named_from_left_to_right():
    assert parse("x://{b}{/a,c}{?d}").variables == ("b", "a", "c", "d")


def test_the_variables_must_be_the_parameters():
    template = parse("weather://{city}{?days}")
    template.check_parameters(["days", "city"])
    with pytest.raises(TemplateError) as caught:
        template.check_parameters({"city", "units"})
    assert str(caught.value).endswith(
        "no parameter for the variable 'days'; no variable for the parameter 'units'"
    )


def test_a_uri_over_the_limit_is_rejected_by_the_name_of_the_setting():
    template = parse("x{a}")
    assert template.match("x" * 8, uri_chars_max=8) == {"a": "x" * 7}
    with pytest.raises(UriError, match=r"limits\.messages\.uri_chars_max \(8\)"):
        template.match("x" * 9, uri_chars_max=8)


@pytest.mark.real_time
@pytest.mark.parametrize(
    "template",
    [
        "{a}-{b}-{c}-{d}-{e}/",
        "x{+p}-{a}-{b}/z",
        "x{+p}?{?q}y",
        "x{+p}-{a}--{b}/{c}",
        "{a}.{b}{.c,d}{?e}",
    ],
)
@pytest.mark.parametrize("piece", ["-", "x-", "?", "x.", "-?"])
def test_a_hostile_uri_is_matched_in_bounded_time(template, piece):
    started = time.perf_counter()
    parse(template).match((piece * 4096)[:4096])
    assert time.perf_counter() - started < 2


plain_values = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=8)


def expand_and_match(template, values):
    try:
        return template.match(template.expand(values))
    except TraversalError:
        assume(False)


@pytest.mark.parametrize(
    "text",
    [
        "x://{a}/{b}",
        "x://{a}{/b,c}{?d,e}",
        "x://{a,b}{;c,d}{?e}",
        "x://{a}:{b}@{c}{#d}",
        "x://{a}/y?z=1{&b,c}",
    ],
)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_expanding_and_matching_gives_the_values_back(text, data):
    template = parse(text)
    values = {name: data.draw(plain_values) for name in template.variables}
    if "{#d}" in text:
        values["d"] = values["d"].replace("%", "_")  # "%41" stays as it is in a reserved expansion
    assert expand_and_match(template, values) == values


@settings(max_examples=40, deadline=None)
@given(path=plain_values.filter(lambda text: "%" not in text), name=plain_values)
def test_a_spanning_value_comes_back_before_a_last_segment(path, name):
    values = {"path": path, "name": name}
    assert expand_and_match(parse("x:{+path}/{name}"), values) == values


@st.composite
def templates(draw):
    signs = draw(st.permutations(["", "+", "/", ".", "?"]))
    variables = iter("abcdefghijkl")
    text = draw(st.sampled_from(["", "x://", "y"]))
    for sign in signs[: draw(st.integers(1, 4))]:
        count = draw(st.integers(1, 2))
        text += "{" + sign + ",".join(next(variables) for _ in range(count)) + "}"
        text += draw(st.sampled_from(["", "/", "-", "z", ":"]))
    return text


@settings(max_examples=40, deadline=None)
@given(text=templates(), data=st.data())
def test_matching_and_expanding_again_gives_the_same_uri(text, data):
    try:
        template = parse(text)
    except TemplateError:
        assume(False)
    values = {
        name: data.draw(st.text("ab/.-:\u00e9 ", min_size=1, max_size=5))
        for name in template.variables
    }
    uri = template.expand(values)
    try:
        found = template.match(uri)
    except TraversalError:
        return
    # Decoded, because a {+path} may have spanned the encoded value of another expression.
    assert found is None or unquote(template.expand(found)) == unquote(uri)


# The parts of hostile values.
climbs = st.sampled_from(
    [
        *("..", "%2e%2e", "%2E.", ".%252e", "%252e%252e", "%25252e%25252e"),
        *("/", "%2f", "%2F", "%252f", "\\", "%5c", "%5C", "%255c"),
        *("\0", "%00", "%2500", "a", "etc", ".", "%2e", "...", "~", "%c0%ae"),
    ]
)


def is_outside(value):
    """Return whether `value` leaves its segment after any number of decodings."""
    for _ in range(2):
        parts = value.replace("\\", "/").split("/")
        if ".." in parts or "\0" in value or value.startswith(("/", "\\")):
            return True
        value = unquote(value)
    return False


@pytest.mark.slow
@pytest.mark.requirement("RES-22")
@pytest.mark.parametrize(
    "text",
    [
        "file:///{+path}",
        "file:///{name}",
        "file:///a/{name}/b",
        "file:///{dir}/{+path}",
        "file:///x{/a,b}",
        "file:///x{?q}",
        "file:///x{;p}{.s}",
        "file:///x{#f}",
    ],
)
@settings(max_examples=50, deadline=None)
@given(pieces=st.lists(climbs, max_size=6), data=st.data())
def test_no_matched_value_escapes_its_path_segment(text, pieces, data):
    template = parse(text)
    hostile = "".join(pieces)
    literal = text.partition("{")[0]
    tail = data.draw(st.sampled_from(["", "/b", "/x", "?q=", "#"]))
    for uri in (literal + hostile + tail, f"{literal}/{hostile}", f"{literal}?q={hostile}"):
        try:
            values = template.match(uri)
        except UriError:
            continue
        assert not any(map(is_outside, (values or {}).values()))
