"""The requests that clients send to each server, in order: one script per server.

Our client and the Python SDK run a script through their adapters; `scripted_host.py` writes its
requests as bytes. `environments.py` prepares each server's folder.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import scenario
from facts import FACTS
from sdk_adapter import MESSAGE, UPDATED, Host, Json, Rejected, Session, expect

ROOTS_LIST: Final = "roots/list"


@dataclass(frozen=True)
class Step:
    """A request; with `fails`, its answer is an error, or the failure of a tool."""

    method: str
    params: Json
    fails: bool = False

    async def __call__(self, session: Session, _host: Host) -> None:
        """Send the request through an adapter, and check whether it fails."""
        try:
            result = await SENDERS[self.method](session, self.params)
        except Rejected as error:
            result = {"isError": True, "rejection": str(error)}
        has_failed = isinstance(result, dict) and bool(result.get("isError"))
        expect(f"{self.method} {self.params} fails: {result}", has_failed, self.fails)


@dataclass(frozen=True)
class WaitFor:
    """Wait until the server has sent a notification or a request of this method."""

    method: str

    async def __call__(self, _session: Session, host: Host) -> None:
        await host.wait_for(lambda: host.has_received(self.method))
        expect(f"received {self.method}", host.has_received(self.method), expected=True)


ScriptStep: TypeAlias = Callable[[Session, Host], Awaitable[None]]


class ScriptHost(Host):
    """A host whose root is the server's folder, and which notes each `roots/list` request."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.roots = [folder.as_uri()]

    @property
    def roots(self) -> list[str]:
        self.receive(ROOTS_LIST, None)
        return self._roots

    @roots.setter
    def roots(self, roots: list[str]) -> None:
        self._roots = roots


# The call of the adapter for each method.


async def _call_tool(session: Session, params: Json) -> Json:
    report = None if "_meta" not in params else lambda _progress, _total, _message: None
    return await session.call_tool(params["name"], params["arguments"], report)


async def _complete(session: Session, params: Json) -> list[str]:
    argument = params["argument"]
    return await session.complete(params["ref"], argument["name"], argument["value"])


SENDERS: Final[Mapping[str, Callable[[Session, Any], Awaitable[Any]]]] = {
    "ping": lambda session, _: session.ping(),
    "tools/list": lambda session, _: session.list_tools(),
    "tools/call": _call_tool,
    "resources/list": lambda session, _: session.list_resources(),
    "resources/templates/list": lambda session, _: session.list_resource_templates(),
    "resources/read": lambda session, params: session.read_resource(params["uri"]),
    "resources/subscribe": lambda session, params: session.subscribe(params["uri"]),
    "resources/unsubscribe": lambda session, params: session.unsubscribe(params["uri"]),
    "prompts/list": lambda session, _: session.list_prompts(),
    "prompts/get": lambda session, params: session.get_prompt(params["name"], params["arguments"]),
    "completion/complete": _complete,
    "logging/setLevel": lambda session, params: session.set_level(params["level"]),
}


# The steps, in fewer words.


def ask(method: str) -> Step:
    """Return a request without parameters."""
    return Step(method, {})


def call(tool: str, **arguments: Any) -> Step:
    return Step("tools/call", {"name": tool, "arguments": arguments})


def read(uri: str) -> Step:
    return Step("resources/read", {"uri": uri})


def get(prompt: str, **arguments: str) -> Step:
    return Step("prompts/get", {"name": prompt, "arguments": arguments})


def set_level(level: str) -> Step:
    return Step("logging/setLevel", {"level": level})


def complete(ref: str, name: str, value: str) -> Step:
    """Return a completion of a prompt's or a template's argument."""
    by_uri, by_name = {"type": "ref/resource", "uri": ref}, {"type": "ref/prompt", "name": ref}
    params = {
        "ref": by_uri if "://" in ref else by_name,
        "argument": {"name": name, "value": value},
    }
    return Step("completion/complete", params)


def failing(step: Step) -> Step:
    """Return the step, expected to fail."""
    return replace(step, fails=True)


def reporting(step: Step) -> Step:
    """Return the call with a progress token."""
    meta = {"progressToken": step.params["name"]}
    return replace(step, params={**step.params, "_meta": meta})


def subscribed_to(uri: str, *steps: Step | WaitFor) -> tuple[Step | WaitFor, ...]:
    """Return the steps, with a subscription to the resource around them."""
    begin, end = (Step(f"resources/{what}", {"uri": uri}) for what in ("subscribe", "unsubscribe"))
    return begin, *steps, end


TOOLS_LIST_CHANGED: Final = "notifications/tools/list_changed"
BIG_TEXT_CHARS: Final = 4 * 1024 * 1024


# Published servers.


def everything(_folder: Path) -> tuple[Step | WaitFor, ...]:
    """Script for `@modelcontextprotocol/server-everything`, as far as 2024-11-05 goes.

    `get-env` is left out, as it shows the machine, and `get-resource-links`, which is newer.
    """
    document = "demo://resource/static/document/extension.md"
    text, blob = (f"demo://resource/dynamic/{kind}/1" for kind in ("text", "blob"))
    template = "demo://resource/dynamic/text/{resourceId}"
    return (
        # The server asks some time after the handshake.
        WaitFor(ROOTS_LIST),
        WaitFor(MESSAGE),
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
        *subscribed_to(
            document,
            call("toggle-subscriber-updates"),
            WaitFor(UPDATED),
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


def filesystem(folder: Path) -> tuple[Step | WaitFor, ...]:
    """`@modelcontextprotocol/server-filesystem`."""
    poem, copy = str(folder / "poem.txt"), str(folder / "drafts" / "copy.txt")
    return (
        WaitFor(ROOTS_LIST),
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


def memory(_folder: Path) -> tuple[Step | WaitFor, ...]:
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
        *subscribed_to(graph, call("create_entities", entities=[ada, engine]), WaitFor(UPDATED)),
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


def time(_folder: Path) -> tuple[Step | WaitFor, ...]:
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


def git(folder: Path) -> tuple[Step | WaitFor, ...]:
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


def weather(_folder: Path) -> tuple[Step | WaitFor, ...]:
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


def sqlite(_folder: Path) -> tuple[Step | WaitFor, ...]:
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


def sdk(_folder: Path) -> tuple[Step | WaitFor, ...]:
    """Script for the SDKs' "everything" servers: the scenario without cancellation."""
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
        *subscribed_to(FACTS.watched_uri, call("test_update_watched_resource"), WaitFor(UPDATED)),
        call("test_trigger_tool_change"),
        WaitFor(TOOLS_LIST_CHANGED),
        ask("prompts/list"),
        get("test_prompt_with_arguments", **given),
        failing(get("no_prompt")),
        complete("test_prompt_with_arguments", "arg1", "par"),
        call("test_received"),
    )


SCRIPTS: Final[Mapping[str, Callable[[Path], Sequence[Step | WaitFor]]]] = {
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

# Scripts for a client that can cancel: steps of the scenario.
SCENARIO_SCRIPTS: Final[Mapping[str, Sequence[ScriptStep]]] = {
    "asking": (
        scenario.check_capabilities,
        scenario.report_progress,
        scenario.cancel,
        scenario.sample,
        scenario.sample_with_progress,
        scenario.cancel_sampling,
        scenario.list_the_roots,
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


async def run_script(folder: Path, session: Session, host: Host) -> None:
    """Run the script with the name of the folder, in which the server runs."""
    name = folder.name
    steps: Iterable[ScriptStep] = SCENARIO_SCRIPTS.get(name) or SCRIPTS[name](folder)
    for step in steps:
        await step(session, host)
