import pytest
import trio

from mcp_trio import Context, Server, ThreadContext, types

INVALID_PARAMS = -32602


async def sail(port: str, days: int = 2) -> str:
    return f"{port} {days}"


async def look(port: str, what: str) -> str:
    return f"{what} of {port}"


async def nobody(typed: str):
    return []


async def three(typed: str):
    return ["3"]


@pytest.fixture
def server():
    made = Server("harbour")
    made.prompt(sail)
    made.resource("harbour://{port}/{what}")(look)
    return made


@pytest.fixture
def server_of(server):
    def make(values):
        @server.completion("sail", "port")
        async def ports(typed: str):
            return values

        return server

    return make


def question(reference, name, value=""):
    return {"ref": reference, "argument": {"name": name, "value": value}}


def of_prompt(name, value="", *, prompt="sail"):
    return question({"type": "ref/prompt", "name": prompt}, name, value)


def of_template(name, value="", *, uri="harbour://{port}/{what}"):
    return question({"type": "ref/resource", "uri": uri}, name, value)


async def completion(asker, params):
    return (await asker.result("completion/complete", params))["completion"]


@pytest.mark.requirement("COMP-02", "COMP-07")
async def test_values_are_proposed_in_the_order_of_the_function(server, serve):
    @server.completion(sail, "port")
    async def ports(typed: str, ctx: Context) -> list[str]:
        return [f"{typed}slo", f"{typed}ban", ctx.method]

    @server.completion(look, "what")
    def whats(typed: str, *, ctx: ThreadContext):
        return (part for part in (typed, ctx.method))

    asker = await serve(server)
    assert asker.hello["capabilities"].keys() == {"logging", "prompts", "resources"}
    assert await completion(asker, of_prompt("port", "O")) == {
        "values": ["Oslo", "Oban", "completion/complete"]
    }
    assert await completion(asker, of_template("what", "t")) == {
        "values": ["t", "completion/complete"]
    }


@pytest.mark.parametrize("target", ["sail", "harbour://{port}/{what}"])
async def test_the_target_may_be_a_name_or_a_function(server, serve, target):
    @server.completion(target, "port", thread=False)
    def ports(typed: str):
        return [target]

    asker = await serve(server)
    params = of_prompt("port") if target == "sail" else of_template("port")
    assert await completion(asker, params) == {"values": [target]}


@pytest.mark.requirement("COMP-05")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (None, {"values": []}),
        ([], {"values": []}),
        ({"b", "a"}, {"values": ["a", "b"]}),
        (["x"] * 100, {"values": ["x"] * 100}),
        (["x"] * 101, {"values": ["x"] * 100, "total": 101, "hasMore": True}),
        (types.Completion(values=["x"], total=7), {"values": ["x"], "total": 7}),
        (
            types.Completion(values=["x"] * 101),
            {"values": ["x"] * 100, "total": 101, "hasMore": True},
        ),
        (
            types.Completion(values=["x"] * 101, total=500),
            {"values": ["x"] * 100, "total": 500, "hasMore": True},
        ),
    ],
)
async def test_at_most_a_hundred_values_are_sent(server_of, serve, values, expected):
    asker = await serve(server_of(values))
    assert await completion(asker, of_prompt("port")) == expected


@pytest.mark.requirement("COMP-05")
async def test_only_the_first_hundred_of_endless_values_are_sent(server, serve):
    @server.completion("sail", "port")
    async def ports(typed: str):
        def endless():
            while True:
                yield typed

        return endless()

    asker = await serve(server)
    assert await completion(asker, of_prompt("port", "O")) == {
        "values": ["O"] * 100,
        "hasMore": True,
    }


@pytest.mark.parametrize("values", ["Oslo", [1], {1, 2}, 3])
async def test_a_value_that_is_no_list_of_strings_is_an_internal_error(
    server_of, serve, values, caplog
):
    asker = await serve(server_of(values))
    error = await asker.error("completion/complete", of_prompt("port"))
    assert error == {"code": -32603, "message": "internal error"}
    assert "in what 'port of sail' returned" in caplog.text


