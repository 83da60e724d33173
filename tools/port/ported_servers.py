"""Compare public FastMCP servers with their ports to mcp_trio, and print a table.

`python tools/port/ported_servers.py [NAME…] [--environments FOLDER] [--page]`. Each server is
installed with uv, at its pinned version, into an environment of its own. The port is a copy of its
Python package to which `servers/NAME.patch` is applied; it runs in the environment of this script.
Both versions get the same requests over stdio. `--page` writes the table of
`docs/how-to/from-fastmcp.md`, and runs nothing. Status 1: outcomes do not compare as
`server_rows.py` says.
"""

import argparse
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from mcp_trio import Client, RequestError

sys.path.append(str(Path(__file__).resolve().parents[1] / "interop"))

from fastmcp_names import DOCS, with_tables
from server_rows import ANSWERS, SERVERS, PortedServer, Step

HERE: Final = Path(__file__).resolve().parent
HOME: Final = HERE.parents[1]
PAGE: Final = DOCS / "how-to" / "from-fastmcp.md"
ENVIRONMENTS: Final = HOME / ".nox" / "ported"
SERVER_SECONDS: Final = 120
MASK: Final = "masked"
BEGIN: Final = "<!-- The table is made by tools/port/ported_servers.py --page. -->\n"
END: Final = "<!-- The end of the table. -->\n"

# With 2026-07-28, which FastMCP 2 lacks, structured content may be any value.
PROTOCOL_VERSION: Final = "2025-11-25"

Outcome = Mapping[str, Any]


# The page.


def patch_of(server: PortedServer) -> Path:
    return HERE / "servers" / f"{server.name}.patch"


def size_of(patch: str) -> tuple[int, int]:
    """Return how many lines a unified diff removes and adds."""
    lines = patch.splitlines()
    removed = sum(line.startswith("-") and not line.startswith("--- ") for line in lines)
    added = sum(line.startswith("+") and not line.startswith("+++ ") for line in lines)
    return removed, added


def page_with_table(page: str) -> str:
    """Return the text of the page, with the table of the servers as they are now."""
    head = [
        "| server | licence | written with | lines | removed, added | tools | requests | differ |",
        "|---|---|---|--:|--:|--:|--:|---|",
    ]
    rows = "\n".join([*head, *map(_line, SERVERS.values())])
    return with_tables(page, BEGIN, f"{rows}\n", END)


def _line(server: PortedServer) -> str:
    removed, added = size_of(patch_of(server).read_text(encoding="utf-8"))
    explained = [step.reason for step in server.steps if step.differs]
    differ = "; ".join(f"{explained.count(it)}: {it}" for it in dict.fromkeys(explained)) or "none"
    tools = f"{len(server.tools)} of {len(server.tools) + len(server.not_called)}"
    cells = (
        f"{server.name} {server.version}",
        server.licence,
        server.framework[0].replace("==", " "),
        f"{server.lines:,}",
        f"{removed}, {added}",
        tools,
        str(len(server.steps)),
        differ,
    )
    return f"| {' | '.join(cells)} |"


# Comparing.


def masked(value: Any, members: frozenset[str]) -> Any:
    """Return a JSON value without the values of some members, which may be in texts as well.

    Texts are not parsed, so that a difference in the format of their JSON remains.
    """
    if isinstance(value, dict):
        return {
            name: MASK if name in members else masked(item, members) for name, item in value.items()
        }
    if isinstance(value, list):
        return [masked(item, members) for item in value]
    if isinstance(value, str) and members:
        names = "|".join(map(re.escape, sorted(members)))
        return re.sub(rf'("(?:{names})": ?)("[^"]*"|[^",}}]+)', rf"\g<1>{MASK}", value)
    return value


def step_problems(
    server: PortedServer, theirs: Sequence[Outcome], ours: Sequence[Outcome]
) -> list[str]:
    """Return where the outcomes of the steps do not compare as the server's row says."""
    found: list[str] = []
    for step, their_outcome, our_outcome in zip(server.steps, theirs, ours, strict=True):
        request = f"{step.method} {json.dumps(step.params)}"
        for version, outcome in (("original", their_outcome), ("ported", our_outcome)):
            texts = [item.get("text", "") for item in outcome.get("content", [])]
            if step.ending and not any(text.endswith(step.ending) for text in texts):
                found.append(f"{request}: {version}: no text ends with {step.ending!r}: {texts}")
        for name in sorted({*their_outcome, *our_outcome}):
            their_value = masked(their_outcome.get(name), server.masked)
            our_value = masked(our_outcome.get(name), server.masked)
            if (their_value != our_value) is not (name in step.differs):
                kind = "no difference any more" if name in step.differs else "differs"
                found.append(f"{request}: {name}: {kind}: {their_value!r}, ported {our_value!r}")
    return found


