"""The public servers that are ported to mcp_trio, and the requests that both versions answer.

The sources are on PyPI, each under the MIT licence; `servers/NAME.patch` is the port.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

ANSWERS: Final = {
    "statistical_operation_type": "median",
    "matrix_operation_type": "determinant",
    "number_theory_operation_type": "totient",
}
"""The answer to a form, by the field that the form asks for."""

_CONTENT: Final = frozenset({"content"})
ERROR_TEXT: Final = "the text of an exception has another introduction"
EMPTY_LIST: Final = "an empty list is the text `[]`, in FastMCP no content"
NOT_FINITE: Final = "infinity and NaN are `null` in the text, in FastMCP `Infinity` and `NaN`"


@attrs.frozen
class Step:
    """A request that both versions get.

    Attributes:
        method: The method of the request.
        params: Its params.
        differs: The members of the outcome that differ; see `ported_servers.outcome_of`.
        reason: Why they differ.
        ending: The text with which the content of both versions ends.
    """

    method: str
    params: Mapping[str, Any]
    differs: frozenset[str] = frozenset()
    reason: str = ""
    ending: str = ""

    @property
    def tool(self) -> str | None:
        return self.params["name"] if self.method == "tools/call" else None


@attrs.frozen(kw_only=True)
class PortedServer:
    """A server on PyPI and its port.

    Attributes:
        name: The package, which is also the name of the patch.
        version: Its pinned version.
        licence: The licence of the package.
        framework: What it was written with, pinned as well.
        folder: The Python package.
        lines: The lines of the Python package, in all files.
        steps: The requests, in order; each server answers them in one session.
        not_called: The tools that are not called, each with the reason.
        masked: Members of results whose values depend on the time; they are replaced.
    """

    name: str
    version: str
    licence: str
    framework: Sequence[str]
    folder: str
    lines: int
    steps: Sequence[Step]
    not_called: Mapping[str, str] = attrs.field(factory=dict[str, str])
    masked: frozenset[str] = frozenset()

    @property
    def packages(self) -> Sequence[str]:
        """Return the packages of the environment, with their versions."""
        return [f"{self.name}=={self.version}", *self.framework]

    @property
    def tools(self) -> set[str]:
        """Return the names of the tools that are called."""
        return {step.tool for step in self.steps if step.tool is not None}


def call(tool: str, **arguments: Any) -> Step:
    """Return the step that calls a tool."""
    return Step("tools/call", {"name": tool, "arguments": arguments})


def failing(ending: str, tool: str, **arguments: Any) -> Step:
    """Return the step that calls a tool which raises an exception with this text."""
    step = call(tool, **arguments)
    return attrs.evolve(step, differs=_CONTENT, reason=ERROR_TEXT, ending=f": {ending}")


_CALCULATOR: Final = (
    *(
        call("calculate", expression=expression)
        for expression in ("2 + 3 * 4", "2 ^ 10", "7 ÷ 2", "sqrt(16) + sin(0)", "-5 // 2", "pi")
    ),
    failing("Unknown identifier: unknown", "calculate", expression="unknown + 1"),
    failing("division by zero", "calculate", expression="1 / 0"),
)

_HASHLIB: Final = (
    *(
        call(f"hash_{name}", data="Something there is that doesn't love a wall")
        for name in (
            *("md5", "sha1", "sha224", "sha256", "sha384", "sha512"),
            *("sha3_224", "sha3_256", "sha3_384", "sha3_512"),
            *("blake2b", "blake2s", "shake_128", "shake_256", "file_digest"),
        )
    ),
    call("hash_md5", data="ä", usedforsecurity=False),
    call("hash_shake_128", data="wall", output_length=5),
    call("hash_pbkdf2_hmac", password="secret", salt="salt", iterations=1000),
    call("hash_scrypt", password="secret", salt="salt", n=1024, dklen=16),
    call("hash_new", algorithm="sha256", data="wall", hex=False),
    call("hash_info", info_type="guaranteed"),
    call("hash_update", algorithm="sha1", data_parts=["wa", "ll"]),
    call("hash_copy", algorithm="md5", data="wall"),
    call("hash_properties", algorithm="sha512"),
    failing("unsupported hash type none", "hash_new", algorithm="none", data="wall"),
)

_DATABASE: Final = "poems.db"
_SQLITE: Final = (
    call(
        "create_table",
        full_db_path=_DATABASE,
        table_sql="CREATE TABLE poem (id INTEGER PRIMARY KEY, title TEXT NOT NULL)",
    ),
    call(
        "write_query",
        full_db_path=_DATABASE,
        query="INSERT INTO poem (title) VALUES ('Mending Wall'), ('Birches')",
    ),
    call("read_query", full_db_path=_DATABASE, query="SELECT * FROM poem ORDER BY title"),
    attrs.evolve(
        call("read_query", full_db_path=_DATABASE, query="SELECT * FROM poem WHERE id > 9"),
        differs=_CONTENT,
        reason=EMPTY_LIST,
    ),
    call("list_tables", full_db_path=_DATABASE),
    call("describe_table", full_db_path=_DATABASE, table_name="poem"),
    failing(
        "no such table: novel", "read_query", full_db_path=_DATABASE, query="SELECT * FROM novel"
    ),
    failing(
        "table poem has 2 columns but 1 values were supplied",
        "write_query",
        full_db_path=_DATABASE,
        query="INSERT INTO poem VALUES (1)",
    ),
    failing(
        "Invalid table name: poem; --",
        "describe_table",
        full_db_path=_DATABASE,
        table_name="poem; --",
    ),
)

_MATRIX: Final = [[2, 1], [1, 3]]
_MATHEMATICS: Final = (
    attrs.evolve(call("list_functions"), differs=_CONTENT, reason=NOT_FINITE),
    call("security_status"),
    call("calculate_expression", expr="sqrt(2) * factorial(5)"),
    call("calculate_expression", expr="__import__('os')"),
    call("batch_calculate", expressions=["1 + 1", "2 / 0", "log(e)"]),
    call("calculate_statistics", data=[1, 2, 4], operation="mean"),
    call("calculate_statistics", data=[1, 2, 4], operation="unknown"),
    call("matrix_operation", matrices=[_MATRIX, _MATRIX], operation="multiply"),
    call("matrix_operation", matrices=[_MATRIX], operation="inverse"),
    call("matrix_operation", matrices=[_MATRIX], operation="unknown"),
    call("convert_units", value=3, from_unit="km", to_unit="m", unit_type="length"),
    call("convert_units", value=3, from_unit="km", to_unit="kg", unit_type="length"),
    call("convert_natural_language", query="convert 5 km to m"),
    call("convert_natural_language", query="how far is it"),
    call("analyze_number_theory", number=360, operation="prime_factors"),
    call("analyze_number_theory", number=97, operation="unknown"),
    call("create_session", session_id="first", variables={"x": 2.5}),
    call("session_calculate", session_id="first", expr="x * 2", var_name="y"),
    call("list_session_variables", session_id="first"),
    call("delete_session", session_id="first"),
    call("list_session_variables", session_id="first"),
    call("get_calculation_history", limit=3),
    Step("resources/read", {"uri": "resource://history/recent"}),
    Step("resources/read", {"uri": "resource://functions/all"}),
    Step("resources/read", {"uri": "resource://constants/math"}),
    Step("prompts/get", {"name": "scientific_calculation", "arguments": {"precision": "3"}}),
    Step("prompts/get", {"name": "batch_calculation", "arguments": {"batch_size": "2"}}),
    call("performance_metrics"),
    call("optimize_memory"),
    call("clear_history"),
)

SERVERS: Final[Mapping[str, PortedServer]] = {
    server.name: server
    for server in (
        PortedServer(
            name="mcp-server-calculator",
            version="0.2.1",
            licence="MIT",
            framework=["mcp==1.30.0"],
            folder="mcp_server_calculator",
            lines=67,
            steps=_CALCULATOR,
        ),
        PortedServer(
            name="mcp-hashlib",
            version="0.1.2",
            licence="MIT",
            framework=["fastmcp==4.2.3", "mcp==2.3.0"],
            folder="mcp_hashlib",
            lines=247,
            steps=_HASHLIB,
        ),
        PortedServer(
            name="mcp-sqlite-manager",
            version="1.0.0",
            licence="MIT",
            framework=["fastmcp==2.14.7", "mcp==1.30.0"],
            folder="mcp_sqlite_manager",
            lines=167,
            steps=_SQLITE,
        ),
        PortedServer(
            name="mcp-mathematics",
            version="2.3.1",
            licence="MIT",
            framework=["fastmcp==2.14.7", "mcp==1.30.0"],
            folder="mcp_mathematics",
            lines=2689,
            steps=_MATHEMATICS,
            not_called={"memory_statistics": "it measures the memory of its process"},
            masked=frozenset({"timestamp", "average_time"}),
        ),
    )
}