@pytest.mark.requirement("COMP-09")
@pytest.mark.parametrize(
    ("params", "message"),
    [
        (of_prompt("port", prompt="sial"), "unknown prompt: sial"),
        (of_template("port", uri="harbour://x"), "unknown resource: harbour://x"),
        (of_prompt("ship"), "unknown argument: ship"),
        (of_template("ship"), "unknown argument: ship"),
    ],
)
async def test_unknown_prompts_templates_and_arguments_are_invalid_params(
    server_of, serve, params, message
):
    asker = await serve(server_of([]))
    error = await asker.error("completion/complete", params)
    assert error == {"code": INVALID_PARAMS, "message": message}


@pytest.mark.requirement("COMP-09")
@pytest.mark.parametrize(
    "params",
    [
        {"ref": {"type": "ref/prompt", "name": "sail"}},
        question({"type": "ref/ship", "name": "sail"}, "port"),
        of_prompt("port", 7),
    ],
)
async def test_a_malformed_request_does_not_reach_the_function(server_of, serve, params):
    asker = await serve(server_of([]))
    assert (await asker.error("completion/complete", params))["code"] == INVALID_PARAMS


async def test_an_argument_without_a_completion_gets_no_values(server_of, serve):
    asker = await serve(server_of(["Oslo"]))
    assert await completion(asker, of_prompt("days")) == {"values": []}


async def test_completion_may_be_cancelled_like_any_request(server, serve):
    started, ended = trio.Event(), trio.Event()

    @server.completion("sail", "port")
    async def ports(typed: str):
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    asker = await serve(server)
    number = await asker.begin("completion/complete", of_prompt("port"))
    await started.wait()
    await asker.wire.cancel(number)
    await ended.wait()


# Registering.


def test_only_what_is_registered_can_be_completed(server):
    for target in ("nobody", lambda: None):
        with pytest.raises(LookupError, match="no prompt or resource is registered for"):
            server.completion(target, "port")
    server.prompt(name="again")(sail)
    with pytest.raises(LookupError, match="more than one prompt or resource is registered for"):
        server.completion(sail, "port")


def test_only_arguments_can_be_completed_and_once(server_of):
    server = server_of([])
    with pytest.raises(ValueError, match="'sail' has no argument 'ship'"):
        server.completion("sail", "ship")
    with pytest.raises(ValueError, match="'port' of 'sail' has a completion already"):
        server.completion("sail", "port")(nobody)


async def test_a_function_with_a_third_parameter_is_rejected(server, serve, caplog):
    @server.completion("sail", "port")
    async def ports(typed: str, settled: dict, more: str, ctx: Context):
        return []

    asker = await serve(server)
    assert (await asker.error("completion/complete", of_prompt("port")))["code"] == -32603
    assert "parameter 'more' receives no value" in caplog.text


async def test_without_completions_the_method_is_not_found(server_of, serve):
    server = server_of(["Oslo"])
    server.completion("sail", "days")(three)
    asker = await serve(server)
    server.remove_completion("sail", "port")
    assert await completion(asker, of_prompt("port")) == {"values": []}
    assert await completion(asker, of_prompt("days")) == {"values": ["3"]}
    server.remove_completion(sail, "days")
    assert (await asker.error("completion/complete", of_prompt("port")))["code"] == -32601
    with pytest.raises(LookupError, match="'port' of 'sail' has no completion"):
        server.remove_completion("sail", "port")


def test_removing_a_prompt_removes_its_completions(server_of):
    server = server_of(["Oslo"])
    server.completion(look, "port")(nobody)
    server.remove_prompt("sail")
    server.prompt(sail)
    server.completion("sail", "port")(nobody)
    with pytest.raises(ValueError, match="has a completion already"):
        server.completion(look, "port")(nobody)
