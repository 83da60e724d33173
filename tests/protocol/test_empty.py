"""The empty dict that idle sessions share."""

import pytest

from mcp_trio._protocol.empty import NO_ITEMS


@pytest.mark.parametrize(
    "add",
    [
        lambda items: items.__setitem__("a", 1),
        lambda items: items.update(a=1),
        lambda items: items.setdefault("a", 1),
        lambda items: items.__ior__({"a": 1}),
    ],
)
def test_nothing_can_be_added_to_the_shared_dict(add):
    with pytest.raises(TypeError, match="replace it by a dict"):
        add(NO_ITEMS)
    assert NO_ITEMS == {}


def test_reading_and_removing_from_the_shared_dict_find_nothing():
    assert NO_ITEMS.get("a") is NO_ITEMS.pop("a", None) is None
    assert "a" not in NO_ITEMS
    assert [*NO_ITEMS.items()] == []
