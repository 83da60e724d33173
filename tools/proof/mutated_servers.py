"""Change six servers in 200 places, and let a replay find each change.

    python tools/proof/mutated_servers.py
    python tools/proof/mutated_servers.py --server weather --mutant 47

A script with the times of its requests drives each server, in virtual time. The session is
recorded, and replayed with each mutant: the server's source with one mistake of `mutations.py`.

The record at which the replay has to diverge is found without a replay: the mutant serves the same
script live, under the same clock, schedule and random seed. Up to the mistake both sessions are the
same, so the first record in which their recordings differ is the *expected record*. The kinds of
results:

- found: the replay diverged at the expected record
- in request: at the first record in which the diverging request differs from its live one; other
  requests differ before it, because the mutant had sent or done something at another time
- next turn: at the first record of the next turn of the event loop: in one turn tasks run in any
  order, so a task that is ready, and was not when recorded, is late only after it
- elsewhere: the replay diverged, but not there
- missed: the live sessions differ, and the replay was the same
- false: the live sessions are the same, and the replay diverged
- not run: the recorded session did not run the changed statement, as a trace of its lines tells
- outside: the session ran it, and a replay does not, by the same trace: an effect, the lifespan
- equal: the mutant's live session has the same recording, byte for byte
- unused: only a list of the server has changed, and no request uses it; the report names it

Prints a table and a line for each mutant. Exits with 1 if one is missed, false or elsewhere.
"""

import argparse
import ast
import logging
import math
import re
import secrets
import signal
import sys
import tempfile
import threading
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

import attrs
import msgspec
import trio
import trio.testing
from mutations import Edit, drawn, edits

sys.path.append(str(Path(__file__).resolve().parents[1]))

from memory_sessions import scripted_session

from mcp_trio import Server
from mcp_trio._journal.records import BEGINS_STEP, HAS_WAITED, NOW, ValueBody, decode_body
from mcp_trio._replay.trace import Trace, is_untracked_call, load_trace, message_fields
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import ReplayDivergence
from mcp_trio.recording import body_bytes, replay
from mcp_trio.testing import WirePeer

HERE: Final = Path(__file__).resolve().parent
EXAMPLES: Final = HERE.parents[1] / "mcp_trio" / "examples"

SESSION_SECONDS_MAX: Final = 60.0  # of virtual time, after the last request
REAL_SECONDS_MAX: Final = 30
ANSWER_SECONDS: Final = 0.004

Params: TypeAlias = dict[str, Any]


# The servers and their scripts --------------------------------------------------------------------


@attrs.frozen
class Request:
    """A request of the script, `at` so many milliseconds; `cancelled` as many after the begin."""

    at: float
    method: str
    params: Params
    cancelled: float = math.inf


@attrs.frozen
class Subject:
    """A server and the script of its session.

    `variable` names the server in its module. `lists` tells whether the client asks for the lists.
    `other_functions` of its module are no part of the server.
    """

    name: str
    source: Path
    module: str
    variable: str
    script: Sequence[Request]
    lists: bool = True
    other_functions: frozenset[str] = frozenset()


def tool(at: float, name: str, cancelled: float = math.inf, /, **arguments: Any) -> Request:
    return Request(at, "tools/call", {"name": name, "arguments": arguments}, cancelled)


def resource(at: float, uri: str) -> Request:
    return Request(at, "resources/read", {"uri": uri})


def prompt(at: float, name: str, /, **arguments: str) -> Request:
    return Request(at, "prompts/get", {"name": name, "arguments": arguments})


def complete(at: float, name: str, argument: str, value: str) -> Request:
    params = {
        "ref": {"type": "ref/prompt", "name": name},
        "argument": {"name": argument, "value": value},
    }
    return Request(at, "completion/complete", params)


