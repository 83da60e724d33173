"""What is recorded of a server over HTTP, and that it can be replayed."""

import pytest
import trio
import trio.testing

from mcp_trio import Context, Server
from mcp_trio.recording import replay
from tests.server.http.conftest import call, site_of, text

LOGS = {"io.modelcontextprotocol/logLevel": "debug"}


def recorded():
    server = Server("harbour")

    @server.tool
    async def ask(*, ctx: Context) -> str:
        answer = await ctx.sample("which way?", max_tokens=5)
        return answer.content.text

    @server.tool
    async def log(name: str, *, ctx: Context) -> str:
        await ctx.warning(name)
        await trio.sleep(0.1)
        return name

    return server


def sampled(question):
    result = {"role": "assistant", "content": {"type": "text", "text": "north"}, "model": "m"}
    return {"jsonrpc": "2.0", "id": question["id"], "result": result}


async def record(folder, leads):
    async with site_of(recorded(), leads=leads, record=folder) as site:
        for _ in range(2):
            client = await site.open(capabilities={"sampling": {}})
            asked = client.begin(call("ask"))
            await client.ask(sampled(await asked.message()))
            assert text((await asked.rest())[-1]) == "north"
        exchanges = [site.begin_stateless(call("log", {"name": name}), meta=LOGS) for name in "abc"]
        for exchange in exchanges:
            await exchange.rest()
        gone = site.begin_stateless(call("log", {"name": "d"}), meta=LOGS)
        await gone.message()
        gone.leave()
        site.runtime.close()
        await site.runtime.ended.wait()


@pytest.mark.parametrize("leads", [False, True])
def test_each_session_has_a_recording_and_all_stateless_requests_one(tmp_path, leads):
    trio.run(record, tmp_path, leads, clock=trio.testing.MockClock(autojump_threshold=0))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    for file in files:
        assert replay(file, recorded()).is_complete, file
