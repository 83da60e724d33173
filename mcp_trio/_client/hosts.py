"""Helpers for hosts: display names, tool hints, icons, and the choice of a model."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from mcp_trio.limits import DEFAULT_LIMITS, Limits
from mcp_trio.types import (
    Icon,
    ModelPreferences,
    Prompt,
    Resource,
    ResourceTemplate,
    Tool,
    ToolAnnotations,
)

_ICON_TYPES: Final = {"image/png", "image/jpeg", "image/jpg", "image/svg+xml", "image/webp"}

# RFC 9110, section 4.1, recommends that URIs of 8,000 octets be supported.
_URL_CHARS_MAX: Final = 8_000

_NO_ANNOTATIONS: Final = ToolAnnotations()


def display_name(item: Tool | Prompt | Resource | ResourceTemplate) -> str:
    """Return the name to show to users: the title, a tool's annotated title, or else the name."""
    annotations = item.annotations if isinstance(item, Tool) else None
    return item.title or (annotations and annotations.title) or item.name


class ToolHints(msgspec.Struct, frozen=True, kw_only=True):
    """A server's own description of the effects of a tool; not to be trusted more than the server.

    Attributes:
        read_only: The tool changes nothing.
        destructive: The tool may delete or overwrite something; only if not `read_only`.
        idempotent: Another call with the same arguments changes nothing more.
        open_world: The tool reaches systems other than the server's own.
    """

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool


def tool_hints(tool: Tool) -> ToolHints:
    """Return the hints of a tool, with the defaults of the specification for missing ones.

    https://modelcontextprotocol.io/specification/2026-07-28/schema#toolannotations
    """
    annotations = tool.annotations or _NO_ANNOTATIONS
    return ToolHints(
        read_only=annotations.read_only_hint is True,
        destructive=annotations.destructive_hint is not False,
        idempotent=annotations.idempotent_hint is True,
        open_world=annotations.open_world_hint is not False,
    )


def showable_icons(
    icons: Iterable[Icon] | None,
    *,
    hosts: Collection[str] = (),
    limits: Limits = DEFAULT_LIMITS,
) -> list[Icon]:
    """Return the icons that are safe to show, in the given order.

    An icon is safe if its type is PNG, JPEG, SVG or WebP, and its source is either a `data:` URI
    of at most `limits.messages.icon_chars_max` characters, or an `https:` URL of at most 8,000
    characters without credentials.

    Nothing is fetched here. When you fetch an icon, send no credentials, follow no redirect to
    another host, limit the size, and detect the type from the bytes, since the declared type may
    be wrong. Show an SVG only as an image: as a page it can run scripts.

    Args:
        icons: The icons of a server, tool, prompt or resource.
        hosts: The hosts from which icons may be fetched: the server's own, and trusted ones.
        limits: The limit for the length of `data:` URIs.

    Raises:
        TypeError: `hosts` is a string, of which each part would be a host.
    """
    if isinstance(hosts, str):
        raise TypeError(f"hosts are a set of names: write {{{hosts!r}}}")
    return [icon for icon in icons or () if _is_showable(icon, hosts, limits)]


def _is_showable(icon: Icon, hosts: Collection[str], limits: Limits) -> bool:
    if icon.mime_type is not None and icon.mime_type.lower() not in _ICON_TYPES:
        return False
    scheme, _, rest = icon.src.partition(":")
    if scheme.lower() == "data":
        mime_type = rest.partition(",")[0].partition(";")[0].lower()
        return mime_type in _ICON_TYPES and len(icon.src) <= limits.messages.icon_chars_max
    # `urlsplit` keeps its last arguments in a cache, and so should get no megabytes.
    if len(icon.src) > _URL_CHARS_MAX:
        return False
    try:
        uri = urlsplit(icon.src)
    except ValueError:
        return False
    has_credentials = "@" in uri.netloc
    return uri.scheme == "https" and uri.hostname in hosts and not has_credentials


class ModelTraits(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a model that `choose_model` compares, each from 0 (least) to 1 (most).

    Attributes:
        cheapness: 1 for the cheapest model.
        speed: 1 for the fastest model.
        intelligence: 1 for the most capable model.
        stands_for: Names of other providers' models that this one replaces.
    """

    cheapness: float = 0.5
    speed: float = 0.5
    intelligence: float = 0.5
    stands_for: Sequence[str] = ()


def choose_model(models: Mapping[str, ModelTraits], preferences: ModelPreferences | None) -> str:
    """Return the name of the model that fits a server's preferences best; for `sampling` callbacks.

    The first hint that is a part of a model's name, or of a name in its `stands_for`, restricts the
    choice to such models. Among those, or among all models if no hint matches, the priorities
    decide, and then the order of `models`.

    Raises:
        ValueError: `models` is empty.
    """
    preferences = preferences or ModelPreferences()
    candidates = list(models)
    for part in [hint.name for hint in preferences.hints or [] if hint.name]:
        matching = [
            name
            for name, traits in models.items()
            if any(part in known for known in (name, *traits.stands_for))
        ]
        if matching:
            candidates = matching
            break
    if not candidates:
        raise ValueError("there are no models to choose from")

    def worth(name: str) -> float:
        traits = models[name]
        return (
            traits.cheapness * (preferences.cost_priority or 0)
            + traits.speed * (preferences.speed_priority or 0)
            + traits.intelligence * (preferences.intelligence_priority or 0)
        )

    return max(candidates, key=worth)
