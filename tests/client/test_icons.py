"""Icons that a host may show."""

import pytest

from mcp_trio import Limits
from mcp_trio import types as t
from mcp_trio.hosts import showable_icons
from mcp_trio.limits import MessageLimits

PNG = "data:image/png;base64,AAAA"
HTTPS = "https://harbour.example/i.png"
HOSTS = {"harbour.example"}


@pytest.mark.requirement("ICON-02", "ICON-03")
@pytest.mark.parametrize("kind", ["png", "jpeg", "jpg", "svg+xml", "webp"])
def test_icons_of_the_usual_image_types_are_showable(kind):
    mime_type = f"image/{kind}"
    icons = [
        t.Icon(src=f"data:{mime_type};base64,AAAA"),
        t.Icon(src=f"data:{mime_type},AAAA", mime_type=mime_type),
        t.Icon(src=HTTPS, mime_type=mime_type),
        t.Icon(src=HTTPS, mime_type=mime_type.upper()),
        t.Icon(src="https://HARBOUR.example:8443/i"),
    ]
    assert showable_icons(icons, hosts=HOSTS) == icons


@pytest.mark.requirement("ICON-04")
@pytest.mark.parametrize(
    "src",
    [
        "http://harbour.example/i.png",
        "javascript:alert(1)",
        "file:///i.png",
        "ftp://harbour.example/i.png",
        "ws://harbour.example/i.png",
        "//harbour.example/i.png",
        "i.png",
        "https://[",
        "",
    ],
)
def test_an_icon_with_an_unsafe_scheme_is_not_showable(src):
    shown = t.Icon(src=HTTPS)
    assert showable_icons([t.Icon(src=src), shown], hosts=HOSTS) == [shown]


@pytest.mark.requirement("ICON-07")
@pytest.mark.parametrize(
    "src",
    [
        "https://elsewhere.example/i.png",
        "https://harbour.example.elsewhere.example/i.png",
        "https://www.harbour.example/i.png",
        "https:///i.png",
    ],
)
def test_an_icon_from_an_untrusted_host_is_not_showable(src):
    assert showable_icons([t.Icon(src=src)], hosts=HOSTS) == []
    assert showable_icons([t.Icon(src=HTTPS), t.Icon(src=PNG)]) == [t.Icon(src=PNG)]


@pytest.mark.requirement("ICON-05")
@pytest.mark.parametrize("user", ["ann@", "ann:secret@", "@"])
def test_an_icon_url_with_credentials_is_not_showable(user):
    assert showable_icons([t.Icon(src=f"https://{user}harbour.example/i.png")], hosts=HOSTS) == []


@pytest.mark.requirement("ICON-06")
@pytest.mark.parametrize(
    "icon",
    [
        t.Icon(src="data:text/html,<script>alert(1)</script>"),
        t.Icon(src="data:text/html;image/png,x"),
        t.Icon(src="data:,x", mime_type="image/png"),
        t.Icon(src=PNG, mime_type="text/html"),
        t.Icon(src=HTTPS, mime_type="text/html"),
        t.Icon(src=PNG + "A" * 100),
    ],
)
def test_an_icon_that_is_no_image_or_too_large_is_not_showable(icon):
    assert (
        showable_icons(
            [icon], hosts=HOSTS, limits=Limits(messages=MessageLimits(icon_chars_max=60))
        )
        == []
    )


def test_without_icons_nothing_is_showable():
    assert showable_icons(None) == []
