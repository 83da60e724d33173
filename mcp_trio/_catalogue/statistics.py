"""Statistics of the recordings that a query finds, and a page with plots of them."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

import msgspec

from mcp_trio._catalogue.catalogue import Catalogue
from mcp_trio._catalogue.query import IS_ERROR, Condition, parse_query
from mcp_trio._journal.texts import shortened

_PERCENTILES: Final = (50, 95, 99)
_PERIODS_SECONDS: Final = (1, 10, 60, 600, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600)
_BARS_MAX: Final = 48
_TOOLS_MAX: Final = 20

# `Catalogue.rows` puts the condition of the query in the place of `{}`.
_FROM_CALLS: Final = "FROM calls JOIN recordings ON recordings.id = calls.recording WHERE {}"


class ToolStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one tool, or of one other method.

    Attributes:
        name: The name of the tool, or the method.
        calls: The number of calls.
        errors: The calls with an error, by kind.
        seconds: The duration at percentiles: the median (50), 95 and 99.
        slowest: The longest duration in seconds.
    """

    name: str
    calls: int
    errors: dict[str, int]
    seconds: dict[int, float]
    slowest: float


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """The calls and errors of a span of time that begins at `start`."""

    start: datetime
    calls: int
    errors: int


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of recordings.

    Attributes:
        recordings: The number of recordings.
        size: Their bytes.
        calls: The number of calls.
        errors: The number of calls with an error.
        first: When the first recording began; None without any.
        last: When the last one began.
        tools: The tools, those with the most calls first.
        period_seconds: The length of each of `periods`.
        periods: The calls over time.
        clients: The number of recordings by client, with its version.
        users: The number of calls by authenticated user.
        kept: The number of recordings by the reason for which they were kept.
        masked: The number of secrets that were replaced, by the name of their member.
    """

    recordings: int
    size: int
    calls: int
    errors: int
    first: datetime | None
    last: datetime | None
    tools: list[ToolStatistics]
    period_seconds: float
    periods: list[Period]
    clients: dict[str, int]
    users: dict[str, int]
    kept: dict[str, int]
    masked: dict[str, int]


def statistics(catalogue: Catalogue, query: str = "") -> Statistics:
    """Return the statistics of the recordings that a query finds.

    Raises:
        RecordingError: The catalogue cannot be read.
        ValueError: The query is invalid.
    """
    condition = parse_query(query)
    ((recordings, size, first, last),) = catalogue.rows(
        "SELECT count(*), coalesce(sum(size), 0), min(started), max(started) FROM recordings"
        " WHERE {}",
        condition,
    )
    tools = _tool_statistics(catalogue, condition)
    # The periods are as short as possible, but at most _BARS_MAX are drawn.
    seconds = 0.0 if first is None else last - first
    few_enough = (each for each in _PERIODS_SECONDS if seconds / each < _BARS_MAX)
    period_seconds = next(few_enough, _PERIODS_SECONDS[-1])
    failed = f"sum({IS_ERROR})"
    rows = catalogue.rows(
        f"SELECT CAST(calls.began / {period_seconds} AS INTEGER), count(*), {failed} {_FROM_CALLS}"
        " GROUP BY 1 ORDER BY 1",
        condition,
    )

    def counted(sql: str) -> dict[str, int]:
        return {str(name): count for name, count in catalogue.rows(sql, condition)}

    by_number = " GROUP BY 1 ORDER BY 2 DESC, 1"
    return Statistics(
        recordings=recordings,
        size=size,
        calls=sum(tool.calls for tool in tools),
        errors=sum(count for _, _, count in rows),
        first=_time(first),
        last=_time(last),
        tools=tools,
        period_seconds=period_seconds,
        periods=[
            Period(
                start=datetime.fromtimestamp(number * period_seconds, UTC),
                calls=calls,
                errors=failures,
            )
            for number, calls, failures in rows
        ],
        clients=counted(
            "SELECT trim(client || ' ' || client_version), count(*) FROM recordings WHERE {}"
            f" AND client != ''{by_number}"
        ),
        users=counted(
            f"SELECT calls.principal, count(*) {_FROM_CALLS} AND calls.principal != ''{by_number}"
        ),
        kept=counted(
            "SELECT tag, count(*) FROM tags JOIN recordings ON recordings.id = tags.recording"
            f" WHERE {{}}{by_number}"
        ),
        masked=counted(
            "SELECT masked.name, sum(number) FROM masked JOIN recordings ON recordings.id ="
            f" masked.recording WHERE {{}}{by_number}"
        ),
    )


def _tool_statistics(catalogue: Catalogue, condition: Condition) -> list[ToolStatistics]:
    """Return the statistics of each tool or other method, those with the most calls first."""
    of_tool = "CASE calls.method WHEN 'tools/call' THEN calls.name ELSE calls.method END"
    durations: dict[str, list[float]] = {}
    for name, seconds in catalogue.rows(
        f"SELECT {of_tool}, calls.seconds {_FROM_CALLS} ORDER BY 1, 2", condition
    ):
        durations.setdefault(name, []).append(seconds)
    errors: dict[str, dict[str, int]] = {}
    for name, kind, count in catalogue.rows(
        f"SELECT {of_tool}, calls.error, count(*) {_FROM_CALLS} AND calls.error != ''"
        " GROUP BY 1, 2",
        condition,
    ):
        errors.setdefault(name, {})[kind] = count
    tools: list[ToolStatistics] = []
    for name, in_order in durations.items():
        # A percentile is the smallest duration that so many percent of the calls do not exceed.
        at = {percent: math.ceil(len(in_order) * percent / 100) - 1 for percent in _PERCENTILES}
        tools.append(
            ToolStatistics(
                name=name,
                calls=len(in_order),
                errors=errors.get(name, {}),
                seconds={percent: in_order[index] for percent, index in at.items()},
                slowest=in_order[-1],
            )
        )
    tools.sort(key=lambda tool: (-tool.calls, tool.name))
    return tools


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


# The page -----------------------------------------------------------------------------------------

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
       color: #1d2433; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #d9dee8; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #465066; }
.calls { fill: #3567c8; } .errors { fill: #cf3f3f; } .line { stroke: #d9dee8; }
.p50 { fill: #3567c8; } .p95 { fill: #7aa0e6; } .p99 { fill: #c3d4f5; }
@media (prefers-color-scheme: dark) {
  body { color: #e4e8f0; background: #151922; } svg text { fill: #aab3c5; }
  th, td { border-color: #333b4d; } .line { stroke: #333b4d; }
}
"""
_WIDTH: Final = 900
_BARS_HEIGHT: Final = 140
_MARGIN: Final = 60
_ROW: Final = 24
_NAME_WIDTH: Final = 220
_NAME_CHARS_MAX: Final = 30
_VALUES_WIDTH: Final = 140
_LEGEND_WIDTH: Final = 90
# The labels of the time axis.
_TIMES_MAX: Final = 6
_TIME_WIDTH: Final = 80
_MEDIAN: Final = 50
_DAY_SECONDS: Final = 24 * 3600
# The scale of durations begins here. Shorter ones are printed in microseconds.
_SHORT_SECONDS: Final = 1e-4


