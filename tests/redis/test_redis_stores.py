"""The stores in Redis: their contracts, and what happens while Redis is unavailable."""

import contextlib
import math
import os
import re
import sys
from pathlib import Path

import pytest
import trio
from joserfc.jwk import ECKey

from mcp_trio import Limits
from mcp_trio._auth.verification import InvalidProofError
from mcp_trio._redis.connection import RedisConnection, open_connection
from mcp_trio._testing.store_contracts import ScriptedHandler
from mcp_trio.auth import DPoP, Introspection
from mcp_trio.errors import RequestError
from mcp_trio.http import SessionFacts, StoreUnavailableError
from mcp_trio.limits import MIB, HttpLimits
from mcp_trio.middleware import Rate
from mcp_trio.redis import RedisStores
from mcp_trio.testing import (
    check_change_store,
    check_event_store,
    check_instance_store,
    check_limit_store,
    check_state_store,
)
from tests.auth.conftest import ISSUER, NOW, RESOURCE, Issuer, proof_of
from tests.server.http.conftest import call, notes, site_of, text
from tests.server.http.test_instances import counting

pytestmark = [pytest.mark.slow, pytest.mark.real_time]

FACTS = SessionFacts(principal=None, opening=(b"{}",))
TOOLS = ("notifications/tools/list_changed", None)
PATIENCE_SECONDS = 20


async def until(holds):
    with trio.fail_after(PATIENCE_SECONDS):
        while not await holds():
            await trio.sleep(0.05)


@pytest.fixture
def join(stores_of):
    @contextlib.asynccontextmanager
    async def join(handler, lease_seconds=1.5):
        async with (
            stores_of(lease_seconds).opened(Limits()) as stores,
            stores.instances.joined(handler) as instance,
        ):
            yield instance

    return join


async def test_the_contract_of_instances_holds(join):
    await check_instance_store(join)


async def test_the_contract_of_events_holds(stores_of):
    async with stores_of().opened(Limits()) as stores:
        await check_event_store(lambda: stores.events("session"), is_shared=True)


async def test_the_contract_of_changes_holds(stores_of):
    @contextlib.asynccontextmanager
    async def opened():
        async with stores_of().opened(Limits()) as stores:
            yield stores.changes

    await check_change_store(opened)


async def test_the_contract_of_states_holds(stores_of):
    stores = stores_of()
    async with stores.opened(Limits()):
        await check_state_store(stores.states)


async def test_the_contract_of_limits_holds(stores_of):
    stores = stores_of()

    async def make():
        return stores.limits

    async with stores.opened(Limits()):
        assert await check_limit_store(make)


