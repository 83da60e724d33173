"""A value that is known is found in every writing of it, and beside, in and over other values."""

import html
import json
from base64 import b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._journal.known_secrets import KnownSecrets, spelling_pattern

VALUE = "p@ss!w(o)r*d~/+&=\"q' ü9<\n😀>"
TOKEN = "k@aa!z(x)w*v~/+&=\"b' é3<\n😁>"

WRITINGS = {
    "JavaScript's": lambda text: quote(text, safe="!'()*~"),
    "twice encoded": lambda text: quote(quote(text)),
    "in small": lambda text: "".join(
        f"%{byte:02x}" if byte > 126 else chr(byte) for byte in text.encode()
    ),
    "HTML": html.escape,
    "XML": lambda text: (
        text.replace("&", "&amp;")
        .replace("'", "&apos;")
        .replace("ü", "&#252;")
        .replace("é", "&#233;")
    ),
    "PHP": lambda text: json.dumps(text).replace("/", "\\/"),
    "JSON, three deep": lambda text: json.dumps(json.dumps(json.dumps(text))),
    "JSON in unicode, twice": lambda text: json.dumps(
        json.dumps(text, ensure_ascii=False), ensure_ascii=False
    ),
    "form": lambda text: quote(text, safe="").replace("%20", "+"),
}


def following(**tokens):
    one = KnownSecrets()
    for value, token in tokens.items():
        one.add(value, token, is_certain=False)
    return one


def replaced(one, text):
    return one.replaced(text, one.found_in(json.dumps(text).encode()))


@pytest.mark.parametrize("write", WRITINGS.values(), ids=WRITINGS)
def test_a_value_is_found_in_every_writing(write):
    one = following(**{VALUE: TOKEN})
    assert replaced(one, f"it is {write(VALUE)}!") == f"it is {write(TOKEN)}!"


@pytest.mark.parametrize("write", WRITINGS.values(), ids=WRITINGS)
def test_nothing_of_a_value_with_rows_of_backslashes_is_left(write):
    value, token = 'drei \\\\"Pferde\\" \\\\\\😀 \\\n', 'eybk \\\\"Fleznj\\" \\\\\\😁 \\\n'
    assert replaced(following(**{value: token}), f"it: {write(value)}") == f"it: {write(token)}"


def test_a_row_of_backslashes_is_no_long_search():
    value, other = ("\\" * 16 + '"x').join("abcdefghi"), ("\\" * 99 + '"x').join("abcdefghj")
    assert spelling_pattern(value).search(other) is None


@given(st.text(min_size=1, max_size=12), st.data())
def test_a_pattern_matches_any_mixture_of_writings(value, data):
    ways = [
        lambda character: character,
        lambda character: json.dumps(character)[1:-1],
        lambda character: quote(character, safe=""),
        html.escape,
    ]
    value = value.encode("utf-8", "ignore").decode()
    written = "".join(data.draw(st.sampled_from(ways))(character) for character in value)
    assert spelling_pattern(value).fullmatch(written)


def test_a_longer_token_is_written_to_its_end():
    assert replaced(following(**{"a/b cd": "x/y zwvu"}), "a%2Fb+cd!") == "x%2Fy+zwvu!"


def test_a_token_of_other_signs_is_written_as_the_value_was():
    one = following(**{"----": "#;-?", '""""': "&#:/", "¡¡¡¡": "éàéà", "\\<<<": "^:#-"})
    assert replaced(one, "----") == "#;-?"
    assert replaced(one, '\\"\\"\\"\\"') == "&#:/"
    assert replaced(one, "%22" * 4) == "%26%23%3A%2F"
    assert replaced(one, "%2522" * 4) == "%2526%2523%253A%252F"
    assert replaced(one, "&#34;" * 4) == "&#38;&#35;&#58;&#47;"
    assert replaced(one, "\\u00a1" * 4) == "\\u00e9\\u00e0\\u00e9\\u00e0"
    assert replaced(one, "%c2%a1" * 4) == "%c3%a9%c3%a0%c3%a9%c3%a0"


def test_of_two_values_that_overlap_nothing_is_left():
    one = following(abcdef12="ghijkl34", ef12ghij9="mnop56qr7")
    changed = replaced(one, "abcdef12ghij9")
    assert changed == "ghij" + "mnop56qr7"
    assert replaced(one, changed) == changed


def test_a_value_in_another_is_part_of_that():
    one = following(hunter22="abcdef33", hunter22hunter22x="klmnop44qrstuv55w")
    assert replaced(one, "hunter22hunter22x hunter22") == "klmnop44qrstuv55w abcdef33"


def test_a_value_in_a_token_is_none():
    one = following(secret77longer="abcxyz99defghi", xyz99="uvw11")
    assert replaced(one, "abcxyz99defghi xyz99") == "abcxyz99defghi uvw11"


def test_a_part_that_could_be_either_end_is_of_the_longer_one():
    one = following(**{"00001234000001234": "abcdefghijklmnopq"})
    assert replaced(one, "00001234") == "abcdefgh"
    assert replaced(one, "000001234") == "ijklmnopq"
    assert replaced(one, "x00001234") == "xabcdefgh"
    assert replaced(one, "00001234000001") == "abcdefghijklmn"
    assert replaced(one, "000001234 and 000012340") == "ijklmnopq and abcdefghi"


def test_a_long_value_is_followed_in_pieces():
    value, token = (
        "".join(chr(first + number * number // 97 % 26) for number in range(5000))
        for first in (97, 65)
    )
    one = following(**{value: token})
    assert replaced(one, f"<{value}>") == f"<{token}>"
    assert value[3000:3100] not in replaced(one, value[:3100])
    assert replaced(one, json.dumps({"a": value})) == json.dumps({"a": token})


def test_needless_escapes_hide_no_value():
    one = following(hunter22x="abcdef33y")
    for body in (rb'"h\u0075nter22x"', rb'"\"h\\u0075nter22x\""', rb'"a\/\\/hunter22x"'):
        assert one.found_in(body)
    assert not one.found_in(rb'"\u00e9 \u0022 \\ \/ and nothing else"')


def test_with_many_values_base64_is_looked_for_in_long_runs():
    one = following(**{f"{number:04}" * 5: f"{9999 - number:04}" * 5 for number in range(100)})
    written = b64encode(b"0042" * 5).decode()
    assert replaced(one, written) == b64encode(b"9957" * 5).decode()
    assert not one.found_in(b'"a b c"')
    assert not one.found_in(b"")