SUBJECTS: Final = (
    Subject(
        "ticket desk",
        EXAMPLES / "ticket_desk.py",
        "mcp_trio.examples.ticket_desk",
        "locked_desk",
        (
            tool(0, "buy", buyer="Ann"),
            tool(5, "buy", buyer="Bo"),
            tool(100, "buy", buyer="Cy"),
            tool(200, "tickets_left"),
        ),
        other_functions=frozenset({"buy_two", "record"}),
    ),
    Subject(
        "warehouse",
        HERE / "warehouse_server.py",
        "warehouse_server",
        "server",
        (
            tool(0, "ship", item="pen", count=2),
            tool(1, "ship", item="ink", count=1, account="acme"),
            tool(1, "ship", item="pen", count=3),
            tool(2, "ship", item="desk", count=1),
            tool(3, "ship", item="ink", count=2),
            tool(3, "stock_of", item="pen"),
            tool(40, "ship", item="desk", count=9),
            tool(70, "ship", 15, item="desk"),
            tool(100, "ship", item="pen", count=5),
            tool(150, "ship", item="pen", count=6),
            tool(200, "take_inventory", items=["pen", "ink", "stapler", "desk"]),
            tool(220, "hold", 10, item="desk", seconds=5.0),
            tool(222, "stock_of", item="desk"),
            tool(250, "stock_of", item="desk"),
            tool(260, "hold", item="pen", seconds=0.02),
            tool(300, "report"),
            tool(310, "stock_of", item="desk"),
        ),
    ),
    Subject(
        "builds",
        HERE / "build_server.py",
        "build_server",
        "server",
        (
            tool(0, "build", package="core", files=["a", "bb", "ccc", "dddd"], level=2),
            tool(1, "wait_for", package="core", seconds=1.0),
            tool(1, "wait_for_count", count=2),
            tool(2, "wait_for", package="later", seconds=0.01),
            tool(20, "build", package="web", files=["x", "yyyyyy", "z"]),
            tool(60, "build", package="broken", files=["fine", "bad", "other"]),
            tool(80, "build", 5, package="slow", files=["long" * 20]),
            tool(120, "fetch", package="flaky-one"),
            tool(120, "fetch", package="flaky-two"),
            tool(160, "fetch", package="steady"),
            tool(170, "fetch", package="broken"),
            tool(200, "fetch_fastest", package="core"),
            tool(220, "fetch_fastest", package="core", order="far"),
            tool(300, "deploy", package="core", hosts=2),
            tool(301, "deploy", package="web"),
            resource(340, "build://core/state"),
            resource(341, "build://none/state"),
        ),
    ),
    Subject(
        "concierge",
        HERE / "concierge_server.py",
        "concierge_server",
        "server",
        (
            tool(0, "reserve_table", place="Asado"),
            tool(1, "reserve_table", place="Curry"),
            tool(30, "reserve_table", place="Bistro"),
            tool(60, "reserve_table", place="Nowhere"),
            tool(90, "recommend", places=["Curry", "Bistro", "Asado"]),
            tool(100, "recommend", places=["Bistro"]),
            tool(120, "folders"),
            tool(150, "weigh", parcels=["book", "lamp", "bottle"]),
            tool(160, "phone", place="Curry"),
            tool(170, "phone", place="Nowhere"),
            resource(200, "concierge://book"),
            resource(210, "concierge://Asado/tables"),
            resource(215, "concierge://Nowhere/tables"),
            prompt(220, "invite", name="Ada"),
            prompt(225, "invite", name="Alan", time="evening"),
            complete(230, "invite", "name", "A"),
        ),
    ),
    Subject(
        "weather",
        EXAMPLES / "weather.py",
        "mcp_trio.examples.weather",
        "server",
        (
            tool(0, "forecast", city="Oslo", days=3),
            tool(2, "warmest"),
            tool(30, "forecast", city="Paris"),
            tool(60, "forecast", 8, city="Lima", days=14),
            resource(90, "weather://Pune/now"),
            prompt(100, "plan_trip", city="Bergen"),
        ),
        lists=False,
    ),
    Subject(
        "sqlite",
        EXAMPLES / "sqlite_explorer.py",
        "mcp_trio.examples.sqlite_explorer",
        "server",
        (
            tool(0, "tables"),
            tool(10, "query", sql="SELECT * FROM book", limit=2),
            tool(20, "query", sql="SELECT title FROM book WHERE id = ?", parameters=[1]),
            tool(30, "query", sql="SELECT nonsense"),
            tool(40, "explain", sql="SELECT * FROM book, loan ORDER BY 1"),
            resource(50, "sqlite://schema"),
            resource(60, "sqlite://table/book"),
            resource(70, "sqlite://table/nothing"),
            prompt(80, "analyse_table", table="book"),
            complete(90, "analyse_table", "table", "b"),
        ),
    ),
)