def list_problems(server: PortedServer, theirs: Outcome, ours: Outcome) -> list[str]:
    """Return how the lists of tools differ, and the tools that the row leaves out."""
    found = [
        f"{name}: the parameters differ: {theirs.get(name)}, ported {ours.get(name)}"
        for name in sorted({*theirs, *ours})
        if theirs.get(name) != ours.get(name)
    ]
    unnamed = sorted(theirs.keys() - server.tools - server.not_called.keys())
    return found + [f"{name}: the row does not name this tool" for name in unnamed]


# Running.


def install_original(environments: Path, server: PortedServer) -> tuple[str, Path]:
    """Install a server; return the interpreter, and the folder of its Python package."""
    from install import ensure
    from peers import PythonEnvironment

    environment = PythonEnvironment(name=server.name, packages=server.packages, base=environments)
    ensure(environment)
    base = {"base": str(environment.folder)}
    libraries = Path(sysconfig.get_path("purelib", "venv", base))
    return environment.python, libraries / server.folder


def make_port(package: Path, patch: Path, folder: Path) -> None:
    """Copy a Python package into a new folder, and apply a patch to the copy.

    Raises:
        subprocess.CalledProcessError: The patch does not fit.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    command = ["git", "apply", "--whitespace=nowarn", str(patch)]
    subprocess.run(command, cwd=folder, check=True)


def lines_of(folder: Path) -> int:
    """Return the number of lines of the Python files in a folder."""
    return sum(len(path.read_bytes().splitlines()) for path in folder.rglob("*.py"))


async def run_steps(client: Client, steps: Sequence[Step]) -> tuple[Outcome, Sequence[Outcome]]:
    """Return the parameters of each tool of a server, and the outcome of each step."""
    with trio.fail_after(SERVER_SECONDS):
        async with client:
            listed = {tool.name: parameters(tool) for tool in await client.list_tools()}
            return listed, [await outcome_of(client, step) for step in steps]


def parameters(tool: Any) -> Any:
    """Return the names of a tool's parameters, and of those that are required."""
    schema = msgspec.to_builtins(tool.input_schema)
    return sorted(schema.get("properties", {})), sorted(schema.get("required", []))


def answer(params: Any) -> Mapping[str, str]:
    """Fill in a form."""
    form = msgspec.to_builtins(params)["requestedSchema"]
    return {name: ANSWERS[name] for name in form["properties"]}


async def outcome_of(client: Client, step: Step) -> Outcome:
    """Return the members of the result or of the error, and the progress that was reported."""
    reported: list[Any] = []

    def report(progress: Any) -> None:
        reported.append([progress.progress, progress.total])

    try:
        result = await client.request(step.method, step.params, progress=report)
    except RequestError as error:
        return {"error": [error.code, str(error)]}
    members = msgspec.json.decode(msgspec.json.encode(result))
    members["isError"] = members.get("isError", False)
    members.pop("_meta", None)  # a mark of FastMCP for its own client
    return {**members, "progress": reported}


def compare(environments: Path, server: PortedServer) -> list[str]:
    """Install and run both versions of a server, and return the problems."""
    python, package = install_original(environments, server)
    port = environments / "ports" / server.name
    make_port(package, patch_of(server), port)
    path = os.pathsep.join([str(port), str(HOME)])
    answers: list[tuple[Outcome, Sequence[Outcome]]] = []
    for interpreter, variables in ((python, {}), (sys.executable, {"PYTHONPATH": path})):
        work = environments / "work" / server.name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        client = Client(
            [interpreter, "-m", server.folder],
            env=variables,
            cwd=work,
            protocol_versions=[PROTOCOL_VERSION],
            elicitation=answer,
        )
        answers.append(trio.run(run_steps, client, server.steps))
    (their_tools, theirs), (our_tools, ours) = answers
    found = list_problems(server, their_tools, our_tools)
    if (lines := lines_of(package)) != server.lines:
        found.append(f"the package has {lines} lines, the row says {server.lines}")
    return [*found, *step_problems(server, theirs, ours)]


def main() -> None:
    from interop_command import new_table, show, wrong

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("servers", nargs="*", metavar="NAME", help="only these servers")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    parser.add_argument("--page", action="store_true", help="write the table of the page")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    if unknown := set(options.servers) - SERVERS.keys():
        parser.error(f"unknown servers: {', '.join(sorted(unknown))}")
    logging.disable()  # a server that prints to stdout is no problem of the comparison
    table = new_table(
        "server", "version", right=("lines", "removed", "added", "tools", "equal", "explained")
    )
    found: list[str] = []
    for name in options.servers or SERVERS:
        server = SERVERS[name]
        its_problems = compare(options.environments, server)
        found += [f"{name}: {problem}" for problem in its_problems]
        removed, added = size_of(patch_of(server).read_text(encoding="utf-8"))
        explained = sum(bool(step.differs) for step in server.steps)
        equal = f"{len(server.steps) - explained} of {len(server.steps)}"
        table.add_row(
            name,
            server.version,
            *map(str, (server.lines, removed, added, len(server.tools))),
            wrong("WRONG") if its_problems else equal,
            str(explained),
        )
    sys.exit(0 if show(table, found, "{}") else 1)


if __name__ == "__main__":
    main()
