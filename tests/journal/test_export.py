"""Exported messages mean in RDF what the annotated schema of the protocol shows."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from rdflib import Graph, Literal, URIRef
from rdflib.compare import isomorphic, to_isomorphic

from mcp_trio._journal.records import RecordEncoder
from mcp_trio.errors import RecordingError
from mcp_trio.recording import Record, export_jsonld

# Its own JSON-LD parser is not up to date with the rest of it.
pytestmark = pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated")

MCP = "http://modelcontextprotocol.io/ontology#"
PREFIXES = f"@prefix mcp: <{MCP}> .\n"

# Every message of the annotated schema, with values of our own, and its Turtle.
VECTORS = {
    "initialize": (
        {
            "id": "a1",
            "params": {
                "protocolVersion": "2024-11-05",
                "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "logging": {}},
                "clientInfo": {"name": "kitchen", "version": "0.3"},
            },
        },
        """mcp:id "a1" ; mcp:params [
            mcp:protocolVersion "2024-11-05" ;
            mcp:capabilities [
                mcp:tools [ ] ; mcp:resources [ ] ; mcp:prompts [ ] ; mcp:logging [ ] ] ;
            mcp:clientInfo [ mcp:name "kitchen" ; mcp:version "0.3" ] ]""",
    ),
    "notifications/initialized": ({}, ""),
    "tools/list": ({"id": "a2", "params": {}}, 'mcp:id "a2" ; mcp:params [ ]'),
    "tools/call": (
        {"id": "a3", "params": {"name": "boil", "arguments": {"egg": "large", "unit": "min"}}},
        """mcp:id "a3" ; mcp:params [ mcp:name "boil" ;
            mcp:arguments [ mcp:egg "large" ; mcp:unit "min" ] ]""",
    ),
    "resources/list": ({"id": "a4", "params": {}}, 'mcp:id "a4" ; mcp:params [ ]'),
    "resources/read": (
        {"id": "a5", "params": {"uri": "recipe://soup"}},
        'mcp:id "a5" ; mcp:params [ mcp:uri "recipe://soup" ]',
    ),
    "resources/subscribe": (
        {"id": "a6", "params": {"uri": "recipe://all"}},
        'mcp:id "a6" ; mcp:params [ mcp:uri "recipe://all" ]',
    ),
    "resources/unsubscribe": (
        {"id": "a7", "params": {"uri": "recipe://all"}},
        'mcp:id "a7" ; mcp:params [ mcp:uri "recipe://all" ]',
    ),
    "prompts/list": ({"id": "a8", "params": {}}, 'mcp:id "a8" ; mcp:params [ ]'),
    "prompts/get": (
        {"id": "a9", "params": {"name": "menu", "arguments": {"for": "two", "diet": "none"}}},
        """mcp:id "a9" ; mcp:params [ mcp:name "menu" ;
            mcp:arguments [ mcp:for "two" ; mcp:diet "none" ] ]""",
    ),
    "logging/setLevel": (
        {"id": "a10", "params": {"level": "notice"}},
        'mcp:id "a10" ; mcp:params [ mcp:level "notice" ]',
    ),
    "completion/complete": (
        {
            "id": "a11",
            "params": {
                "ref": {"type": "ref/resource", "uri": "recipe://{dish}"},
                "argument": {"name": "dish", "value": "so"},
            },
        },
        """mcp:id "a11" ; mcp:params [
            mcp:ref [ mcp:type "ref/resource" ; mcp:uri "recipe://{dish}" ] ;
            mcp:argument [ mcp:name "dish" ; mcp:value "so" ] ]""",
    ),
    "notifications/cancelled": (
        {"params": {"requestId": "a3", "reason": "burnt"}},
        'mcp:params [ mcp:requestId "a3" ; mcp:reason "burnt" ]',
    ),
    "notifications/progress": (
        {"params": {"progressToken": "eggs", "progress": 2, "total": 12}},
        'mcp:params [ mcp:progressToken "eggs" ; mcp:progress 2 ; mcp:total 12 ]',
    ),
    "notifications/resources/updated": (
        {"params": {"uri": "recipe://soup"}},
        'mcp:params [ mcp:uri "recipe://soup" ]',
    ),
    "notifications/resources/list_changed": ({}, ""),
    "notifications/tools/list_changed": ({}, ""),
    "notifications/prompts/list_changed": ({}, ""),
    "sampling/createMessage": (
        {
            "id": "b1",
            "params": {
                "messages": [{"role": "user", "content": {"type": "text", "text": "Salt?"}}],
                "modelPreferences": {
                    "hints": [{"name": "small"}],
                    "costPriority": 0.25,
                    "speedPriority": 0.6,
                    "intelligencePriority": 0.1,
                },
                "systemPrompt": "You cook.",
                "includeContext": "thisServer",
                "temperature": 0.3,
                "maxTokens": 64,
            },
        },
        """mcp:id "b1" ; mcp:params [
            mcp:messages [ mcp:role "user" ;
                mcp:content [ mcp:type "text" ; mcp:text "Salt?" ] ] ;
            mcp:modelPreferences [ mcp:hints [ mcp:name "small" ] ;
                mcp:costPriority 25e-02 ; mcp:speedPriority 6e-01 ;
                mcp:intelligencePriority 1e-01 ] ;
            mcp:systemPrompt "You cook." ; mcp:includeContext "thisServer" ;
            mcp:temperature 3e-01 ; mcp:maxTokens 64 ]""",
    ),
    "roots/list": ({"id": "b2", "params": {}}, 'mcp:id "b2" ; mcp:params [ ]'),
}


def record_of(frame, kind="in", **keys):
    body = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
    return Record(number=7, kind=kind, time_ns=1_500_000_000, body=Raw(body), **keys)


def export_one(frame, **options):
    [line] = export_jsonld(record_of(frame), **options)
    return line


def graph_of(line):
    return Graph().parse(data=line, format="json-ld")


@pytest.mark.parametrize("method", VECTORS)
def test_a_message_has_the_terms_of_the_annotated_schema(method):
    members, turtle = VECTORS[method]
    line = export_one({"jsonrpc": "2.0", "method": method, **members})
    shown = f'{PREFIXES}[] mcp:jsonrpc "2.0" ; mcp:method "{method}" ; {turtle} .'
    assert isomorphic(graph_of(line), Graph().parse(data=shown, format="turtle"))


def test_the_exported_document_contains_the_message_unchanged():
    message = {"jsonrpc": "2.0", "id": 3, "result": {"content": [], "_meta": {"x": None}}}
    document = json.loads(export_one(message))
    context = document.pop("@context")
    assert document == message
    assert context["@vocab"] == context["mcp"] == MCP
    assert "http" not in str(document)


def test_no_name_in_a_message_is_taken_for_more_than_a_name():
    names = ["@context", "@id", "@type", "a:b", "http://x/y", "_:b", "mcp", "xsd", "a b", "é", "%"]
    line = export_one({"jsonrpc": "2.0", "method": "x", "params": dict.fromkeys(names, "value")})
    found = {str(p).removeprefix(MCP) for _, p, o in graph_of(line) if o == Literal("value")}
    expected = ["%40context", "%40id", "%40type", "a%3Ab", "http%3A//x/y", "_%3Ab"]
    assert found == {*expected, "%6Dcp", "%78sd", "a%20b", "é", "%25"}


def test_a_record_node_has_what_the_recording_knows():
    message = {"jsonrpc": "2.0", "id": 3, "result": {"record": 1}}
    record = record_of(message, kind="out", lane="r4", channel=2)
    [line] = export_jsonld(record, with_record=True)
    graph = graph_of(line)
    facts = {p.removeprefix("urn:mcp-trio:record#"): o for _, p, o in graph if "mcp-trio" in p}
    node = facts.pop("message")
    assert {name: fact.toPython() for name, fact in facts.items()} == {
        "number": 7,
        "direction": "out",
        "channel": 2,
        "lane": "r4",
        "nanoseconds": 1_500_000_000,
    }
    [plain] = export_jsonld(record)
    alone = Graph()
    for triple in reachable(graph, node):
        alone.add(triple)
    renamed = {str(p).replace("%72ecord", "record") for _, p, _ in alone}
    assert renamed == {str(p) for _, p, _ in graph_of(plain)}
    assert len(to_isomorphic(alone)) == len(graph_of(plain))
    assert URIRef("urn:mcp-trio:record#Frame") in graph.objects()


def reachable(graph, node):
    for triple in graph.triples((node, None, None)):
        yield triple
        yield from reachable(graph, triple[2])


def test_unknown_facts_of_a_message_are_left_out():
    line = export_one({"jsonrpc": "2.0", "method": "x"}, with_record=True)
    assert not re.search(b"lane|channel", line)


def test_a_batch_is_a_document_for_each_message():
    lines = export_jsonld(record_of([{"id": 1}, {"id": 2}]))
    assert [json.loads(line)["id"] for line in lines] == [1, 2]


def test_only_messages_are_exported():
    assert export_jsonld(record_of({"name": "start"}, kind="mark")) == []


@pytest.mark.parametrize("frame", [b"7", b"[7]", b'"x"'])
def test_json_that_is_no_message_is_rejected(frame):
    with pytest.raises(RecordingError, match="record 7: the body is JSON, but no message"):
        export_jsonld(record_of(frame))


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"\xff", "not JSON: "),
        (b'{"id":NaN}', "not JSON: NaN"),
        (b"", "not JSON: "),
        (b'{"id":1e400}', "not JSON: Out of range"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"x":' * 980 + b"1" + b"}" * 980, "nested too deep"),
    ],
)
def test_numbers_that_python_cannot_write_are_rejected(frame, text):
    record = RecordEncoder().record("in", frame, 0, embed=False)
    with pytest.raises(RecordingError, match=f"record 0: {text}"):
        export_jsonld(record)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
values = st.recursive(
    st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)


@given(values)
def test_any_members_keep_distinct_names_and_their_values(value):
    document = json.loads(export_one({"params": value}))
    assert shape(document["params"]) == shape(value)
    assert "@" not in "".join(names_in(document["params"]))


def shape(value):
    """A value without its names."""
    if isinstance(value, dict):
        return [shape(member) for member in value.values()]
    return [shape(item) for item in value] if isinstance(value, list) else value


def names_in(value):
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    for member in value if isinstance(value, list) else ():
        yield from names_in(member)


def test_the_metadata_of_a_stateless_request_becomes_properties():
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        "traceparent": "00-1-2-00",
    }
    answers = {"q1": {"action": "accept", "content": {"days": 3}}}
    params = {
        "name": "plan",
        "inputResponses": answers,
        "requestState": "suspended.x",
        "_meta": meta,
    }
    line = export_one({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    own = "<http://modelcontextprotocol.io/ontology#io.modelcontextprotocol/"
    shown = f"""{PREFIXES}[] mcp:jsonrpc "2.0" ; mcp:id 1 ; mcp:method "tools/call" ; mcp:params [
        mcp:name "plan" ; mcp:requestState "suspended.x" ;
        mcp:inputResponses [ mcp:q1 [ mcp:action "accept" ; mcp:content [ mcp:days 3 ] ] ] ;
        mcp:_meta [ {own}protocolVersion> "2026-07-28" ; mcp:traceparent "00-1-2-00" ;
            {own}clientCapabilities> [ mcp:elicitation [ mcp:form [] ] ] ] ] ."""
    assert isomorphic(graph_of(line), Graph().parse(data=shown, format="turtle"))


def test_questions_keep_their_forms():
    form = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}
    question = {"method": "elicitation/create", "params": {"requestedSchema": form}}
    result = {"resultType": "input_required", "inputRequests": {"q1": question}, "ttlMs": 0}
    line = export_one({"jsonrpc": "2.0", "id": 1, "result": result})
    found = {str(p).removeprefix(MCP): str(o) for _, p, o in graph_of(line)}
    assert found["$schema"] == form["$schema"]
    assert (found["resultType"], found["ttlMs"], found["type"]) == ("input_required", "0", "object")