def html_page(statistics: Statistics, title: str) -> str:
    """Return a page in HTML with tables and plots, without scripts and without other files."""
    summary = (
        f"{statistics.recordings:,} recordings, {statistics.calls:,} calls,"
        f" {statistics.errors:,} errors"
    )
    if statistics.first is not None and statistics.last is not None:
        summary += f", {statistics.first:%Y-%m-%d %H:%M} to {statistics.last:%Y-%m-%d %H:%M} UTC"
    percentiles = "".join(f"<th>{percent} %</th>" for percent in _PERCENTILES)
    head = f"<tr><th>name</th><th>calls</th><th>errors</th>{percentiles}<th>slowest</th></tr>"
    tool_rows = [
        f"<tr><td>{escape(tool.name)}</td><td>{tool.calls:,}</td>"
        f"<td>{escape(errors_text(tool))}</td>"
        + "".join(f"<td>{duration_text(tool.seconds[percent])}</td>" for percent in _PERCENTILES)
        + f"<td>{duration_text(tool.slowest)}</td></tr>"
        for tool in statistics.tools
    ]
    sections = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{summary}</p>",
        "<h2>Calls over time</h2>",
        _over_time(statistics, [period.calls for period in statistics.periods], "calls"),
    ]
    if statistics.errors:
        errors = [period.errors for period in statistics.periods]
        sections += ["<h2>Errors over time</h2>", _over_time(statistics, errors, "errors")]
    sections += [
        "<h2>Durations</h2>",
        "<p>The text beside a bar is the median and 99 %; the scale is logarithmic.</p>",
        _durations_plot(statistics.tools[:_TOOLS_MAX]),
        "<h2>Tools and methods</h2>",
        f"<table>{head}{''.join(tool_rows)}</table>",
    ]
    for heading, counts in (
        ("Clients", statistics.clients),
        ("Users", statistics.users),
        ("Reasons to keep a recording", statistics.kept),
        ("Secrets that were replaced", statistics.masked),
    ):
        if counts:
            rows = (f"<tr><td>{escape(name)}</td><td>{n:,}</td></tr>" for name, n in counts.items())
            sections += [f"<h2>{heading}</h2>", f"<table>{''.join(rows)}</table>"]
    body = "\n".join(sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n"
        "</body></html>\n"
    )


