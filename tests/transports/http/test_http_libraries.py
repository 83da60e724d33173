"""Objects of httpx where those of httpx2 are expected, and the other way round."""

import httpx
import httpx2
import pytest

from mcp_trio._transports.http_libraries import errors_of, library_of


def other(library):
    return httpx if library is httpx2 else httpx2


@pytest.mark.parametrize("name", ["AsyncClient", "Headers", "AsyncHTTPTransport"])
def test_the_library_of_an_object_is_that_of_its_base_classes(library, name):
    class Derived(getattr(library, name)):
        pass

    assert library_of(Derived()) is library


def test_other_objects_have_no_library():
    assert library_of(7) is None


@pytest.mark.parametrize("name", ["ConnectError", "TooManyRedirects"])
def test_an_error_becomes_the_one_of_the_same_name(library, name):
    original = getattr(other(library), name)("no route")
    with pytest.raises(getattr(library, name), match="no route") as caught, errors_of(library):
        raise original
    assert caught.value.__cause__ is original
    with pytest.raises(RuntimeError, match="has not been set"):
        _ = caught.value.request


def test_an_error_of_a_stream_keeps_its_text(library):
    original = other(library).StreamConsumed()
    with pytest.raises(library.StreamConsumed) as caught, errors_of(library):
        raise original
    assert str(caught.value) == str(original)


@pytest.mark.parametrize("make", [lambda library: library.ReadError("cut"), lambda _: KeyError(1)])
def test_errors_of_the_same_library_and_of_none_are_not_replaced(library, make):
    original = make(library)
    with pytest.raises(type(original)) as caught, errors_of(library):
        raise original
    assert caught.value is original


def test_an_error_with_its_response_is_not_replaced(library):
    source = other(library)
    request = source.Request("GET", "http://mcp.test")
    original = source.HTTPStatusError("503", request=request, response=source.Response(503))
    with pytest.raises(source.HTTPStatusError) as caught, errors_of(library):
        raise original
    assert caught.value is original
