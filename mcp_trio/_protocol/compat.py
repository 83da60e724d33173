"""Compatibility: values downgraded to the protocol version of the peer.

The types have the members of all protocol versions. A member that the peer's version does not have
is left out if nothing depends on it, replaced by an equivalent if there is one, and otherwise
rejected: a request that would mean something else must not be sent. `_MEMBER_RULES` is the table
for members, `_VALUE_RULES` for values that may occur where the version does not expect them. The
methods have their versions in `methods`.

Most values need no change, and are returned as they are. The members to change are found once for
each type and version.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any, Final, TypeAlias, TypeVar, cast, get_args

import msgspec

from mcp_trio import types
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS, ProtocolVersion
from mcp_trio.errors import LocalProtocolError

_BRACE: Final = ord("{")

# More than there are types and versions; users' own types may come and go.
_CACHED_MAX: Final = 1024

Value = TypeVar("Value")
_Change: TypeAlias = Callable[[Any, ProtocolVersion], Any]


def downgraded(value: Value, protocol_version: ProtocolVersion) -> Value:
    """Return an equivalent value without members that the protocol version does not have.

    The value itself is returned if nothing has to change, and if it is not one of `types`.

    Raises:
        LocalProtocolError: The protocol version has no equivalent.
    """
    kind: type = type(value)
    change = _change_for(kind, protocol_version)
    return value if change is None else change(value, protocol_version)


class CompatibleToolResult(types.CallToolResult, kw_only=True):
    """A result that was made for the protocol version of its request: nothing has to change.

    To look for what has to change takes a tenth of the time of a small call. Users' code never gets
    such a result, because it could put content into it that a version lacks.
    """


# Changes of a member; UNSET removes it.


def _remove(_value: Any, _protocol_version: ProtocolVersion) -> Any:
    return msgspec.UNSET


def _rejects(feature: str) -> _Change:
    def reject(_value: Any, protocol_version: ProtocolVersion) -> Any:
        raise _unsupported(feature, protocol_version)

    return reject


def _unsupported(feature: str, protocol_version: ProtocolVersion) -> LocalProtocolError:
    return LocalProtocolError(f"protocol version {protocol_version.name} has no {feature}")


class _Rule(msgspec.Struct, frozen=True):
    """A change of a member, or of a value, and the protocol versions for which it is needed."""

    is_needed: Callable[[ProtocolVersion], bool]
    change: _Change


def _since(name: str, otherwise: _Change = _remove) -> _Rule:
    """Return the rule that changes a feature for the versions before the one that added it."""
    first = PROTOCOL_VERSIONS[name].index
    return _Rule(lambda protocol_version: protocol_version.index < first, otherwise)


def _added(name: str, *members: str) -> dict[str, tuple[_Rule, ...]]:
    """Return the rules that remove members for the versions before the one that added them."""
    return dict.fromkeys(members, (_since(name),))


def _until(name: str) -> _Rule:
    """Return the rule that removes a member for the versions after the last one that has it."""
    last = PROTOCOL_VERSIONS[name].index
    return _Rule(lambda protocol_version: protocol_version.index > last, _remove)


# Structured content, and the schemas of tools.


def _restricts_structured_content(protocol_version: ProtocolVersion) -> bool:
    return protocol_version.structured_content != "any"


def _object_content(value: Any, protocol_version: ProtocolVersion) -> Any:
    """Keep structured content only if it is an object, and the version allows objects."""
    if protocol_version.structured_content != "object":
        return msgspec.UNSET
    if value.__class__ is dict:
        is_object = True
    elif isinstance(value, msgspec.Raw):
        text = memoryview(value)
        is_object = bool(text) and (text[0] == _BRACE or bytes(text).lstrip().startswith(b"{"))
    else:
        marks = ("__struct_fields__", "__attrs_attrs__", "__dataclass_fields__")
        is_object = isinstance(cast("object", value), Mapping) or any(
            hasattr(value, mark) for mark in marks
        )
    return value if is_object else msgspec.UNSET


def _output_schema(schema: dict[str, Any], protocol_version: ProtocolVersion) -> Any:
    is_allowed = protocol_version.structured_content == "object" and schema.get("type") == "object"
    return _object_schema(schema, protocol_version) if is_allowed else msgspec.UNSET


_BOOLEANS: Final[dict[bool, dict[str, Any]]] = {True: {}, False: {"not": {}}}


def _object_schema(schema: dict[str, Any], _protocol_version: ProtocolVersion) -> dict[str, Any]:
    """Replace `true` and `false` as schemas of properties, which older versions do not allow."""
    properties: Any = schema.get("properties")
    if not isinstance(properties, dict):
        return schema
    members = cast("dict[str, Any]", properties)
    if not any(isinstance(each, bool) for each in members.values()):
        return schema
    objects = {
        name: _BOOLEANS[each] if isinstance(each, bool) else each for name, each in members.items()
    }
    return {**schema, "properties": objects}


# Forms.


def _form_mode(mode: types.ElicitMode, protocol_version: ProtocolVersion) -> Any:
    if mode == "url":
        raise _unsupported("elicitation by URL", protocol_version)
    return msgspec.UNSET


def _plain_form(form: dict[str, Any], protocol_version: ProtocolVersion) -> dict[str, Any]:
    """Return a form with `enumNames` for titled choices, and with defaults only for booleans."""
    members: dict[str, dict[str, Any]] = form.get("properties", {})
    plain: dict[str, dict[str, Any]] = {}
    try:
        for name, member in members.items():
            kind = member.get("type")
            if kind == "array":
                raise _unsupported("multiple choice in a form", protocol_version)
            # The keywords that the older version does not have.
            unknown = {"oneOf"} if kind == "boolean" else {"oneOf", "default"}
            if unknown.isdisjoint(member):
                plain[name] = member
                continue
            plain[name] = {key: each for key, each in member.items() if key not in unknown}
            choices: list[dict[str, str]] = member.get("oneOf", [])
            if choices:
                plain[name]["enum"] = [choice["const"] for choice in choices]
                plain[name]["enumNames"] = [choice["title"] for choice in choices]
    except (AttributeError, KeyError, TypeError) as error:  # the user's schema is not a form
        text = f"protocol version {protocol_version.name} has no such form: {error!r}"
        raise LocalProtocolError(text) from error
    if "$schema" not in form and _is_same(members.values(), plain.values()):
        return form
    rest = {name: each for name, each in form.items() if name != "$schema"}
    return {**rest, "properties": plain}


def _plain_answers(content: dict[str, Any], protocol_version: ProtocolVersion) -> dict[str, Any]:
    if any(isinstance(answer, list) for answer in content.values()):
        raise _unsupported("multiple choice in a form", protocol_version)
    return content


def _without_modes(
    capability: types.ElicitationCapability, _protocol_version: ProtocolVersion
) -> Any:
    # A version without modes has only forms, so a client that announces only URLs has nothing.
    if capability.form is None and capability.url is None:
        return capability
    return msgspec.UNSET if capability.form is None else types.ElicitationCapability()


# Sampling.


def _one_block(
    content: types.SamplingContent, protocol_version: ProtocolVersion
) -> types.SamplingBlock:
    if not isinstance(content, list):
        return content
    if len(content) != 1:
        raise _unsupported("sampling message with several content blocks", protocol_version)
    return content[0]


def _split_blocks(messages: list[types.SamplingMessage], _protocol_version: ProtocolVersion) -> Any:
    """Return a message for each block, with the role of its message."""
    if not any(isinstance(message.content, list) for message in messages):
        return messages
    return [
        msgspec.structs.replace(message, content=block)
        for message in messages
        for block in (message.content if isinstance(message.content, list) else [message.content])
    ]


def _no_audio(
    content: types.SamplingContent, protocol_version: ProtocolVersion
) -> types.SamplingContent:
    if isinstance(content, types.AudioContent):
        raise _unsupported("audio in sampling", protocol_version)
    return content


_SAMPLING_CONTENT: Final = (
    _since("2025-11-25", otherwise=_one_block),
    _since("2025-03-26", otherwise=_no_audio),
)


# The tables.


def _always(_protocol_version: ProtocolVersion) -> bool:
    return True


# For `resultType` in the client's answers to questions: older versions do not have it at all, and
# in 2026-07-28 these answers are input responses, which the schema defines without it.
_NEVER_SENT: Final = _Rule(_always, _remove)

_MEMBER_RULES: Final[Mapping[type, Mapping[str, tuple[_Rule, ...]]]] = {
    types.Result: _added("2026-07-28", "result_type"),
    types.CacheableResult: _added("2026-07-28", "ttl_ms", "cache_scope"),
    types.InputResponseParams: _added("2026-07-28", "input_responses", "request_state"),
    types.InputRequest: {"params": (_Rule(_always, downgraded),)},
    types.Icons: _added("2025-11-25", "icons"),
    types.BaseMetadata: _added("2025-06-18", "title"),
    types.Implementation: {
        **_added("2025-06-18", "title"),
        **_added("2025-11-25", "description", "website_url"),
    },
    types.Annotations: _added("2025-06-18", "last_modified"),
    types.AnnotatedModel: _added("2025-06-18", "meta"),
    types.Resource: {**_added("2025-06-18", "title"), **_added("2025-11-25", "icons")},
    types.ResourceTemplate: {**_added("2025-06-18", "title"), **_added("2025-11-25", "icons")},
    types.ResourceContentsBase: _added("2025-06-18", "meta"),
    types.Prompt: _added("2025-06-18", "title", "meta"),
    types.Tool: {
        **_added("2025-03-26", "annotations"),
        **_added("2025-06-18", "title", "meta"),
        "execution": (_since("2025-11-25"), _until("2025-11-25")),
        "input_schema": (_since("2026-07-28", otherwise=_object_schema),),
        "output_schema": (_Rule(_restricts_structured_content, _output_schema),),
    },
    types.CallToolResult: {
        "structured_content": (_Rule(_restricts_structured_content, _object_content),)
    },
    types.CompleteParams: _added("2025-06-18", "context"),
    types.ProgressParams: _added("2025-03-26", "message"),
    types.Root: _added("2025-06-18", "meta"),
    types.RootsCapability: {"list_changed": (_until("2025-11-25"),)},
    types.SamplingCapability: _added("2025-11-25", "context", "tools"),
    types.ClientCapabilities: {
        "elicitation": (_since("2025-06-18"), _since("2025-11-25", otherwise=_without_modes)),
        **_added("2026-07-28", "extensions"),
    },
    types.ServerCapabilities: {
        **_added("2025-03-26", "completions"),
        **_added("2026-07-28", "extensions"),
    },
    types.ListRootsResult: {"meta": (_until("2025-11-25"),), "result_type": (_NEVER_SENT,)},
    types.SamplingMessage: {"meta": (_since("2025-11-25"),), "content": _SAMPLING_CONTENT},
    types.ToolResultContent: {
        "structured_content": (_Rule(_restricts_structured_content, _object_content),)
    },
    types.CreateMessageParams: {
        "meta": (_until("2025-11-25"),),
        "messages": (_since("2025-11-25", otherwise=_split_blocks),),
        "tools": (_since("2025-11-25", otherwise=_rejects("tools in sampling")),),
        "tool_choice": (_since("2025-11-25", otherwise=_rejects("toolChoice in sampling")),),
    },
    types.CreateMessageResult: {"result_type": (_NEVER_SENT,), "content": _SAMPLING_CONTENT},
    types.ElicitParams: {
        "meta": (_until("2025-11-25"),),
        "mode": (_since("2025-11-25", otherwise=_form_mode),),
        "requested_schema": (_since("2025-11-25", otherwise=_plain_form),),
        **_added("2025-11-25", "url"),
        "elicitation_id": (_since("2025-11-25"), _until("2025-11-25")),
    },
    types.ElicitResult: {
        "meta": (_until("2025-11-25"),),
        "result_type": (_NEVER_SENT,),
        "content": (_since("2025-11-25", otherwise=_plain_answers),),
    },
}
"""The rules for members by type; a subclass inherits them, and may replace them."""


_VALUE_RULES: Final[Mapping[type, _Rule]] = {
    types.AudioContent: _since(
        "2025-03-26",
        otherwise=lambda audio, _: types.EmbeddedResource(
            resource=types.ResourceContents(
                uri="embedded:audio", mime_type=audio.mime_type, blob=audio.data
            ),
            annotations=audio.annotations,
        ),
    ),
    types.ResourceLink: _since(
        "2025-06-18",
        otherwise=lambda link, _: types.TextContent(
            text=f"{link.title or link.name}: {link.uri}", annotations=link.annotations
        ),
    ),
    types.ToolUseContent: _since("2025-11-25", otherwise=_rejects("use of tools in sampling")),
    types.ToolResultContent: _since("2025-11-25", otherwise=_rejects("use of tools in sampling")),
    types.ElicitParams: _since("2025-06-18", otherwise=_rejects("elicitation")),
    types.ElicitResult: _since("2025-06-18", otherwise=_rejects("elicitation")),
    types.InputRequiredResult: _since(
        "2026-07-28", otherwise=_rejects("result that asks for input")
    ),
}


# The changes for each type and protocol version.


@functools.lru_cache(maxsize=_CACHED_MAX)
def _change_for(kind: type, protocol_version: ProtocolVersion) -> _Change | None:
    """Return the change for values of a type; None if they need no change."""
    if not issubclass(kind, types.Model) or kind is CompatibleToolResult:
        return None
    rule = _VALUE_RULES.get(kind)
    if rule is not None and rule.is_needed(protocol_version):
        return lambda value, protocol_version: downgraded(
            rule.change(value, protocol_version), protocol_version
        )
    # The name of each member to change, its value when it is not set, and its change.
    member_changes: list[tuple[str, Any, _Change]] = []
    bases = reversed(kind.__mro__)
    rules = {name: each for base in bases for name, each in _MEMBER_RULES.get(base, {}).items()}
    for field in msgspec.structs.fields(kind):
        changes = [
            rule.change for rule in rules.get(field.name, ()) if rule.is_needed(protocol_version)
        ]
        if any(_change_for(inner, protocol_version) for inner in _structs_in(field.type)):
            changes.append(_downgraded_member)
        if changes:
            change = changes[0] if len(changes) == 1 else functools.partial(_apply_in_turn, changes)
            member_changes.append((field.name, field.default, change))
    if not member_changes:
        return None

    def downgrade_members(value: Any, protocol_version: ProtocolVersion) -> Any:
        changed: dict[str, Any] = {}
        for name, absent, change in member_changes:
            before = getattr(value, name)
            if before is not absent:
                after = change(before, protocol_version)
                if after is not before:
                    changed[name] = absent if after is msgspec.UNSET else after
        return msgspec.structs.replace(value, **changed) if changed else value

    return downgrade_members


def _structs_in(hint: Any) -> Iterator[type[types.Model]]:
    """Yield the types of this package that occur in a type hint."""
    if isinstance(hint, type) and issubclass(hint, types.Model):
        yield hint
    for argument in get_args(hint):
        yield from _structs_in(argument)


def _apply_in_turn(
    changes: Sequence[_Change], member: Any, protocol_version: ProtocolVersion
) -> Any:
    for change in changes:
        member = change(member, protocol_version)
        if member is msgspec.UNSET:
            break
    return member


def _downgraded_member(member: Any, protocol_version: ProtocolVersion) -> Any:
    """Downgrade an object, the items of a list, or the values of a mapping."""
    kind: type[Any] = member.__class__
    if issubclass(kind, list):
        changed: list[Any] | None = None  # Most lists have no item that changes.
        for index, item in enumerate(member):
            after = downgraded(item, protocol_version)
            if after is not item:
                changed = list(member) if changed is None else changed
                changed[index] = after
        return member if changed is None else changed
    if issubclass(kind, dict):
        after = {name: downgraded(each, protocol_version) for name, each in member.items()}
        return member if _is_same(member.values(), after.values()) else after
    return downgraded(member, protocol_version)


def _is_same(before: Iterable[Any], after: Iterable[Any]) -> bool:
    return all(map(is_, before, after))