# Modules ------------------------------------------------------------------------------------------


def server_of(subject: Subject, number: int | None = None) -> Server:
    """Run a server's module anew, with the edit of this number; return its server."""
    tree = ast.parse(subject.source.read_text(encoding="utf-8"))
    if number is not None:
        edits(tree)[number].apply()
        ast.fix_missing_locations(tree)
    module = types.ModuleType(subject.module)
    module.__file__ = str(subject.source)
    sys.modules[subject.module] = module
    exec(compile(tree, str(subject.source), "exec"), vars(module))
    server = vars(module)[subject.variable]
    if not isinstance(server, Server):
        raise TypeError(f"no server: {server!r}")
    return server


# Live sessions ------------------------------------------------------------------------------------


def record(subject: Subject, server: Server, path: Path) -> None:
    """Record the session of the script, always under the same clock, schedule and seed."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    with seeded_schedule(0), fixed_seed(), standing_still_for_threads(clock):
        trio.run(_serve_and_call, subject, server, path, clock=clock)


@contextmanager
def fixed_seed() -> Generator[None]:
    """Let recordings begin with the same seed for the handlers' random numbers."""
    randbits = secrets.randbits
    secrets.randbits = lambda k: min(k, 1)
    try:
        yield
    finally:
        secrets.randbits = randbits


