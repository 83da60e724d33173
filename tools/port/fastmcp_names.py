"""The page of FastMCP's names, and whether it has each public name of FastMCP's classes."""

import inspect
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import mcp_trio
from mcp_trio._protocol.other_sdk_names import ATTRIBUTES, OPTIONS, PACKAGE
from mcp_trio._server.http_serve import HttpOptions

HERE: Final = Path(__file__).resolve().parent
DOCS: Final = HERE.parents[1] / "docs"
PAGE: Final = DOCS / "reference" / "fastmcp-names.md"
BEGIN: Final = "<!-- The tables are made by tools/port/port_table.py --page. -->\n"
END: Final = "<!-- The end of the tables. -->\n"

_TITLES: Final = {
    "Server": ("`FastMCP`", "FastMCP"),
    "Context": ("`Context`", "ctx"),
    "Client": ("`Client`", "Client"),
}
# Parameters that come first, and have any name, as in `server.tool(function)`.
_FIRST: Final = {"name_or_fn"}


def page_with_names(page: str) -> str:
    """Return the text of the page, with the tables as they are now."""
    return with_tables(page, BEGIN, _tables(), END)


def with_tables(page: str, begin: str, tables: str, end: str) -> str:
    """Return the text of a page, with other tables between two of its lines."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{tables}\n{end}{after}"


def _tables() -> str:
    parts = [_table("Imports", {f"`{name}`": advice for name, advice in PACKAGE.items()})]
    for kind, (title, short) in _TITLES.items():
        prefix = short if kind == "Context" else short.lower() if kind == "Client" else "mcp"
        rows = {f"`{prefix}.{name}`": advice for name, advice in ATTRIBUTES[kind].items()}
        for method, options in OPTIONS[kind].items():
            call = short if method == "__init__" else f"{prefix}.{method}"
            rows |= {f"`{call}({name}=…)`": advice for name, advice in options.items()}
        parts.append(_table(title, rows))
    return "\n\n".join(parts) + "\n"


def _table(title: str, rows: Mapping[str, str]) -> str:
    lines = [f"| {name} | {advice} |" for name, advice in rows.items()]
    return "\n".join([f"## {title}", "", "| FastMCP | here |", "|---|---|", *lines])


class Names:
    """The public names of FastMCP, compared with ours."""

    def __init__(self, python: str) -> None:
        """Ask FastMCP in its interpreter `python`."""
        done = subprocess.run(
            [python, str(HERE / "in_fastmcp.py"), "--names"],
            capture_output=True,
            text=True,
            check=True,
        )
        self.same: list[str] = []
        self.listed: list[str] = []
        self.unknown: list[str] = []
        for kind, methods in json.loads(done.stdout).items():
            for method, names in methods.items():
                ours = set(_our_names(kind, method))
                table = OPTIONS[kind].get(method, {}) if method else ATTRIBUTES[kind]
                for name in names:
                    where = f"{kind}.{method}({name})" if method else f"{kind}.{name}"
                    if name in ours or name in _FIRST:
                        self.same.append(where)
                    elif name in table:
                        self.listed.append(where)
                    else:
                        self.unknown.append(where)


def _our_names(kind: str, method: str) -> Iterator[str]:
    owner = getattr(mcp_trio, kind)
    if not method:
        yield from (name for name in dir(owner) if not name.startswith("_"))
    elif method == "run":
        yield from (*HttpOptions.__annotations__, "host", "port", "transport")
    else:
        yield from inspect.signature(getattr(owner, method)).parameters