def _over_time(statistics: Statistics, counts: Sequence[int], name: str) -> str:
    """Return a plot with a bar for the count of each period; periods without calls have no bar."""
    periods, period_seconds = statistics.periods, statistics.period_seconds
    if not periods:
        return "<p>There are no calls.</p>"
    most = max(counts)
    begin, end = periods[0].start, periods[-1].start
    first = begin.timestamp()
    # With the periods without calls, which are not in `periods`.
    period_count = round((end.timestamp() - first) / period_seconds) + 1
    width, height = (_WIDTH - _MARGIN) / period_count, _BARS_HEIGHT
    line = f'x1="{_MARGIN}" y1="{height}" x2="{_WIDTH}" y2="{height}"'
    parts = [
        f'<line class="line" {line}/>',
        f'<text x="{_MARGIN - 8}" y="14" text-anchor="end">{most:,}</text>',
        f'<text x="{_MARGIN - 8}" y="{height}" text-anchor="end">0</text>',
    ]
    for period, count in zip(periods, counts, strict=True):
        x = _MARGIN + (period.start.timestamp() - first) / period_seconds * width
        title = f"{period.start:%Y-%m-%d %H:%M}: {period.calls:,} calls, {period.errors:,} errors"
        bar = (height - 4) * count / most
        parts.append(
            f'<rect class="{name}" x="{x:.1f}" y="{height - bar:.1f}"'
            f' width="{max(width - 1, 0.5):.1f}" height="{bar:.1f}"><title>{title}</title></rect>'
        )
    time_format = "%Y-%m-%d" if period_seconds >= _DAY_SECONDS else "%m-%d %H:%M"
    for number in range(0, period_count, math.ceil(period_count / _TIMES_MAX)):
        time = datetime.fromtimestamp(first + number * period_seconds, UTC)
        x = _MARGIN + number * width
        place = f'x="{x:.1f}"' if x < _WIDTH - _TIME_WIDTH else f'x="{_WIDTH}" text-anchor="end"'
        parts.append(f'<text {place} y="{height + 18}">{time:{time_format}}</text>')
    return _svg(height + 24, parts, f"{name} over time")


def _durations_plot(tools: Sequence[ToolStatistics]) -> str:
    """Return a bar for each tool: the median, and the percentiles behind it, on a log scale."""
    longest = max((tool.seconds[99] for tool in tools), default=0.0)
    shortest = _SHORT_SECONDS
    if longest <= shortest:
        return "<p>All calls took less than 0.1 ms.</p>"
    scale = (_WIDTH - _NAME_WIDTH - _VALUES_WIDTH) / math.log10(longest / shortest)
    parts: list[str] = []
    for number, percent in enumerate(_PERCENTILES):
        x = _NAME_WIDTH + number * _LEGEND_WIDTH
        name = "median" if percent == _MEDIAN else f"{percent} %"
        parts.append(f'<rect class="p{percent}" x="{x}" y="6" width="12" height="12"/>')
        parts.append(f'<text x="{x + 18}" y="16">{name}</text>')
    for number, tool in enumerate(tools, 1):
        y = number * _ROW
        name = escape(shortened(tool.name, _NAME_CHARS_MAX))
        parts.append(f'<text x="0" y="{y + 16}">{name}</text>')
        for percent in reversed(_PERCENTILES):
            bar = max(math.log10(max(tool.seconds[percent], shortest) / shortest) * scale, 1)
            parts.append(
                f'<rect class="p{percent}" x="{_NAME_WIDTH}" y="{y + 3}" width="{bar:.1f}"'
                f' height="{_ROW - 7}"><title>{percent} %: {duration_text(tool.seconds[percent])}'
                "</title></rect>"
            )
        end = _NAME_WIDTH + math.log10(max(tool.seconds[99], shortest) / shortest) * scale
        text = f"{duration_text(tool.seconds[50])} / {duration_text(tool.seconds[99])}"
        parts.append(f'<text x="{end + 6:.1f}" y="{y + 16}">{text}</text>')
    title = "Median, 95 and 99 percent of the durations by tool, on a logarithmic scale"
    return _svg((len(tools) + 1) * _ROW, parts, title)


def _svg(height: int, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img"><title>{escape(title)}</title>'
        f"{''.join(parts)}</svg>"
    )


def errors_text(tool: ToolStatistics) -> str:
    """Return the errors of a tool as a text, such as `2 timeout, 1 denied`; "" without any."""
    return ", ".join(f"{count} {kind}" for kind, count in tool.errors.items())


def duration_text(seconds: float) -> str:
    """Return a duration with its unit."""
    if 0 < seconds < _SHORT_SECONDS:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:,.3f}".rstrip("0").rstrip(".") + " s"
