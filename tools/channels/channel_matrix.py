"""Which checks of the contract every transport passes: `python tools/channels/channel_matrix.py`.

A row for each check of `mcp_trio.testing.CHANNEL_CHECKS`, a column for each transport: "ok" at both
ends; "client" or "server" where it holds and the other end has nothing to look at; "-" where none
has; "FAILED". The reasons stand below, and the exit status is 1 if one has failed. Arguments are
the names of the transports to look at.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import trio
from channel_pairs import TRANSPORTS, Transport
from rich.console import Console
from rich.table import Column, Table

from mcp_trio._testing.channels import BOTH_ENDS, End
from mcp_trio.testing import CHANNEL_CHECKS, check_channel_for

_COLUMNS_WITHOUT_A_SCREEN: Final = 240
_HOLDS: Final[Mapping[tuple[bool, bool], str]] = {
    (True, True): "ok",
    (True, False): "client",
    (False, True): "server",
    (False, False): "-",
}


@attrs.frozen
class Outcome:
    """What became of a check at one end.

    Attributes:
        nothing: Why there is nothing to look at; None: it holds, or has failed.
        failure: How it has failed; None: it has not.
    """

    not_applicable: str | None = None
    failure: str | None = None


Outcomes: TypeAlias = Mapping[tuple[str, str], tuple[Outcome, Outcome]]
"""By transport and check: of the client's end and of the server's."""


async def outcome_of(transport: Transport, check: str, end: End) -> Outcome:
    """Run one check at one end of a new pair."""
    if end not in transport.ends(check):
        return Outcome(not_applicable=transport.excuses[check, end])
    with tempfile.TemporaryDirectory() as folder:
        async with trio.open_nursery() as nursery:
            make_pair = await transport.begin(nursery, Path(folder))
            try:
                not_applicable = await check_channel_for(
                    check,
                    make_pair,
                    limits=transport.limits,
                    ends=(end,),
                    timeout_seconds=transport.timeout_seconds,
                )
            except AssertionError as error:
                return Outcome(failure=str(error))
            finally:
                nursery.cancel_scope.cancel()
    return Outcome(not_applicable=not_applicable)


async def outcomes_of(names: Sequence[str], checks: Sequence[str]) -> Outcomes:
    """Run all checks, one after the other, as some measure time."""
    found: dict[tuple[str, str], tuple[Outcome, Outcome]] = {}
    for name in names:
        for check in checks:
            client, server = [await outcome_of(TRANSPORTS[name], check, end) for end in BOTH_ENDS]
            found[name, check] = client, server
    return found


def cell(client: Outcome, server: Outcome) -> str:
    if client.failure is not None or server.failure is not None:
        return "FAILED"
    return _HOLDS[client.not_applicable is None, server.not_applicable is None]


def remarks(outcomes: Outcomes) -> Iterator[str]:
    """Yield a line for each failure, and for each reason why a check does not apply."""
    why: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for (name, check), ends in outcomes.items():
        for end_name, outcome in zip(("client", "server"), ends, strict=True):
            if outcome.failure is not None:
                yield f"FAILED {name}, {end_name}: {outcome.failure}"
            elif outcome.not_applicable is not None:
                why.setdefault((check, outcome.not_applicable), []).append((name, end_name))
    for (check, reason), where in why.items():
        names = {name: [end for each, end in where if each == name] for name, _ in where}
        texts = (f"{name} ({' and '.join(ends)})" for name, ends in names.items())
        yield f"{check}: {reason}: {'; '.join(texts)}"


def table_of(outcomes: Outcomes) -> Table:
    names = list(dict.fromkeys(name for name, _ in outcomes))
    table = Table(Column("check", no_wrap=True), *names)
    for check in dict.fromkeys(check for _, check in outcomes):
        table.add_row(check, *(cell(*outcomes[name, check]) for name in names))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("transports", nargs="*", choices=[*TRANSPORTS, []], metavar="NAME")
    names = parser.parse_args(arguments).transports or list(TRANSPORTS)
    outcomes = trio.run(outcomes_of, names, list(CHANNEL_CHECKS))
    console = Console(width=None if sys.stdout.isatty() else _COLUMNS_WITHOUT_A_SCREEN)
    console.print(table_of(outcomes))
    console.print(*remarks(outcomes), sep="\n", highlight=False, markup=False, soft_wrap=True)
    return int(any(cell(*ends) == "FAILED" for ends in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
