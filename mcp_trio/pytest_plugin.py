"""The pytest plugin: recordings as regression tests, and fixtures to test servers and clients.

    @pytest.mark.mcp_recording("trip.mcprec.jsonl")
    def test_trip(mcp_replay):
        mcp_replay(server)

pytest loads the plugin automatically. All fixtures are synchronous, so they work under pytest-trio,
under anyio's plugin with its Trio backend, and in plain tests, also in tests that call `trio.run`.
The package itself is imported only when a test uses a fixture.
"""

import os
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, get_args

import pytest

if TYPE_CHECKING:
    import trio.testing

    from mcp_trio import Client, Server
    from mcp_trio._client.client import ClientOptions
    from mcp_trio._client.connect import Target
    from mcp_trio.recording import InputsReport, ReplayReport
    from mcp_trio.testing import MockServer
    from mcp_trio.transports import Channel

Mode = Literal["strict", "outbound", "inputs"]
RecordMode = Literal["none", "once", "new", "all"]
Result = TypeVar("Result")

_MARK: Final = "mcp_recording"
_FIXTURES: Final = frozenset({"mcp_replay", "mcp_mock", "mcp_recorder"})
_MARK_HELP: Final = (
    f"{_MARK}(path, mode='strict', ignore=()): the recording that the fixtures mcp_replay, mcp_mock"
    " and mcp_recorder use, relative to the test's file. mode: 'strict', 'outbound' (compare only"
    " sent messages), or 'inputs' (send the recorded requests to a live server, and compare the"
    " responses except at the JSON paths in ignore)."
)
# File names of recordings. Characters that a file name may not have everywhere are replaced. A test
# name needs no digest if no other test name can result in the same file name, also where file names
# that differ only in case are the same.
_REPLACED_CHARACTER: Final = re.compile(r"[^\w.-]", re.ASCII)
_UNIQUE_NAME: Final = re.compile(r"[\w.-]*(\[[a-z0-9_.-]*\])?[\w.-]*", re.ASCII)
_NAME_CHARACTERS_MAX: Final = 120
_DIGEST_CHARACTERS: Final = 8

_RECORD_AGAIN: Final = (
    "record again with --mcp-record=all, or only outdated recordings with --mcp-record=new"
)
_RECORD_HELP: Final = (
    "Which recordings the fixture mcp_recorder makes: none (a missing recording fails the test),"
    " once (missing ones), new (missing and outdated ones), all. Default: none."
)

# The options of a client that are for a command only, or for a URL only.
_PROCESS_OPTIONS: Final = frozenset({"env", "inherit_env", "cwd", "stderr"})
_WEB_OPTIONS: Final = frozenset({"http", "headers", "token", "auth", "ssl_context"})

# Whether a test has passed, as far as it has run.
_HAS_PASSED: Final = pytest.StashKey[bool]()

# The recordings that this run has made.
_MADE_RECORDINGS: Final = pytest.StashKey[set[Path]]()


class UntrackedCallWarning(pytest.PytestWarning):
    """A replayed handler called a clock or a random source directly, not through its context."""


