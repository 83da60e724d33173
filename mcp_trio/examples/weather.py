"""A weather service: two tools, a resource template, a prompt, progress.

The weather is made up; it depends only on the name of the city and the day.

    mcp-trio run mcp_trio.examples.weather
"""

from typing import Annotated

import attrs
import trio
from msgspec import Meta

from mcp_trio import Context, Server, ToolError

server: Server = Server(
    "weather", version="1.0", instructions="Ask for a forecast before you advise."
)

CITIES = {"Bergen": 7, "Lima": 19, "Oslo": 4, "Pune": 27}
SKIES = ("clear", "cloudy", "rain", "snow")
SLOW_FROM_DAY = 4  # stations take longer for later days


@attrs.frozen
class Day:
    """One day of a forecast."""

    day: int
    celsius: int
    sky: str


def weather(city: str, day: int) -> Day:
    """Return the weather of a city, `day` days from now."""
    if city not in CITIES:
        raise ToolError(f"no station in {city}; try {', '.join(CITIES)}")
    step = (len(city) * 7 + day * 5) % 11
    return Day(day=day, celsius=CITIES[city] + step - 5, sky=SKIES[step % len(SKIES)])


@server.tool
async def forecast(
    city: str, days: Annotated[int, Meta(ge=1, le=14)] = 3, *, ctx: Context
) -> list[Day]:
    """The forecast for a city.

    Args:
        city: The name of the city, such as Oslo.
        days: How many days ahead.
    """
    coming: list[Day] = []
    for day in range(1, days + 1):
        await trio.sleep(0.005 if day < SLOW_FROM_DAY else 0.1)
        coming.append(weather(city, day))
        await ctx.report_progress(day, days)
    return coming


@server.tool
async def warmest(days: Annotated[int, Meta(ge=1, le=14)] = 3, *, ctx: Context) -> str:
    """The warmest city of the coming days; asks all stations at once.

    Args:
        days: How many days ahead.
    """
    best: dict[str, int] = {}

    async def ask(city: str) -> None:
        await trio.sleep(0.002 * len(city))
        best[city] = max(weather(city, day).celsius for day in range(1, days + 1))

    async with trio.open_nursery() as nursery:
        for city in CITIES:
            nursery.start_soon(ask, city)
    city = max(sorted(best), key=best.__getitem__)
    await ctx.info(f"asked {len(best)} stations")
    return f"{city}: {best[city]} degrees"


@server.resource("weather://{city}/now", mime_type="application/json")
async def now(city: str) -> Day:
    """The weather at this moment."""
    return weather(city, 0)


@server.prompt
async def plan_trip(city: str, nights: int = 2) -> str:
    """Plan a short trip around the weather.

    Args:
        city: Where to.
        nights: For how long.
    """
    return f"Plan {nights} nights in {city}. Look at the forecast first, and pack for it."


if __name__ == "__main__":
    server.run()
