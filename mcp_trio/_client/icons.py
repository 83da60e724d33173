"""Which of a server's icons may be shown: a host asks before it fetches any."""

from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import urlsplit

from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._schema import Icon

_TYPES: Final = {"image/png", "image/jpeg", "image/jpg", "image/svg+xml", "image/webp"}


def showable_icons(
    icons: Iterable[Icon] | None,
    *,
    hosts: Collection[str] = (),
    limits: Limits = DEFAULT_LIMITS,
) -> list[Icon]:
    """The icons that a host may show, in their order.

    They are PNG, JPEG, SVG or WebP (ICON-02, ICON-03, ICON-06), and either a `data:` URI of at most
    `icon_chars_max` characters, or at `https:` on one of `hosts`: the server's own, and those that
    are trusted (ICON-04, ICON-07). What an icon says of its type is the server's word for it.

    Nothing is fetched here. Whoever does that sends no credentials, follows no redirect to another
    host, bounds what it reads, and goes by the bytes; an SVG is shown as an image, never as a page
    (ICON-05, ICON-06).
    """
    return [icon for icon in icons or () if _is_showable(icon, hosts, limits)]


def _is_showable(icon: Icon, hosts: Collection[str], limits: Limits) -> bool:
    try:
        uri = urlsplit(icon.src)
    except ValueError:
        return False
    if icon.mime_type is not None and icon.mime_type.lower() not in _TYPES:
        return False
    if uri.scheme == "data":
        kind = uri.path.partition(",")[0].partition(";")[0].lower()
        return kind in _TYPES and len(icon.src) <= limits.icon_chars_max
    is_anonymous = "@" not in uri.netloc
    return uri.scheme == "https" and uri.hostname in hosts and is_anonymous