# Hooks.


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--mcp-record`."""
    group = parser.getgroup("mcp_trio", "recordings of the Model Context Protocol")
    group.addoption("--mcp-record", choices=get_args(RecordMode), default="none", help=_RECORD_HELP)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `mcp_recording`."""
    config.addinivalue_line("markers", _MARK_HELP)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose marker is invalid, or has no effect because no fixture uses it.

    A test with the fixture `request` is accepted, because it may request another fixture later.
    """
    marker = item.get_closest_marker(_MARK)
    if marker is None:
        return
    _marker_arguments(marker)
    if not {*_FIXTURES, "request"} & set(getattr(item, "fixturenames", ())):
        fixtures = ", ".join(sorted(_FIXTURES))
        text = f"the marker {_MARK} has no effect without one of the fixtures {fixtures}"
        pytest.fail(text, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[None]"
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether the test has passed, for the fixtures that are torn down after it."""
    report = yield
    if call.when == "call":
        item.stash[_HAS_PASSED] = report.passed
    return report


# The marker.


def _marker_arguments(marker: pytest.Mark) -> "tuple[str, Mode, Sequence[str]]":
    """Return path, mode and ignored paths of a marker; fail the test if they are invalid."""
    try:
        return _checked_arguments(*marker.args, **marker.kwargs)
    except (TypeError, ValueError) as error:
        # A wrong argument raises TypeError with the name of the function, which users do not know.
        text = str(error).replace("_checked_arguments()", _MARK)
        pytest.fail(f"{_MARK}: {text}", pytrace=False)


def _checked_arguments(
    path: str | os.PathLike[str], mode: Mode = "strict", ignore: str | Sequence[str] = ()
) -> "tuple[str, Mode, Sequence[str]]":
    if mode not in get_args(Mode):
        raise ValueError(f"unknown mode {mode!r}: one of {', '.join(get_args(Mode))}")
    if ignore and mode != "inputs":
        raise ValueError("ignore is for mode='inputs'")
    return os.fspath(path), mode, (ignore,) if isinstance(ignore, str) else tuple(ignore)


class _RecordingPaths:
    """The paths of a test's recordings, and the options from its marker."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        marker = request.node.get_closest_marker(_MARK)
        self._folder: Path = request.path.parent
        # Not from the node id: parameters may have "::" in it, and plugins add a suffix to it.
        named = (pytest.Class, pytest.Item)
        self._test = [each.name for each in request.node.listchain() if isinstance(each, named)]
        self._file = request.path.stem
        self._marked: str | None = None
        self.mode: Mode = "strict"
        self.ignore: Sequence[str] = ()
        if marker is not None:
            self._marked, self.mode, self.ignore = _marker_arguments(marker)

    def given_or_marked_path(self, path: str | os.PathLike[str] | None) -> Path:
        """Return `path`, or else the path from the marker, in the folder of the test's file."""
        __tracebackhide__ = True
        path = self._marked if path is None else path
        if path is None:
            raise AssertionError(
                f"no recording given: pass a path, or mark the test with {_MARK}(path)"
            )
        return self._folder / path

    def path_for_test(self, label: str) -> Path:
        """Return the path from the marker, or else a path named after the test and `label`."""
        if self._marked is not None and not label:
            return self._folder / self._marked
        names = [*self._test, label] if label else self._test
        return self._folder / "recordings" / self._file / f"{_file_name(names)}.mcprec.jsonl"


def _file_name(names: Sequence[str]) -> str:
    """Return a file name for a test, with a digest if other tests could have the same file name."""
    name = ".".join(names)
    file_name = _REPLACED_CHARACTER.sub("-", name).removesuffix("-")[:_NAME_CHARACTERS_MAX]
    if len(name) <= _NAME_CHARACTERS_MAX and _UNIQUE_NAME.fullmatch(name):
        return file_name
    digest = sha256(name.encode(errors="surrogatepass")).hexdigest()
    return f"{file_name}-{digest[:_DIGEST_CHARACTERS]}"


# Fixtures.


@pytest.fixture
def mcp_client() -> "Callable[..., Client]":
    """Make a client of a server object, a command or a URL.

    async with mcp_client(server) as client:
        assert await client.list_tools()

    The options are those of `mcp_trio.Client`.
    """

    def connect(target: "Target", **options: "Unpack[ClientOptions]") -> "Client":
        from mcp_trio import Client

        return Client(target, **options)

    return connect


@pytest.fixture
def mcp_replay(request: pytest.FixtureRequest) -> "Replay":
    """Replay a recording against a server, and fail the test at the first difference.

    @pytest.mark.mcp_recording("trip.mcprec.jsonl")
    def test_trip(mcp_replay):
        mcp_replay(server)
    """
    return Replay(request)


@pytest.fixture
def mcp_mock(request: pytest.FixtureRequest) -> "Iterator[Mock]":
    """Make a mock server that gives the responses of a recording.

    async with Client(mcp_mock("trip.mcprec.jsonl")) as client:
        assert await client.list_tools()
    """
    mock = Mock(request)
    yield mock
    if request.node.stash.get(_HAS_PASSED, False):
        mock.check()


@pytest.fixture
def mcp_recorder(request: pytest.FixtureRequest) -> "Recorder":
    """Make a client whose session is recorded; in later runs, a mock responds from the recording.

    async with mcp_recorder(["npx", "-y", "some-server"]) as client:
        assert await client.list_tools()

    The option --mcp-record decides when a recording is made.
    """
    return Recorder(request)


@pytest.fixture
def mcp_clock() -> "trio.testing.MockClock":
    """Return a Trio clock that jumps to the next deadline whenever all tasks are blocked.

    pytest-trio runs the test with this clock. Elsewhere pass it to `trio.run(…, clock=mcp_clock)`,
    or to anyio's plugin: `def anyio_backend(mcp_clock): return "trio", {"clock": mcp_clock}`. The
    clock does not wait for threads or subprocesses, which run in real time.
    """
    import trio.testing

    return trio.testing.MockClock(autojump_threshold=0)


class Replay:
    """The value of the fixture `mcp_replay`; a call replays a recording."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._paths = _RecordingPaths(request)
        self._node: pytest.Item = request.node

    def __call__(
        self,
        server: "Server | str",
        path: str | os.PathLike[str] | None = None,
        *,
        repeat: int = 0,
        allow_damaged: bool = False,
        all_divergences: bool = False,
    ) -> "ReplayReport | InputsReport":
        """Replay the marker's recording, or the one at `path`, against `server`.

        `server` is a server, or the name of one: `desk.py`, relative to the test's file, or
        `package.module`; both may end in `:object`. If a server is a variable of a module, and was
        not changed after its module made it, the replay imports it anew together with the other
        modules of its folder or package, so that replays do not share state. After the replay,
        `sys.modules` has the earlier modules again.

        With `repeat`, the recording is then replayed with that many seeds of the scheduler, each
        with two seeds of Python's hashes, in two processes. The server must then be a variable of a
        module. `allow_damaged` and `all_divergences` are those of `mcp_trio.recording.replay`; mode
        "inputs" always finds all differences.

        The call returns when the replays have finished, also inside a Trio program. Calls that a
        replay cannot repeat are reported as `UntrackedCallWarning`. With mode "inputs" `server` may
        be any target of a client, such as a command or the URL of another process.
        """
        __tracebackhide__ = True
        file, mode = self._paths.given_or_marked_path(path), self._paths.mode
        if mode == "inputs":
            if repeat:
                raise AssertionError('repeat is not for mode="inputs"')
            from mcp_trio.recording import replay_live

            ignore = self._paths.ignore
            live = partial(replay_live, file, server, ignore=ignore, allow_damaged=allow_damaged)
            inputs_report = _or_fail(lambda: _outside_trio(live))
            if not inputs_report.is_same:
                raise AssertionError(str(inputs_report))
            return inputs_report
        target = self._target(server) if isinstance(server, str) else server
        options = {"allow_damaged": allow_damaged, "all_divergences": all_divergences}
        report = _or_fail(partial(_replay, file, target, mode, **options))
        if repeat:
            _replay_repeatedly(file, target, mode, repeat, allow_damaged=allow_damaged)
        for untracked_call in report.untracked_calls:
            self._node.warn(UntrackedCallWarning(str(untracked_call)))
        return report

    def all(
        self, server: "Server | str", folder: str | os.PathLike[str], *, repeat: int = 0
    ) -> "list[ReplayReport | InputsReport]":
        """Replay all recordings of servers in `folder` and its folders; fail if there are none."""
        __tracebackhide__ = True
        from mcp_trio._recorder.files import recordings_in

        path = self._paths.given_or_marked_path(folder)
        files = recordings_in(path, role="server")
        if not files:
            raise AssertionError(f"nothing was compared: {path} holds no recording of a server")
        return [self(server, file, repeat=repeat) for file in files]

    def _target(self, text: str) -> str:
        """Return the target `text` with the path of its file, if it has one, made absolute."""
        is_file = text.partition(":")[0].endswith(".py")
        return os.fspath(self._paths.given_or_marked_path(text)) if is_file else text


class Mock:
    """The value of the fixture `mcp_mock`; a call makes a mock server from a recording."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._paths = _RecordingPaths(request)
        self._strict: list[MockServer] = []

    def __call__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        strict: bool = False,
        user: str | None = None,
        tokens: Mapping[str, str] | None = None,
    ) -> "MockServer":
        """Return a mock server, made by `mcp_trio.testing.mock_server`, as a target for `Client`.

        `await nursery.start(mock.serve_http)` serves the mock to any other client, too. With
        `strict` a test that has passed fails at its end if the client sent a request that is not
        recorded, or did not send one that is. In the recording of a server with authentication,
        `user` or `tokens` choose whose results a client gets.
        """
        __tracebackhide__ = True
        from mcp_trio.testing import mock_server

        path = self._paths.given_or_marked_path(path)
        mock = _or_fail(partial(mock_server, path, user=user, tokens=tokens))
        if strict:
            self._strict.append(mock)
        return mock

    def check(self) -> None:
        """Fail the test if the requests to a strict mock differ from its recording."""
        for mock in self._strict:
            _or_fail(mock.check)


class Recorder:
    """The value of the fixture `mcp_recorder`; a call makes a recorded or a mocked client."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._paths = _RecordingPaths(request)
        self._mode: RecordMode = request.config.option.mcp_record
        self._made = request.config.stash.setdefault(_MADE_RECORDINGS, set())
        self._used: set[Path] = set()

    def __call__(
        self, target: "Target", *, label: str = "", **options: "Unpack[ClientOptions]"
    ) -> "RecordedClient":
        """Return a client of `target`, or of its recorded responses, for `async with`.

        The path of the recording is the marker's, or in `recordings/` beside the test's file, named
        after the test and, for a second client of one test, `label`. `--mcp-record` decides when
        the recording is made; it is kept only if the block ends without an exception. If the target
        is a server object, the server makes the recording, which is replayed against the server in
        the strict mode: at the end of the block, and in later runs before the client gets the
        recorded responses. With any other target, the client makes the recording. A request that is
        not recorded fails the test.
        """
        __tracebackhide__ = True
        path = self._paths.path_for_test(label)
        if path in self._used:
            raise AssertionError(
                f"{path.name} has another client already: pass a label= for the second client"
            )
        self._used.add(path)
        # Of tests with one path, the first makes the recording, and the others have to match it.
        mode = "once" if path in self._made else self._mode
        return RecordedClient(target, path, mode, self._made, {**options})


class RecordedClient:
    """The asynchronous context manager that `Recorder` returns; its value is a `Client`."""

    def __init__(
        self,
        target: "Target",
        path: Path,
        mode: RecordMode,
        made: set[Path],
        options: Mapping[str, Any],
    ) -> None:
        from mcp_trio import Server

        self._target = target
        self._server = target if isinstance(target, Server) else None
        self._path = path
        self._temporary_path = path.with_name(f".{path.name}")
        self._mode: RecordMode = mode
        self._made = made
        self._options = options
        self._client: Client | None = None
        self._mock: MockServer | None = None

    async def __aenter__(self) -> "Client":
        """Connect to the target, or to the mock made from its recording."""
        __tracebackhide__ = True
        if self._client is not None:
            raise RuntimeError("a recorded client connects once: make another one, with a label=")
        from mcp_trio import Client
        from mcp_trio.recording import RecordOptions
        from mcp_trio.testing import mock_server

        if not await self._must_record():
            self._mock = _or_fail(partial(mock_server, self._path))
            of_target = _PROCESS_OPTIONS | _WEB_OPTIONS
            options = {name: self._options[name] for name in self._options.keys() - of_target}
            self._client = Client(self._mock, **options)
        else:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._server is not None:
                server = _RecordingServer(self._server, self._temporary_path)
                self._client = Client(server, **self._options)
            else:
                record = RecordOptions(self._temporary_path, overwrite=True)
                self._client = Client(self._target, record=record, **self._options)
        try:
            return await self._client.__aenter__()
        except BaseException:
            self._temporary_path.unlink(missing_ok=True)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client; keep the new recording, or fail if a request was not recorded."""
        __tracebackhide__ = True
        assert self._client is not None
        await self._client.__aexit__(kind, error, traceback)
        if self._mock is None:
            if error is None:
                self._temporary_path.replace(self._path)
                self._made.add(self._path)
                # One that depends on earlier tests would otherwise fail only in the next run.
                if self._server is not None:
                    _or_fail(partial(_replay, self._path, self._server, "strict"))
            else:
                self._temporary_path.unlink(missing_ok=True)
        elif self._mock.unrecorded and error is None:
            lines = "\n".join(self._mock.unrecorded)
            raise AssertionError(
                f"the test made requests that are not recorded in {self._path}:\n{lines}\n"
                f"{_RECORD_AGAIN}"
            )

    async def _must_record(self) -> bool:
        """Return whether to make the recording; fail if it is missing and must not be made.

        Before a kept recording of a server object is used, it is replayed against that server.
        """
        __tracebackhide__ = True
        from mcp_trio.errors import NothingCompared, RecordingError, ReplayDivergence

        if self._mode == "all":
            return True
        if not self._path.exists():
            if self._mode == "none":
                raise AssertionError(
                    f"no recording at {self._path}: run pytest with --mcp-record=once"
                )
            return True
        if self._mode == "new":
            # A recording is outdated if the target no longer gives the recorded responses.
            try:
                if self._server is None:
                    return not (await self._replay_inputs()).is_same
                _replay(self._path, self._server, "strict")
            except (NothingCompared, RecordingError, ReplayDivergence):
                return True
            return False
        if self._server is not None:
            _or_fail(partial(_replay, self._path, self._server, "strict"))
        return False

    async def _replay_inputs(self) -> "InputsReport":
        """Compare the recording with the target, which is opened with the client's options."""
        from mcp_trio._client.connect import ProcessOptions, WebOptions, open_target
        from mcp_trio.limits import DEFAULT_LIMITS
        from mcp_trio.recording import replay_live_async

        options, target = self._options, self._target
        limits = options.get("limits", DEFAULT_LIMITS)
        process = {name: options[name] for name in options.keys() & _PROCESS_OPTIONS}
        web = {name: options[name] for name in options.keys() & _WEB_OPTIONS}
        if process or web:
            opened = await open_target(
                target, process=ProcessOptions(**process), web=WebOptions(**web), limits=limits
            )
            target = opened.channel
        return await replay_live_async(self._path, target, limits=limits)


class _RecordingServer:
    """A server object that records its one session."""

    def __init__(self, server: "Server", path: Path) -> None:
        self._server = server
        self._path = path

    async def serve(self, channel: "Channel") -> None:
        """Serve one session, and record it."""
        from mcp_trio.recording import RecordOptions

        record = RecordOptions(self._path, overwrite=True)  # a killed test may have left a file
        await self._server.serve(channel, record=record)


# Failing the test.


def _replay(
    path: Path,
    server: "Server | str",
    mode: Literal["strict", "outbound"],
    *,
    allow_damaged: bool = False,
    all_divergences: bool = False,
) -> "ReplayReport":
    """Replay a recording as `replay` does, if possible against a server that is imported anew."""
    from mcp_trio.recording import replay

    def work(fresh: "Server") -> "ReplayReport":
        return replay(
            path, fresh, mode=mode, allow_damaged=allow_damaged, all_divergences=all_divergences
        )

    return _outside_trio(partial(_with_fresh_server, server, work))


def _with_fresh_server(server: "Server | str", work: "Callable[[Server], Result]") -> Result:
    """Call `work` with a server that is imported anew; with the given one if that is not possible.

    The given server is used if it is no variable of a module that can be imported, or if it lists
    other tools, prompts or resources than the new one: a test may have changed it.
    """
    from mcp_trio._replay.targets import TargetError, fresh_server, target_of
    from mcp_trio._server.sessions import sessions_of

    if isinstance(server, str):
        with fresh_server(server) as fresh:
            return work(fresh)
    target = target_of(server)
    if target is not None:
        module = target.partition(":")[0]
        file = getattr(sys.modules[module], "__file__", None)
        with suppress(TargetError), fresh_server(target) as fresh:
            is_same_file = getattr(sys.modules[module], "__file__", None) == file
            if is_same_file:
                registry, given = sessions_of(fresh).registry, sessions_of(server).registry
                if registry.list_digests() == given.list_digests():
                    return work(fresh)
    return work(server)


def _replay_repeatedly(
    path: Path,
    server: "Server | str",
    mode: Literal["strict", "outbound"],
    repeat: int,
    *,
    allow_damaged: bool,
) -> None:
    __tracebackhide__ = True
    from mcp_trio._replay.many_replays import ReplayJob, replay_under_hash_seeds
    from mcp_trio._replay.targets import target_of

    target = server if isinstance(server, str) else target_of(server)
    if target is None:
        raise AssertionError(
            "repeat needs a server that other processes can import: pass 'file.py:server', or a"
            " server that is a variable of a module other than the test's"
        )
    job = ReplayJob(
        files=[os.fspath(path)],
        target=target,
        repeat=repeat,
        mode=mode,
        allow_damaged=allow_damaged,
    )
    outcomes = _or_fail(partial(replay_under_hash_seeds, job))
    failed = [outcome for outcome in outcomes if outcome.status != "same"]
    if failed:
        first = failed[0]
        raise AssertionError(
            f"{len(failed)} of {len(outcomes)} replays differ; with scheduler seed {first.seed} and"
            f" hash seed {first.hash_seed}:\n{first.text}"
        )


def _or_fail(work: Callable[[], Result]) -> Result:
    """Return the result of `work`; fail the test with the text of an `MCPError` that it raises.

    The failure is raised after the `except` block, so that pytest shows no chained traceback.
    """
    __tracebackhide__ = True
    from mcp_trio import MCPError

    try:
        return work()
    except MCPError as error:
        text = str(error)
    raise AssertionError(text)


def _outside_trio(work: Callable[[], Result]) -> Result:
    """Call `work`, which calls `trio.run`; within a Trio run, call it in a thread, and wait."""
    import trio

    if not trio.lowlevel.in_trio_run():
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()
