"""The rounds in which handlers asked, each handler's as one story."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs
import click

from mcp_trio._cli.tables import Column, Line, print_table
from mcp_trio._cli.terminal import printable, styled
from mcp_trio._cli.timeline import Direction, Row

_COLUMNS: Final = (
    Column("record", "right"),
    Column("ms", "right"),
    Column(""),
    Column("what"),
    Column("note"),
)


@attrs.frozen
class Story:
    """One handler's requests with their questions, retries and answers, in order."""

    rows: Sequence[Row]

    @property
    def heading(self) -> str:
        """What was asked for, in how many rounds, and how long that took."""
        first, last = self.rows[0], self.rows[-1]
        rounds = max(row.round or 1 for row in self.rows)
        took_ms = (last.ms or 0.0) - (first.ms or 0.0)
        return f"{first.what}: {rounds} round{'' if rounds == 1 else 's'} in {took_ms:.1f} ms"


def stories(rows: Iterable[Row]) -> list[Story]:
    """The stories in a timeline, in the order of their beginnings."""
    messages: dict[tuple[int | None, int | None], list[Row]] = {}
    for row in rows:
        if row.direction is not None:
            messages.setdefault((row.channel, row.first), []).append(row)
    return [Story(each) for each in messages.values() if any(row.story for row in each)]


def print_stories(found: Iterable[Story], arrows: Mapping[Direction | None, str]) -> None:
    """Print each story under its heading."""
    for story in found:
        click.echo(styled(printable(story.heading), bold=True))
        print_table(_COLUMNS, [Line(_cells(row, arrows)) for row in story.rows])
        click.echo()


def _cells(row: Row, arrows: Mapping[Direction | None, str]) -> tuple[str, ...]:
    texts = printable(row.what), printable(row.note)
    return str(row.record), f"{row.ms:.1f}", arrows[row.direction], *texts
