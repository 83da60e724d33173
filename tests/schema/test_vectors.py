"""Every message that the documents of 2024-11-05 show, and what came later, in our own words."""

import json
from pathlib import Path

import msgspec
import pytest

from tests.schema.definitions import DEFINITIONS

VECTORS = [
    json.loads(line)
    for line in Path(__file__).with_name("vectors.jsonl").read_text("utf-8").splitlines()
]
FRAMES = [vector for vector in VECTORS if DEFINITIONS[vector["definition"]].envelope]
TYPED = [vector for vector in VECTORS if vector not in FRAMES]


def decode_body(definition, message):
    """What our type describes: the parameters, the result, or the fragment itself."""
    if DEFINITIONS[definition].params is not None:
        return message.get("params", {})
    return message.get("result", message)


def name_of(vector):
    return vector["name"]


@pytest.mark.parametrize("vector", TYPED, ids=name_of)
def test_a_shown_message_reads_and_is_sent_the_same(vector):
    definition, message = vector["definition"], vector["message"]
    row = DEFINITIONS[definition]
    body = decode_body(definition, message)
    decoded = msgspec.json.decode(json.dumps(body), type=row.params or row.body)
    sent = json.loads(msgspec.json.encode(decoded))
    assert sent == decode_body(definition, vector.get("kept", message))


@pytest.mark.parametrize("vector", VECTORS, ids=name_of)
def test_a_shown_message_is_valid(vector, published):
    definition, message = vector["definition"], vector["message"]
    if DEFINITIONS[definition].body is not None:
        message = message.get("result", message)
    published(vector.get("revision", "2024-11-05")).validate(definition, message)


@pytest.mark.parametrize("vector", TYPED, ids=name_of)
def test_a_shown_method_is_the_method_of_its_row(vector):
    method = DEFINITIONS[vector["definition"]].method
    assert method is None or method == vector["message"]["method"]


def test_every_method_and_result_is_shown():
    shown = {vector["definition"] for vector in VECTORS}
    methods = {name for name, row in DEFINITIONS.items() if row.method}
    results = {name for name in DEFINITIONS if name.endswith("Result")}
    unions_and_bases = {
        "ClientResult",
        "ServerResult",
        "Result",
        "PaginatedResult",
        "CacheableResult",
    }
    assert methods | results - unions_and_bases <= shown
