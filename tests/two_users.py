"""A recording of a server with authentication and two users, and what each user got."""

from mcp_trio import Client, Context, RequestError, Server
from mcp_trio.auth import AuthInfo, Bearer, StaticTokens
from tests.ways import served

TOKENS = {"token-of-ada": "ada", "token-of-ben": "ben"}
SCOPES = {"ada": frozenset({"book"}), "ben": frozenset()}

# What `tour` returns for each user.
TOURS = {
    "ada": ({"trips", "book"}, "the trips of ada", "Oslo is booked"),
    "ben": ({"trips"}, "the trips of ben", {"error": "insufficient_scope", "scope": "book"}),
}


async def record_two_users(folder):
    """Record the tours of both users, and one more call of ada; return the file."""
    server = Server(
        "travel",
        auth=StaticTokens(
            {token: AuthInfo(subject=name, scopes=SCOPES[name]) for token, name in TOKENS.items()}
        ),
    )

    @server.tool
    async def trips(*, ctx: Context) -> str:
        return f"the trips of {ctx.auth.subject}"

    @server.tool(scopes={"book"})
    async def book(city: str) -> str:
        return f"{city} is booked"

    async with served(server, "http", record=f"{folder}/") as (url, _):
        for token in TOKENS:
            async with Client(url, auth=Bearer(token)) as client:
                await tour(client)
        async with Client(url, auth=Bearer("token-of-ada")) as client:
            await client.call_tool("book", {"city": "Bergen"})
    (path,) = (each for each in folder.iterdir() if "tools/call" in each.read_text())
    return path


async def tour(client):
    """Return the names of the tools, the trips, and the answer to a booking or its error's data."""
    names = {tool.name for tool in await client.list_tools()}
    listed = (await client.call_tool("trips")).content[0].text
    try:
        booked = (await client.call_tool("book", {"city": "Oslo"})).content[0].text
    except RequestError as error:
        booked = error.data
    return names, listed, booked
