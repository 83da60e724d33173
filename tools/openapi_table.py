"""Read OpenAPI documents, and print what becomes of their operations.

`python tools/openapi_table.py DOCUMENT… [--reasons]` prints a line of the table in
`docs/how-to/from-openapi.md` for each document, given by its path: its operations, those taken as
tools, those whose tool has another name than its `operationId`, those rejected, the tools that have
an output schema, and the seconds to read it. `--reasons` lists what was rejected or left out, and
how often. Large public documents are not in this repository: the page says where they are from.
"""

import argparse
import collections
import logging
import time
from pathlib import Path

import httpx2

from mcp_trio import Server
from mcp_trio._server.sessions import sessions_of


def row(path: Path) -> tuple[str, collections.Counter[str]]:
    """Return the line of the table for a document, and the reasons with their number."""
    begin = time.perf_counter()
    client = httpx2.AsyncClient(base_url="http://127.0.0.1:9")  # nothing is sent
    server = Server.from_openapi(path, client=client)
    seconds = time.perf_counter() - begin
    report = server.openapi_report
    assert report is not None
    tools = sessions_of(server).registry.tools
    renamed = [each for each in report.accepted if each.name != each.operation.id]
    with_output = [tool for tool in tools.values() if tool.output is not None]
    cells = [
        *(server.name, server.version, len(report.entries), len(report.accepted), len(renamed)),
        *(len(report.rejected), len(with_output), f"{seconds:.1f} s"),
    ]
    reasons = collections.Counter(each.reason for each in report.entries if each.reason)
    return f"| {' | '.join(map(str, cells))} |", reasons


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Read OpenAPI documents.")
    parser.add_argument("documents", nargs="+", type=Path)
    parser.add_argument("--reasons", action="store_true")
    options = parser.parse_args()
    logging.disable()  # each refusal is in the table
    for document in options.documents:
        line, why = row(document)
        print(line)
        if options.reasons:
            for text, count in why.most_common():
                print(f"    {count} of: {text}")
