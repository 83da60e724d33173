"""What is said to each server: its story, told by clients and, word for word, by `byte_host`.

A server gets a folder to itself, whose content `worlds` prepares.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import scenario
import server_requests
from facts import FACTS
from parties import MESSAGE, UPDATED, Host, Session
from steps import (
    ROOTS_LIST,
    Chapter,
    Heard,
    Step,
    ask,
    call,
    complete,
    failing,
    get,
    read,
    reporting,
    set_level,
    watching,
)

TOOLS_LIST_CHANGED: Final = "notifications/tools/list_changed"
BIG_TEXT_CHARS: Final = 4 * 1024 * 1024


# Published servers.


def everything(_folder: Path) -> tuple[Step | Heard, ...]:
    """`@modelcontextprotocol/server-everything`, as far as 2024-11-05 goes.

    Not `get-env`, which tells of the machine, and not `get-resource-links`: these came later.
    """
    document = "demo://resource/static/document/extension.md"
    text, blob = (f"demo://resource/dynamic/{kind}/1" for kind in ("text", "blob"))
    template = "demo://resource/dynamic/text/{resourceId}"
    return (
        # The server asks some time after the handshake.
        Heard(ROOTS_LIST),
        Heard(MESSAGE),
        ask("ping"),
        ask("tools/list"),
        call("echo", message="Grüße 👋"),
        failing(call("echo", massage="no such argument")),
        call("get-sum", a=2, b=40),
        call("get-tiny-image"),
        call("get-annotated-message", messageType="error", includeImage=False),
        call("get-resource-reference", resourceType="Text", resourceId=1),
        call("get-structured-content", location="Chicago"),
        reporting(call("trigger-long-running-operation", duration=0.3, steps=3)),
        call("trigger-sampling-request", prompt="Which colour?", maxTokens=10),
        call("get-roots-list"),
        failing(call("no-such-tool")),
        set_level("debug"),
        ask("resources/list"),
        ask("resources/templates/list"),
        read(document),
        read(text),
        read(blob),
        failing(read("demo://no/such/resource")),
        *watching(
            document,
            call("toggle-subscriber-updates"),
            Heard(UPDATED),
            call("toggle-subscriber-updates"),
        ),
        ask("prompts/list"),
        get("simple-prompt"),
        get("args-prompt", city="Oslo", state="Norway"),
        get("completable-prompt", department="Sales", name="Eve"),
        get("resource-prompt", resourceType="Text", resourceId="1"),
        failing(get("args-prompt")),
        complete("completable-prompt", "department", "S"),
        complete(template, "resourceId", "7"),
    )


def filesystem(folder: Path) -> tuple[Step | Heard, ...]:
    """`@modelcontextprotocol/server-filesystem`."""
    poem, copy = str(folder / "poem.txt"), str(folder / "drafts" / "copy.txt")
    return (
        Heard(ROOTS_LIST),
        ask("ping"),
        ask("tools/list"),
        call("list_allowed_directories"),
        call("list_directory", path=str(folder)),
        call("directory_tree", path=str(folder)),
        call("read_text_file", path=poem),
        call("read_text_file", path=poem, head=1),
        call("read_media_file", path=str(folder / "pixel.png")),
        call("create_directory", path=str(folder / "drafts")),
        call("write_file", path=copy, content="Two roads diverged in a yellow wood.\n"),
        call(
            "edit_file", path=copy, edits=[{"oldText": "yellow", "newText": "snowy"}], dryRun=False
        ),
        call("read_multiple_files", paths=[poem, copy]),
        call("search_files", path=str(folder), pattern="**/*.txt"),
        call("get_file_info", path=poem),
        call("move_file", source=copy, destination=str(folder / "drafts" / "final.txt")),
        call("list_directory_with_sizes", path=str(folder / "drafts"), sortBy="name"),
        failing(call("read_text_file", path=str(folder / "missing.txt"))),
        failing(call("read_text_file", path="/etc/hostname")),
    )


def memory(_folder: Path) -> tuple[Step | Heard, ...]:
    """`@modelcontextprotocol/server-memory`."""
    ada = {"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}
    engine = {"name": "Engine", "entityType": "machine", "observations": []}
    made_for = {"from": "Ada", "to": "Engine", "relationType": "programmed"}
    note, graph = "computed Bernoulli numbers", "memory://knowledge-graph"
    return (
        ask("ping"),
        ask("tools/list"),
        call("read_graph"),
        ask("resources/list"),
        ask("resources/templates/list"),
        *watching(graph, call("create_entities", entities=[ada, engine]), Heard(UPDATED)),
        call("create_relations", relations=[made_for]),
        call("add_observations", observations=[{"entityName": "Ada", "contents": [note]}]),
        call("search_nodes", query="Bernoulli"),
        call("open_nodes", names=["Ada"]),
        read(graph),
        call("delete_observations", deletions=[{"entityName": "Ada", "observations": [note]}]),
        call("delete_relations", relations=[made_for]),
        call("delete_entities", entityNames=["Engine"]),
        failing(call("add_observations", observations=[{"entityName": "No", "contents": []}])),
        failing(read("memory://no-such-graph")),
    )


def time(_folder: Path) -> tuple[Step | Heard, ...]:
    """`mcp-server-time`."""
    zones = {"source_timezone": "Europe/Oslo", "target_timezone": "Asia/Tokyo"}
    return (
        ask("ping"),
        ask("tools/list"),
        call("get_current_time", timezone="Europe/Oslo"),
        call("convert_time", **zones, time="16:30"),
        failing(call("convert_time", **zones, time="25:61")),
        failing(call("get_current_time", timezone="Middle/Earth")),
    )


def git(folder: Path) -> tuple[Step | Heard, ...]:
    """`mcp-server-git`."""
    here = {"repo_path": str(folder)}
    return (
        ask("ping"),
        ask("tools/list"),
        call("git_status", **here),
        call("git_diff_unstaged", **here),
        call("git_add", **here, files=["poem.txt"]),
        call("git_diff_staged", **here),
        call("git_commit", **here, message="Mend the wall"),
        call("git_log", **here, max_count=2),
        call("git_show", **here, revision="HEAD"),
        call("git_create_branch", **here, branch_name="spring"),
        call("git_checkout", **here, branch_name="spring"),
        call("git_branch", **here, branch_type="local"),
        call("git_diff", **here, target="main"),
        call("git_add", **here, files=["notes.txt"]),
        call("git_reset", **here),
        failing(call("git_checkout", **here, branch_name="no-such-branch")),
        failing(call("git_status", repo_path=str(folder.parent))),
    )


# Examples of ours.


def weather(_folder: Path) -> tuple[Step | Heard, ...]:
    """`mcp_trio.examples.weather`."""
    return (
        ask("ping"),
        ask("tools/list"),
        reporting(call("forecast", city="Oslo", days=3)),
        call("warmest", days=5),
        failing(call("forecast", city="Atlantis")),
        failing(call("forecast", city="Oslo", days="many", hours=1)),
        ask("resources/list"),
        ask("resources/templates/list"),
        read("weather://Lima/now"),
        failing(read("weather://../now")),
        ask("prompts/list"),
        get("plan_trip", city="Bergen", nights="3"),
        failing(get("plan_trip")),
        set_level("warning"),
        call("warmest", days=2),
    )


def sqlite(_folder: Path) -> tuple[Step | Heard, ...]:
    """`mcp_trio.examples.sqlite_explorer`, over its sample."""
    by_author = "SELECT title FROM book WHERE author = :author ORDER BY title"
    return (
        ask("ping"),
        ask("tools/list"),
        call("tables"),
        call("query", sql=by_author, parameters={"author": "Austen"}),
        call("query", sql="SELECT * FROM loan", limit=2),
        call("explain", sql="SELECT * FROM loan WHERE book = ?", parameters=[1]),
        failing(call("query", sql="DELETE FROM book")),
        failing(call("query", sql="SELEKT")),
        ask("resources/list"),
        ask("resources/templates/list"),
        read("sqlite://schema"),
        read("sqlite://table/missing"),
        failing(read("sqlite://table/nowhere")),
        ask("prompts/list"),
        get("analyse_table", table="reader"),
        complete("analyse_table", "table", "b"),
        complete("sqlite://table/{name}", "name", "m"),
    )


# The servers that the SDKs make, beside this file.


def sdk(_folder: Path) -> tuple[Step | Heard, ...]:
    """The "everything" servers: what `scenario` tells them, as far as it needs no cancellation."""
    contact = {"name": "Ada", "contactMethod": "phone", "phone": "1"}
    given = {"arg1": "hello", "arg2": "wörld"}
    return (
        ask("ping"),
        ask("tools/list"),
        call("test_simple_text"),
        call("test_image_content"),
        call("test_multiple_content_types"),
        failing(call("test_error_handling")),
        call("json_schema_2020_12_tool", **contact),
        failing(call("no_tool")),
        set_level("debug"),
        call("test_tool_with_logging"),
        reporting(call("test_tool_with_progress")),
        call("test_sampling", prompt="Which colour?"),
        call("test_list_roots"),
        call("test_ping"),
        ask("resources/list"),
        ask("resources/templates/list"),
        read(FACTS.static_text_uri),
        read(FACTS.static_binary_uri),
        read(FACTS.template.format(id="7")),
        failing(read("test://no-such-resource")),
        *watching(FACTS.watched_uri, call("test_update_watched_resource"), Heard(UPDATED)),
        call("test_trigger_tool_change"),
        Heard(TOOLS_LIST_CHANGED),
        ask("prompts/list"),
        get("test_prompt_with_arguments", **given),
        failing(get("no_prompt")),
        complete("test_prompt_with_arguments", "arg1", "par"),
        call("test_heard"),
    )


STORIES: Final[Mapping[str, Callable[[Path], Sequence[Step | Heard]]]] = {
    "everything": everything,
    "filesystem": filesystem,
    "memory": memory,
    "time": time,
    "git": git,
    "weather": weather,
    "sqlite": sqlite,
    "Python 1": sdk,
    "Python 2": sdk,
    "TypeScript 1": sdk,
    "TypeScript 2": sdk,
}

# Stories that take a client that can cancel: chapters of the scenario.
CHAPTERS: Final[Mapping[str, Sequence[Chapter]]] = {
    "asking": (
        scenario.shake_hands,
        scenario.report_progress,
        scenario.cancel,
        server_requests.sample,
        server_requests.sample_with_progress,
        server_requests.give_up_sampling,
        server_requests.list_the_roots,
    ),
}

# A text of 4 MiB, there and back where the server has a tool for it.
BIG_TEXT: Final = "x" * BIG_TEXT_CHARS
BIG: Final[Mapping[str, Step]] = {
    "everything": call("echo", message=BIG_TEXT),
    **dict.fromkeys(
        ("Python 1", "Python 2", "TypeScript 1", "TypeScript 2"),
        call("json_schema_2020_12_tool", name=BIG_TEXT, phone="1"),
    ),
    **dict.fromkeys(
        ("filesystem", "memory", "time", "git"), Step("ping", {"_meta": {"padding": BIG_TEXT}})
    ),
}


async def tell(name: str, folder: Path, session: Session, host: Host) -> None:
    """Tell the story of that name, to a server that has that folder.

    Raises:
        Unexpected: The server did not do what it should.
    """
    chapters: Iterable[Chapter] = CHAPTERS.get(name) or STORIES[name](folder)
    for chapter in chapters:
        await chapter(session, host)