async def test_the_example_of_the_documentation_checks_all_stores_in_redis(redis, tmp_path):
    page = Path(__file__).parents[2] / "docs/how-to/run-on-several-machines.md"
    text = await trio.Path(page).read_text()
    (example,) = re.findall(
        r"^```python\n(# test_stores.py\n.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    await trio.Path(tmp_path / "test_stores.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_stores.py"]
    variables = {**os.environ, "REDIS_URL": redis.url}
    done = await trio.run_process(
        command, cwd=tmp_path, env=variables, capture_stdout=True, check=False
    )
    assert b"2 passed" in done.stdout, done.stdout.decode()


async def test_a_cancelled_request_takes_no_place(redis, stores_of):
    stores = stores_of()
    async with stores.opened(Limits()):
        assert await stores.limits.enter("user bob", 1)  # It is connected now.
        redis.pause()
        with trio.move_on_after(0.2) as scope:
            await stores.limits.enter("user ada", 1)
        redis.go_on()
        assert scope.cancelled_caught

        async def is_free():
            return await stores.limits.enter("user ada", 1)

        await until(is_free)


async def test_a_place_that_is_asked_for_twice_is_taken_once(stores_of, monkeypatch):
    """As after an error that leaves it unknown whether Redis has executed the command."""
    stores = stores_of()
    async with stores.opened(Limits()):
        evaluate = RedisConnection.evaluate

        async def twice(*args):
            await evaluate(*args)
            return await evaluate(*args)

        monkeypatch.setattr(RedisConnection, "evaluate", twice)
        holder = await stores.limits.enter("user ada", 1)
        assert holder is not None
        assert await stores.limits.enter("user ada", 1) is None
        await stores.limits.leave("user ada", holder)
        assert await stores.limits.enter("user ada", 1) is not None


async def test_a_password_that_is_rejected_ends_no_server(redis, caplog):
    async with redis.client() as client:
        await client.config_set({"requirepass": "red-tulip-7"})
    stores = RedisStores(f"redis://127.0.0.1:{redis.port}/0?password=wrong-tulip", prefix="harbour")
    async with stores.opened(Limits()) as opened:
        events = opened.events("session")
        events.keep(events.open_stream(), b"{}")
        await events.settle()
        with pytest.raises(StoreUnavailableError, match="invalid username-password pair"):
            await opened.changes.check()
    text = f"Redis at 127.0.0.1:{redis.port}/0 is unavailable: invalid username-password"
    assert text in caplog.text
    assert "tulip" not in caplog.text


async def test_what_waits_for_redis_is_bounded_by_its_bytes(redis, stores_of, monkeypatch):
    monkeypatch.setattr("mcp_trio._redis.connection._POSTED_BYTES_MAX", 10_000)
    redis.kill()
    async with stores_of().opened(Limits()) as stores:
        events = stores.events("session")
        stream = events.open_stream()
        ids = [events.keep(stream, b"{}" + b" " * 3000) for _ in range(9)]
        await redis.start()

        async def is_loaded():
            other = stores.events("session")
            await other.load()
            with contextlib.suppress(LookupError):
                return len(other.after(ids[6])[1]) == 2

        await until(is_loaded)


async def test_messages_that_another_instance_does_not_confirm_are_bounded(stores_of, caplog):
    limits, handlers = Limits(http=HttpLimits(unconfirmed_bytes_max=1000)), []
    async with contextlib.AsyncExitStack() as stack:
        instances = []
        for _ in range(2):
            stores = await stack.enter_async_context(stores_of().opened(limits))
            handlers.append(ScriptedHandler())
            instances.append(await stack.enter_async_context(stores.instances.joined(handlers[-1])))
        one, two = instances
        for _ in range(4):  # They are not confirmed before this task waits.
            one.send(two.name, b"x" * 300)
        assert handlers[0].lost == [two.name]
        assert "limits.http.unconfirmed_bytes_max=1000" in caplog.text
        assert one._links[two.name].unconfirmed_bytes == 0
        one.send(two.name, b"later")

        async def has_received():
            return (one.name, b"later") in handlers[1].received

        await until(has_received)
        assert handlers[1].lost == [one.name]

        async def is_confirmed():
            return one._links[two.name].unconfirmed_bytes == 0

        await until(is_confirmed)


async def test_many_bytes_are_confirmed_before_the_next_renewal_of_a_lease(redis):
    limits, handlers = Limits(http=HttpLimits(unconfirmed_bytes_max=1000)), []
    async with contextlib.AsyncExitStack() as stack:
        instances = []
        for _ in range(2):
            stores = RedisStores(redis.url, prefix="harbour", lease_seconds=300)
            opened = await stack.enter_async_context(stores.opened(limits))
            handlers.append(ScriptedHandler())
            instances.append(await stack.enter_async_context(opened.instances.joined(handlers[-1])))
        one, two = instances
        for _ in range(8):
            one.send(two.name, b"x" * 300)

            async def is_confirmed():
                return one._links[two.name].unconfirmed_bytes == 0

            await until(is_confirmed)
        assert handlers[0].lost == []
        assert len(handlers[1].received) == 8


async def test_sessions_that_never_expire_are_stored(redis):
    limits = Limits(http=HttpLimits(session_idle_seconds=math.inf))
    async with (
        RedisStores(redis.url, prefix="harbour").opened(limits) as stores,
        stores.instances.joined(ScriptedHandler()) as instance,
    ):
        stores.events("a").open_stream()
        instance.keep("a", FACTS)
        await instance.settle()
        async with redis.client() as client:
            assert await client.ttl("harbour:session:a") > 10**8


@pytest.mark.parametrize("seconds", [math.inf, 0.0001])
async def test_states_may_be_kept_for_ever_or_for_a_moment(stores_of, seconds):
    stores = stores_of()
    async with stores.opened(Limits()):
        assert await stores.states.take("a", seconds=seconds, client=1)
        await stores.states.keep("a", b"{}", seconds=seconds)
        assert await stores.states.kept("a") == b"{}"
        assert not await stores.states.take("a", seconds=seconds, client=1)


async def test_states_need_open_stores(stores_of):
    with pytest.raises(RuntimeError, match="stores="):
        await stores_of().states.kept("a")


async def test_one_application_uses_the_stores(stores_of):
    stores = stores_of()
    async with stores.opened(Limits()):
        with pytest.raises(RuntimeError, match="another application uses these RedisStores"):
            async with stores.opened(Limits()):
                pass
        assert await stores.states.take("a", seconds=1, client=1)


async def test_a_proof_is_used_once_on_all_instances(stores_of):
    key = ECKey.generate_key("P-256")
    one, two, thumbprint = DPoP(now=lambda: NOW), DPoP(now=lambda: NOW), key.thumbprint()
    proof = {"method": "POST", "url": RESOURCE, "token": "abc", "thumbprint": thumbprint}
    stores, others = stores_of(), stores_of()
    async with stores.opened(Limits()) as opened, others.opened(Limits()) as opened_there:
        one.store, two.store = opened.states, opened_there.states
        await one.check(encoded := proof_of(key), **proof)
        with pytest.raises(InvalidProofError, match="used before"):
            await two.check(encoded, **proof)


async def test_a_token_is_looked_up_once_for_all_instances(stores_of):
    issuer = Issuer()
    issuer.introspected["opaque"] = {
        "active": True,
        "sub": "anna",
        "aud": [RESOURCE],
        "exp": NOW + 600,
    }
    options = {"client_id": "a", "client_secret": "b", "http_client": issuer.client}
    one, two = (Introspection(ISSUER, now=lambda: NOW, **options) for _ in range(2))
    stores, others = stores_of(), stores_of()
    async with stores.opened(Limits()) as opened, others.opened(Limits()) as opened_there:
        one.store, two.store = opened.states, opened_there.states
        assert (await one.verify("opaque")).subject == "anna"
        assert await two.verify("opaque") == await one.verify("opaque")
    assert len(issuer.forms) == 1


# Redis is unavailable, and comes back.


async def test_sessions_leases_and_messages_survive_a_restart_that_loses_all_data(redis, join):
    handlers = [ScriptedHandler(), ScriptedHandler()]
    async with join(handlers[0]) as one, join(handlers[1]) as two:
        one.keep("a", FACTS)
        one.send(two.name, b"first")
        await one.settle()
        redis.kill()
        one.keep("b", FACTS)
        one.send(two.name, b"second")
        one.send(two.name, b"third")
        await one.settle()
        await redis.start()

        async def has_both():
            return await two.find("a") and await two.find("b") and len(handlers[1].received) == 3

        await until(has_both)
        assert [message for _, message in handlers[1].received] == [b"first", b"second", b"third"]
        assert not await two.is_lost(one.name)
        assert list(await one.others()) == [two.name]
        assert not handlers[0].lost_sessions


async def test_an_instance_whose_lease_was_over_loses_the_sessions_that_were_taken(redis, join):
    handlers = [ScriptedHandler(), ScriptedHandler()]
    async with join(handlers[0]) as one, join(handlers[1]) as two:
        for name in "ab":
            one.keep(name, FACTS)
        await one.settle()
        async with redis.client() as client:
            await client.delete([f"harbour:instance:{one.name}"])
        assert await two.take("a", one.name)

        async def has_lost():
            return handlers[0].lost_sessions

        await until(has_lost)
        assert handlers[0].lost_sessions == ["a"]
        found = await two.find("b")
        assert found.owner == one.name


async def test_the_lease_is_kept_while_many_sessions_are_restored_over_a_slow_network(
    redis, join, monkeypatch
):
    call = RedisConnection.call

    async def call_slowly(connection, command):
        await trio.sleep(0.02)
        return await call(connection, command)

    async with join(ScriptedHandler()) as one, redis.client() as client:
        keys = [f"harbour:session:{number}" for number in range(300)]

        async def has_lease():
            return await client.exists([f"harbour:instance:{one.name}"])

        await until(has_lease)
        for number in range(300):
            one.keep(str(number), FACTS)
        await one.wait_until_stored()
        monkeypatch.setattr(RedisConnection, "call", call_slowly)
        await client.flushall()

        async def are_restored():
            return await client.exists(keys) == len(keys)

        await until(are_restored)
        assert await has_lease()


async def test_names_of_instances_that_crashed_are_removed(redis, join):
    async with join(ScriptedHandler()) as one, redis.client() as client:
        await client.sadd("harbour:instances", ["crashed"])
        assert list(await one.others()) == []
        await one.settle()
        assert await client.smembers("harbour:instances") == {one.name.encode()}


async def test_a_pause_that_is_shorter_than_a_lease_loses_nothing(redis, join):
    handlers = [ScriptedHandler(), ScriptedHandler()]
    async with join(handlers[0], 9.0) as one, join(handlers[1], 9.0) as two:
        handlers[0].watched.add(two.name)
        handlers[1].watched.add(one.name)
        one.keep("a", FACTS)
        await one.settle()
        redis.pause()
        one.send(two.name, b"late")
        await one.settle()  # returns after a moment
        with trio.move_on_after(2) as waiting:
            await one.wait_until_stored()
        assert waiting.cancelled_caught
        redis.go_on()

        async def has_arrived():
            return handlers[1].received

        await until(has_arrived)
        await one.wait_until_stored()
        await trio.sleep(2)
        assert [each.lost for each in handlers] == [[], []]
        assert (await two.find("a")).owner == one.name


def limit_memory(client, *, is_over):
    return client.config_set({"maxmemory": 1 if is_over else 0})


def make_replica(client, *, is_over):
    return client.replicaof("127.0.0.1", 1) if is_over else client.replicaof()


@pytest.mark.parametrize("reject_writes", [limit_memory, make_replica])
async def test_what_redis_rejects_for_a_while_is_stored_and_sent_later(redis, join, reject_writes):
    """As when its memory is full, or when it has become a replica after a failover."""
    handlers = [ScriptedHandler(), ScriptedHandler()]
    async with join(handlers[0], 60) as one, join(handlers[1], 60) as two, redis.client() as client:
        one.send(two.name, b"first")
        await one.wait_until_stored()
        await reject_writes(client, is_over=True)
        one.keep("a", FACTS)
        one.send(two.name, b"second")
        await one.settle()
        await reject_writes(client, is_over=False)
        one.send(two.name, b"third")

        async def have_arrived():
            return len(handlers[1].received) == 3

        await until(have_arrived)
        assert [message for _, message in handlers[1].received] == [b"first", b"second", b"third"]
        assert (await two.find("a")).owner == one.name


async def test_changes_arrive_when_redis_is_back(redis, stores_of):
    received = []
    async with (
        stores_of().opened(Limits()) as here,
        stores_of().opened(Limits()) as there,
        here.changes.joined(received.append),
        there.changes.joined([].append) as send,
    ):
        redis.kill()
        send(TOOLS)
        await redis.start()

        async def has_received():
            return received

        await until(has_received)
    assert received == [TOOLS]


async def test_states_are_rejected_while_redis_is_away(redis, stores_of, monkeypatch):
    monkeypatch.setattr("mcp_trio._redis.connection._CALL_SECONDS", 0.3)
    stores = stores_of()
    async with stores.opened(Limits()):
        assert await stores.states.take("a", seconds=60, client=1)
        redis.kill()
        with pytest.raises(RequestError, match="used states does not answer"):
            await stores.states.take("b", seconds=60, client=1)
        await stores.states.keep("a", b"{}", seconds=60)
        await redis.start()
        assert await stores.states.take("b", seconds=60, client=1)

        async def is_kept():
            return await stores.states.kept("a") == b"{}"

        await until(is_kept)


async def test_limits_are_rejected_while_redis_is_away_and_requests_that_ran_are_charged_later(
    redis, stores_of, monkeypatch
):
    monkeypatch.setattr("mcp_trio._redis.connection._CALL_SECONDS", 0.3)
    monkeypatch.setattr("mcp_trio._redis.connection._SETTLE_SECONDS", 0.3)
    rate = Rate.parse("100000/day")
    async with stores_of().opened(Limits()) as opened:
        limits = opened.limits
        holder = await limits.enter("a", 1)
        redis.kill()
        with pytest.raises(RequestError, match="store of limits does not answer"):
            await limits.take("a", rate, 1)
        with pytest.raises(RequestError, match="store of limits does not answer"):
            await limits.enter("b", 1)
        await limits.charge("a", rate, 100_000)
        await limits.leave("a", holder)
        await redis.start()

        async def is_charged():
            return await limits.take("a", rate, 1) > 0

        await until(is_charged)


async def test_sessions_go_on_while_redis_is_away_and_are_known_to_all_instances_when_it_is_back(
    redis, stores_of, monkeypatch
):
    monkeypatch.setattr("mcp_trio._redis.connection._CALL_SECONDS", 0.3)
    monkeypatch.setattr("mcp_trio._redis.connection._SETTLE_SECONDS", 0.3)
    async with (
        site_of(counting(), stores=stores_of()) as here,
        site_of(counting(), stores=stores_of()) as there,
    ):
        before = await there.open()
        redis.kill()
        opened = await there.open()
        for client in (before, opened):
            assert text((await client.ask(call("count", id=1))).json) == "1"
            streamed = await client.begin(call("log", {"seconds": 0}, id=2)).rest()
            assert notes(streamed) == ["one", "two"]
            answer = await here.ask("POST", call("count", id=3), Mcp_Session_Id=client.id)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        await redis.start()
        for client in (before, opened):

            async def is_known(client=client):
                answer = await here.ask("POST", call("tide", id=4), Mcp_Session_Id=client.id)
                return answer.status == 200

            await until(is_known)
        await there.runtime.hand_over()
        for client in (before, opened):
            answer = await here.ask("POST", call("count", id=5), Mcp_Session_Id=client.id)
            assert text(answer.json) == "2"


async def test_the_readiness_check_sees_that_redis_is_away_and_back(redis, stores_of):
    async with stores_of().opened(Limits()) as stores, stores.changes.joined(lambda _: None):

        async def is_reached():
            try:
                await stores.changes.check()
            except StoreUnavailableError:
                return False
            return True

        async def is_away():
            return not await is_reached()

        await until(is_reached)
        redis.kill()
        await until(is_away)
        await redis.start()
        await until(is_reached)


class Network:
    """Carries connections to Redis, and can lose the open ones without telling either side.

    Each connection carries no more than `bytes_max` in each direction.
    """

    def __init__(self, port, bytes_max=math.inf):
        self.port = port
        self.bytes_max = bytes_max
        self.losses = 0

    async def run(self, *, task_status):
        async with trio.open_nursery() as nursery:
            serve = lambda task_status: trio.serve_tcp(  # noqa: E731
                self.carry, 0, host="127.0.0.1", task_status=task_status
            )
            (listener,) = await nursery.start(serve)
            task_status.started(f"redis://127.0.0.1:{listener.socket.getsockname()[1]}/0")

    async def carry(self, client):
        server = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with server, trio.open_nursery() as nursery:
            nursery.start_soon(self.copy, client, server, self.losses)
            await self.copy(server, client, self.losses)
            nursery.cancel_scope.cancel()

    async def copy(self, source, target, losses):
        size = 0
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                size += len(data)
                if losses == self.losses and size <= self.bytes_max:
                    await target.send_all(data)

    def lose_connections(self):
        self.losses += 1


async def test_connections_that_the_network_has_lost_are_replaced(redis, nursery):
    network = Network(redis.port)
    url = await nursery.start(network.run)
    received = []
    async with open_connection(url, "harbour") as connection:

        async def read():
            for entry in await connection.next_entries("harbour:ships", "0-0"):
                received.append(entry[1])

        nursery.start_soon(read)
        await trio.sleep(0.1)
        await connection.call(lambda redis: redis.ping())  # on another connection than the read
        network.lose_connections()
        connection.append("harbour:ships", b"tug", entries_max=10)
        with trio.fail_after(PATIENCE_SECONDS):
            assert await connection.call(lambda redis: redis.ping()) == b"PONG"
            await connection.wait_until_written()

        async def has_arrived():
            return received == [b"tug"]

        await until(has_arrived)


async def test_a_slow_network_carries_all_that_has_waited_for_redis(redis, nursery, monkeypatch):
    monkeypatch.setattr("mcp_trio._redis.connection._RESPONSE_SECONDS", 0.5)
    network = Network(redis.port, bytes_max=3 * MIB)  # as much as it carries before the response
    url = await nursery.start(network.run)
    async with open_connection(url, "harbour") as connection:
        for _ in range(8):
            connection.append("harbour:ships", bytes(MIB // 2), entries_max=100)
        await connection.wait_until_written()
        async with redis.client() as client:
            assert await client.xlen("harbour:ships") >= 8


async def test_connections_that_break_while_a_command_waits_leave_room_for_others(redis):
    # coredis loses a place of its pool with each of them.
    async with (
        open_connection(f"{redis.url}?max_connections=2", "harbour") as connection,
        trio.open_nursery() as nursery,
        redis.client() as other,
    ):
        nursery.start_soon(connection.next_entries, "harbour:ships", "0-0")

        async def is_waiting():
            return any(each["cmd"] == "xread" for each in await other.client_list())

        for _ in range(3):
            await until(is_waiting)
            for each in await other.client_list():
                if each["cmd"] == "xread":
                    await other.client_kill(identifier=int(each["id"]))
        with trio.fail_after(PATIENCE_SECONDS):
            assert await connection.call(lambda redis: redis.ping()) == b"PONG"
        nursery.cancel_scope.cancel()


async def test_stores_open_while_redis_is_away(redis, join):
    redis.kill()
    handler = ScriptedHandler()
    async with join(handler) as one:
        one.keep("a", FACTS)
        await redis.start()

        async def is_known():
            with contextlib.suppress(StoreUnavailableError):
                return await one.find("a")

        await until(is_known)


async def test_the_events_of_a_session_are_bounded_by_their_bytes(redis, stores_of):
    limits = Limits(http=HttpLimits(events_kept_bytes_max=20_000))
    async with stores_of().opened(limits) as one, stores_of().opened(limits) as two:
        events = one.events("a")
        stream = events.open_stream([1])
        ids = [events.keep(stream, b"{%s}" % (b" " * 2000)) for _ in range(50)]
        await events.settle()
        taken = two.events("a")
        await taken.load()
        ids += [taken.keep(stream, b"{%s}" % (b" " * 2000)) for _ in range(50)]
        await taken.settle()
        async with redis.client() as client:
            stored = await client.xrange("harbour:events:a")
        # Redis removes events in nodes of a few kilobytes.
        assert 16_000 <= sum(len(each.field_values[b"m"]) for each in stored) <= 30_000
        with pytest.raises(LookupError):
            taken.after(ids[50])
        assert len(taken.after(ids[-5])[1]) == 4


async def test_the_newest_events_can_be_loaded_when_redis_has_lost_the_oldest(redis, stores_of):
    async with stores_of().opened(Limits()) as stores:
        kept = stores.events("session")
        stream = kept.open_stream()
        ids = [kept.keep(stream, b'{"method":"%d"}' % number) for number in range(4)]
        await kept.settle()
        async with redis.client() as client:
            oldest = await client.xrange("harbour:events:session", count=2)
            await client.xdel("harbour:events:session", [each.identifier for each in oldest])
        other = stores.events("session")
        assert await other.load() == {stream: []}
        assert [data for _, data in other.after(ids[2])[1]] == [b'{"method":"3"}']
        with pytest.raises(LookupError, match="no longer stored"):
            other.after(ids[0])


async def test_a_message_that_was_taken_is_not_unread(join):
    handlers = [ScriptedHandler(), ScriptedHandler()]
    async with join(handlers[0]) as one, join(handlers[1]) as two:
        one.send(two.name, b"taken")

        async def is_taken():
            return handlers[1].received

        await until(is_taken)
        one._links[two.name].begin_epoch()
        assert list(await one.unread(two.name)) == []


@pytest.fixture
def stalled(join, monkeypatch):
    """Two instances, of which the second one takes no messages by itself: it is very slow."""

    @contextlib.asynccontextmanager
    async def stalled():
        handlers = [ScriptedHandler(), ScriptedHandler()]
        async with join(handlers[0]) as one:
            with monkeypatch.context() as patched:
                patched.setattr(type(one), "take_messages", lambda _: trio.sleep_forever())
                async with join(handlers[1]) as two:
                    yield one, two, handlers[1]

    return stalled


async def inbox(instance):
    key = instance._connection.key("inbox", instance.name)
    await instance.settle()
    return key, await instance._connection.entries(key)


async def test_a_slow_instance_does_not_act_on_messages_that_were_withdrawn(stalled):
    async with stalled() as (one, two, handler):
        one.send(two.name, b"withdrawn")
        await one.settle()
        key, entries = await inbox(two)  # it has read the message, and does not go on
        one._lose(two.name, one._links[two.name])
        assert set(await one.unread(two.name)) == {b"withdrawn"}
        assert await two._take_batch(key, entries)
        assert handler.received == []
        one.send(two.name, b"later")
        await one.settle()
        await until_taken(two, handler)
        assert handler.received == [(one.name, b"later")]


async def test_a_slow_instance_breaks_off_what_it_had_in_progress(stalled):
    async with stalled() as (one, two, handler):
        one.send(two.name, b"begun")
        await one.settle()
        await until_taken(two, handler)
        one.send(two.name, b"withdrawn")
        await one.settle()
        one._lose(two.name, one._links[two.name])
        await one.unread(two.name)
        one.send(two.name, b"later")
        await one.settle()
        handler.received.clear()
        await until_taken(two, handler)
        assert handler.lost == [one.name]
        assert handler.received == [(one.name, b"later")]


async def until_taken(instance, handler):
    async def has_taken():
        key, entries = await inbox(instance)
        assert not entries or await instance._take_batch(key, entries)
        return handler.received

    await until(has_taken)


async def test_the_copy_of_a_message_that_was_taken_is_not_unread(stalled):
    async with stalled() as (one, two, handler):
        one.send(two.name, b"taken")
        await one.settle()
        assert await two._take_batch(*await inbox(two))
        link = one._links[two.name]
        one._post_message(two.name, link, 1, b"taken")  # as when Redis is back
        await one.settle()
        link.begin_epoch()
        assert list(await one.unread(two.name)) == []
        assert handler.received == [(one.name, b"taken")]


async def test_messages_are_taken_if_the_answer_of_redis_was_lost(stalled):
    async with stalled() as (one, two, handler):
        one.send(two.name, b"first")
        await one.settle()
        key, entries = await inbox(two)
        evaluate = type(two._connection).evaluate

        async def twice(connection, *args):
            await evaluate(connection, *args)
            return await evaluate(connection, *args)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(two._connection), "evaluate", twice)
            assert await two._take_batch(key, entries)
        assert handler.received == [(one.name, b"first")]


async def test_an_error_of_redis_is_not_answered_by_requests_without_a_pause(join, monkeypatch):
    async with join(ScriptedHandler()) as one, join(ScriptedHandler()) as two:
        attempts = []

        async def rejected(*_args):
            attempts.append(trio.current_time())
            raise StoreUnavailableError("READONLY You can't write against a read only replica.")

        with monkeypatch.context() as patched:
            patched.setattr(RedisConnection, "evaluate", rejected)
            one.send(two.name, b"message")
            await one.settle()
            await trio.sleep(0.5)
        assert 1 <= len(attempts) < 10


async def test_withdrawn_messages_are_kept_while_a_request_may_ask_for_them(stalled):
    async with stalled() as (one, two, _):
        one._handler.watched.add(two.name)
        one.send(two.name, b"withdrawn")
        await one.settle()
        one._lose(two.name, one._links[two.name])
        await one.unread(two.name)
        await one._watch_peers()
        assert set(await one.unread(two.name)) == {b"withdrawn"}
        one._handler.watched.clear()
        await one._watch_peers()
        assert list(await one.unread(two.name)) == []