@contextmanager
def standing_still_for_threads(clock: trio.testing.MockClock) -> Generator[None]:
    """Let virtual time stand still while a thread computes, however long that takes.

    A thread that waits for a call in the event loop does not compute.
    """
    run_sync, run = trio.to_thread.run_sync, trio.from_thread.run
    computing = 0

    def change(by: int) -> None:
        nonlocal computing
        computing += by
        clock.autojump_threshold = math.inf if computing > 0 else 0

    async def counted_run_sync(*args: Any, **keywords: Any) -> Any:
        change(+1)
        try:
            return await run_sync(*args, **keywords)
        finally:
            change(-1)

    def counted_run(function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        async def call() -> Any:
            change(-1)
            try:
                return await function(*args)
            finally:
                change(+1)

        return run(call)

    thread: Any = trio.to_thread
    event_loop: Any = trio.from_thread
    thread.run_sync, event_loop.run = counted_run_sync, counted_run
    try:
        yield
    finally:
        thread.run_sync, event_loop.run = run_sync, run


async def _serve_and_call(subject: Subject, server: Server, path: Path) -> None:
    async with scripted_session(server, path) as (peer, _):
        await _Client(subject, peer).run()


@attrs.define(eq=False)
class _Client:
    """A client that sends the requests of a script at their times, and answers the server."""

    subject: Subject
    peer: WirePeer
    open: set[int] = attrs.field(factory=set[int], init=False)
    all_answered: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self) -> None:
        capabilities: Params = {"roots": {}, "sampling": {}, "elicitation": {}}
        await self.peer.handshake(protocol_version="2025-11-25", capabilities=capabilities)
        script = [*LISTS, *self.subject.script] if self.subject.lists else self.subject.script
        self.open |= set(range(len(script)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer)
            for number, request in enumerate(script):
                nursery.start_soon(self._send, number, request)
            with trio.move_on_after(SESSION_SECONDS_MAX):
                await self.all_answered.wait()
            nursery.cancel_scope.cancel()

    async def _send(self, number: int, request: Request) -> None:
        await trio.sleep(request.at / 1000)
        params = {**request.params, "_meta": {"progressToken": number}}
        await self.peer.send_request(request.method, params, id=number)
        if request.cancelled < math.inf:
            await trio.sleep(request.cancelled / 1000)
            self._end(number)
            await self.peer.cancel(number)

    def _end(self, number: int) -> None:
        self.open.discard(number)
        if not self.open:
            self.all_answered.set()

    async def _answer(self) -> None:
        while True:
            message = await self.peer.receive()
            if "method" not in message:
                self._end(message["id"])
            elif "id" in message:
                await trio.sleep(ANSWER_SECONDS)
                await self.peer.send_result(message, answer_to(message))


LISTS: Final = tuple(
    Request(0, method, {})
    for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
)


def answer_to(message: Mapping[str, Any]) -> Params:
    """Answer what the server asks."""
    match message["method"]:
        case "elicitation/create":
            text = message["params"]["message"]
            if "Nowhere" in text:
                return {"action": "decline"}
            return {"action": "accept", "content": {"guests": len(text) % 3 + 1, "name": "Ada"}}
        case "sampling/createMessage":
            content = {"type": "text", "text": "Curry"}
            return {"role": "assistant", "model": "critic", "content": content}
        case "roots/list":
            return {"roots": [{"uri": "file:///home/b"}, {"uri": "file:///home/a"}]}
        case _:
            return {}


# The expected record ------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True):
    """A step, or a record without its number and without values of a wall clock."""

    kind: str
    lane: str | None
    time_ns: int
    ordinal: int | None = None
    has_waited: bool = False
    body: object = None


def events(trace: Trace) -> Iterator[tuple[int, Event]]:
    """Yield the events of a recording, each with the number of its record."""
    for item in trace.journal:
        if item.step_start == BEGINS_STEP:
            yield item.number, Event("step", item.lane, item.time_ns)
        if item.kind == "step" or is_untracked_call(item):
            continue
        body: object = body_bytes(item)
        if item.kind == "val" and (value := decode_body(item, ValueBody)).name == NOW:
            body = value.name
        has_waited = item.step_start == HAS_WAITED
        yield item.number, Event(item.kind, item.lane, item.time_ns, item.ordinal, has_waited, body)


def first_difference(recorded: Trace, mutated: Trace, request: str = "") -> int | None:
    """Return the number of the first record that differs; None if the journals are the same.

    With a `request`, the name of its lane, only the records of its lanes are compared.
    """

    def chosen(trace: Trace) -> Iterator[tuple[int, Event]]:
        for number, event in events(trace):
            if not request or (event.lane or "").partition(".")[0] == request:
                yield number, event

    for ours, theirs in zip_longest(chosen(recorded), chosen(mutated)):
        if ours is None:
            return None if request else recorded.journal[-1].number + 1
        if theirs is None or ours[1] != theirs[1]:
            return ours[0]
    return None


def first_use(recorded: Trace, mutated: Trace) -> int | None:
    """Return the first request that uses what the two servers list differently."""
    ours, theirs = recorded.opening.listed, mutated.opening.listed
    changed = {
        line.partition(" ")[2]
        for kind in {*ours, *theirs}
        for line in {*ours.get(kind, ())} ^ {*theirs.get(kind, ())}
    }
    patterns = [re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(name))) for name in changed]
    for item in recorded.journal:
        if item.kind == "in":
            params = message_fields(body_bytes(item) or b"").params
            reference = params.get("ref", {})
            names = [params.get("name"), params.get("uri"), reference.get("name")]
            if any(pattern.fullmatch(str(name)) for pattern in patterns for name in names):
                return item.number
    return None


# Traces of lines ----------------------------------------------------------------------------------


