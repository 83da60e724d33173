"""Faults for `run_fuzz.py --planted`: a text of the package, and the text with the fault."""

from collections.abc import Sequence
from typing import Final, NamedTuple


class Planted(NamedTuple):
    """A fault that the fuzzer of a parser has to find.

    Attributes:
        target: The name of the parser.
        file: The file in the package.
        text: The text, which occurs once in the file.
        fault: The text that takes its place.
    """

    target: str
    file: str
    text: str
    fault: str


_MESSAGES: Final = "_jsonrpc/messages.py"
_LINES: Final = "_jsonrpc/lines.py"
_SSE: Final = "_jsonrpc/sse.py"
_HTTP: Final = "_transports/http1.py"
_HEADERS: Final = "_protocol/http_headers.py"
_WEBSOCKET: Final = "_transports/trio_websocket.py"
_RECORDS: Final = "_journal/records.py"
_TEMPLATES: Final = "_protocol/uri_templates.py"
_SCHEMA: Final = "_protocol/json_schema.py"
_STATE: Final = "_server/sealed_state.py"

PLANTED: Final[Sequence[Planted]] = (
    Planted(
        "messages",
        _MESSAGES,
        "            if not data.isascii():\n                data.decode()",
        "            if False:\n                data.decode()",
    ),
    Planted(
        "messages",
        _MESSAGES,
        'return text.replace(b"\\\\\\\\", b"").replace(b\'\\\\"\', b"")',
        'return text.replace(b\'\\\\"\', b"")',
    ),
    Planted(
        "messages",
        _MESSAGES,
        "            if envelope.id is None and envelope.error is _ABSENT:\n"
        '                return _invalid(data, "id is null")\n',
        "",
    ),
    Planted("messages", _MESSAGES, '(?:\\\\.[^"\\\\]*+)*+', '(?:\\\\.[^"\\\\]*+)?+'),
    Planted(
        "connections",
        "_protocol/connection.py",
        "        if request is None:\n            if self.outgoing.forget_abandoned",
        "        if request is None and isinstance(message, Response):\n"
        "            if self.outgoing.forget_abandoned",
    ),
    Planted(
        "connections",
        "_protocol/connection.py",
        "        except (msgspec.MsgspecError, RecursionError) as error:\n"
        "            raise RemoteProtocolError(",
        "        except (msgspec.ValidationError, RecursionError) as error:\n"
        "            raise RemoteProtocolError(",
    ),
    Planted(
        "lines",
        _LINES,
        '            self._is_discarding = False\n            return b""',
        "            self._is_discarding = False",
    ),
    Planted(
        "lines",
        _LINES,
        "            self._is_first_line = False\n            line = line.removeprefix",
        "            line = line.removeprefix",
    ),
    Planted("lines", _LINES, "bytes_max + _MARGIN_BYTES", "bytes_max"),
    Planted(
        "sse",
        _SSE,
        '        lines = chunk.removeprefix(b"\\n") if self._is_after_cr else chunk',
        "        lines = chunk",
    ),
    Planted(
        "sse",
        _SSE,
        'data = _with_lf(data).replace(b"\\n", b"\\ndata: ")',
        'data = _with_lf(data).replace(b"\\n", b"\\ndata:")',
    ),
    Planted("http", _HTTP, "    start = max(0, searched - _END_BYTES_MAX)", "    start = searched"),
    Planted(
        "http",
        _HTTP,
        "        match = line.search(common) if lower.count(name) == 1 else None",
        "        match = line.search(common)",
    ),
    Planted(
        "http",
        _HTTP,
        "        if self._is_after_data:",
        "        if self._is_after_data or (line == _EMPTY and not self._is_in_trailers):",
    ),
    Planted(
        "http",
        _HTTP,
        '    elif "content-length" in request.headers:\n',
        '    elif "content-length" in request.headers and not is_http_1_1:\n',
    ),
    Planted(
        "headers",
        _HEADERS,
        "        headers.append((NAME, encoded_value(name)))",
        "        headers.append((NAME, name))",
    ),
    Planted(
        "headers",
        _HEADERS,
        '    if isinstance(value, bool):\n        return "true" if value else "false"\n',
        "",
    ),
    Planted(
        "websocket",
        _WEBSOCKET,
        "        if event.message_finished:\n            self._is_skipping = False",
        "        self._is_skipping = False",
    ),
    Planted(
        "websocket",
        _WEBSOCKET,
        "                self._incomplete = bytearray()\n",
        "",
    ),
    Planted(
        "recordings",
        _RECORDS,
        "    except (ValueError, RecursionError, RecordingError):",
        "    except (msgspec.MsgspecError, RecordingError):",
    ),
    Planted(
        "recordings",
        _RECORDS,
        '        if record.kind == "gap":\n            decode_body(record, GapBody)\n',
        "",
    ),
    Planted(
        "uri_templates",
        _TEMPLATES,
        "        except UnicodeDecodeError:\n            return None",
        "        except KeyError:\n            return None",
    ),
    Planted(
        "uri_templates",
        _TEMPLATES,
        "or (right.operator.first == left.operator.separator and len(left.names) > 1)",
        "or False",
    ),
    Planted(
        "uri_templates",
        _TEMPLATES,
        "len(parts) < len(pairs) or not parts.keys() <= set(self.names)",
        "len(parts) < len(pairs)",
    ),
    Planted(
        "schemas",
        _SCHEMA,
        "        except (RecursionError, TooDeep):",
        "        except RecursionError:",
    ),
    Planted(
        "schemas",
        _SCHEMA,
        "        except re2.error as error:",
        "        except KeyError as error:",
    ),
    Planted(
        "sealed_states",
        _STATE,
        "        except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError):",
        "        except (zlib.error, UnicodeDecodeError):",
    ),
    Planted(
        "sealed_states",
        _STATE,
        "        if state.version != version:",
        "        if False:",
    ),
)
"""The faults; each breaks a rule of its parser, and leaves ordinary input as it is."""