@contextmanager
def lines_of(source: Path) -> Generator[set[int]]:
    """Enter a block that collects the lines of a file that are run, in all threads."""
    file, lines = str(source), set[int]()

    def in_frame(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            lines.add(frame.f_lineno)
        return in_frame

    def in_process(frame: FrameType, event: str, argument: object) -> Any:
        return in_frame(frame, event, argument) if frame.f_code.co_filename == file else None

    threading.settrace(in_process)
    sys.settrace(in_process)
    try:
        yield lines
    finally:
        sys.settrace(None)
        threading.settrace(None)


# Mutants ------------------------------------------------------------------------------------------

GOOD: Final = ("found", "in request", "next turn", "not run", "outside", "equal", "unused")
BAD: Final = ("elsewhere", "missed", "false")


@attrs.frozen(kw_only=True)
class Result:
    """The result of a mutant: a word, the expected record, and that of the divergence."""

    subject: Subject
    number: int
    edit: Edit
    after: str
    word: str
    expected: int | None
    found: int | None
    text: str = ""


@attrs.frozen(kw_only=True)
class Recorded:
    """The recorded session of a server, and the lines that it and its replay have run."""

    subject: Subject
    folder: Path
    trace: Trace
    live_lines: set[int]
    replayed_lines: set[int]

    @property
    def path(self) -> Path:
        return self.folder / "recorded.mcprec.jsonl"

    def result_of(self, number: int) -> Result | None:
        """Replay with a mutant, and compare with its own live session; None if it cannot begin."""
        tree = ast.parse(self.subject.source.read_text(encoding="utf-8"))
        edit = edits(tree)[number]
        edit.apply()
        after = edit.after()
        try:
            server = server_of(self.subject, number)
        except Exception:
            return None
        mutated_path = self.folder / "mutated.mcprec.jsonl"
        mutated_path.unlink(missing_ok=True)
        with time_limit(f"{self.subject.name}, mutant {number}: {edit.mistake}"):
            record(self.subject, server, mutated_path)
            mutated = load_trace(mutated_path)
            expected = first_difference(self.trace, mutated)
            if expected is None and self.trace.opening.listed != mutated.opening.listed:
                expected = first_use(self.trace, mutated)
            found, is_reported = self._replayed(server_of(self.subject, number))
        word = self._word(edit, mutated, expected, found, is_reported=is_reported)
        return Result(
            subject=self.subject,
            number=number,
            edit=edit,
            after=after,
            word=word,
            expected=expected,
            found=None if found is None else found.record,
            text=str(found or ""),
        )

    def _word(
        self,
        edit: Edit,
        mutated: Trace,
        expected: int | None,
        found: ReplayDivergence | None,
        *,
        is_reported: bool,
    ) -> str:
        if found is not None:
            if expected is None:
                return "false"
            if found.record == expected:
                return "found"
            request = (found.lane or "").partition(".")[0]
            first = first_difference(self.trace, mutated, request) if request else None
            if first == found.record:
                return "in request"
            return "next turn" if found.record == self._next_turn(expected) else "elsewhere"
        if expected is None and self.trace.opening.listed != mutated.opening.listed:
            return "unused" if is_reported else "missed"
        if edit.line not in self.live_lines:
            return "not run" if expected is None else "missed"
        if edit.line not in self.replayed_lines:
            return "outside"
        return "equal" if expected is None else "missed"

    def _next_turn(self, number: int) -> int | None:
        """Return the first record with a later time than the one of this number."""
        times = {item.number: item.time_ns for item in self.trace.journal}
        later = (other for other, time_ns in times.items() if time_ns > times.get(number, math.inf))
        return min(later, default=None)

    def _replayed(self, server: Server) -> tuple[ReplayDivergence | None, bool]:
        """Return the divergence, and whether a changed list is reported."""
        try:
            report = replay(self.path, server)
        except ReplayDivergence as divergence:
            return divergence, True
        return None, bool(report.list_changes)


@contextmanager
def time_limit(text: str) -> Generator[None]:
    """End the process if the block takes too long: a mutant may never end."""

    def end(*_: object) -> None:
        raise SystemExit(f"{text}: takes longer than {REAL_SECONDS_MAX} s")

    signal.signal(signal.SIGALRM, end)
    signal.alarm(REAL_SECONDS_MAX)
    try:
        yield
    finally:
        signal.alarm(0)


def record_subject(subject: Subject, folder: Path) -> Recorded:
    """Record a server; check that a second session is the same, and so is a replay."""
    path, again = folder / "recorded.mcprec.jsonl", folder / "again.mcprec.jsonl"
    with lines_of(subject.source) as live_lines:
        record(subject, server_of(subject), path)
    record(subject, server_of(subject), again)
    trace = load_trace(path)
    difference = first_difference(trace, load_trace(again))
    if difference is not None:
        raise SystemExit(f"{subject.name}: two live sessions differ at record {difference}")
    with lines_of(subject.source) as replayed_lines:
        replay(path, server_of(subject))
    return Recorded(
        subject=subject,
        folder=folder,
        trace=trace,
        live_lines=live_lines,
        replayed_lines=replayed_lines,
    )


def results_of(
    subject: Subject, count: int, seed: int, only: int | None = None
) -> Iterator[Result]:
    """Yield the results of so many mutants of a server that begin to serve, or of only one."""
    tree = ast.parse(subject.source.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        recorded = record_subject(subject, Path(folder))
        numbers = drawn(tree, seed, without=subject.other_functions)
        for number in numbers if only is None else [only]:
            if not count:
                return
            result = recorded.result_of(number)
            if result is not None:
                yield result
                count -= 1


# The report ---------------------------------------------------------------------------------------


def print_table(results: Sequence[Result]) -> None:
    words = (*GOOD, *BAD)
    print(f"{'server':14}{'mutants':>9}{''.join(f'{word:>11}' for word in words)}")
    for name in dict.fromkeys(result.subject.name for result in results):
        of_server = Counter(each.word for each in results if each.subject.name == name)
        row = "".join(f"{of_server[word]:>11}" for word in words)
        print(f"{name:14}{of_server.total():>9}{row}")
    total = Counter(each.word for each in results)
    row = "".join(f"{total[word]:>11}" for word in words)
    print(f"{'all':14}{total.total():>9}{row}")


def print_result(result: Result, *, is_full: bool) -> None:
    edit = result.edit
    where = f"{result.subject.name}:{edit.line}"
    records = "" if result.found is None else f"at {result.found}"
    if result.expected is not None and result.expected != result.found:
        records += f" instead of {result.expected}"
    print(f"{result.word:11}{result.number:>4} {where:18}{edit.mistake:24}{records}")
    print(f"{'':15}{_cut(edit.before)}  ->  {_cut(result.after)}", flush=True)
    if result.text and (is_full or result.word in BAD):
        print(result.text)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=200, help="of all servers together")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of mutants")
    parser.add_argument("--server", choices=[each.name for each in SUBJECTS], help="only this one")
    parser.add_argument("--mutant", type=int, help="only the one of this number, with its report")
    options = parser.parse_args()
    logging.getLogger("mcp_trio").setLevel(logging.CRITICAL + 1)  # handlers fail on purpose
    chosen = [each for each in SUBJECTS if options.server in {None, each.name}]
    results: list[Result] = []
    for index, subject in enumerate(chosen):
        share = math.ceil((options.mutants - len(results)) / (len(chosen) - index))
        for result in results_of(subject, share, options.seed, options.mutant):
            results.append(result)
            print_result(result, is_full=options.mutant is not None)
    print()
    print_table(results)
    is_short = options.mutant is None and len(results) < options.mutants
    sys.exit(is_short or any(result.word in BAD for result in results))


if __name__ == "__main__":
    main()
