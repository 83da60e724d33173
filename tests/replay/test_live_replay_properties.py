"""Property: a generated conversation has no differences between its mocked client and server."""

import random

import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.recording import run_inputs
from mcp_trio.testing import mock_server


class _Talk:
    """Says at random what a client and a server may say."""

    def __init__(self, seed):
        self.said = []
        self._random = random.Random(seed)
        self._count = 0
        self._requests = []
        self._questions = []

    def go_on(self):
        moves = [self._ask, self._ask, self._tell, self._answer, self._answer, self._question]
        moves += [self._reply, self._report, self._cancel, self._notify]
        self._random.choice(moves)()

    def _number(self):
        self._count += 1
        return self._count

    def _say(self, who, **message):
        self.said.append((who, message))

    def _ask(self):
        number = self._number()
        params = {"name": f"tool {number}", "_meta": {"progressToken": f"token {number}"}}
        self._say("C", id=number, method="tools/call", params=params)
        self._requests.append(number)

    def _answer(self):
        if self._requests:
            number = self._requests.pop(self._random.randrange(len(self._requests)))
            if self._random.random() < 0.2:
                self._say("S", id=number, error={"code": -number, "message": "no"})
            else:
                self._say("S", id=number, result={"of": number})

    def _report(self):
        if self._requests:
            token = f"token {self._random.choice(self._requests)}"
            params = {"progressToken": token, "progress": self._number()}
            self._say("S", method="notifications/progress", params=params)

    def _question(self):
        if self._requests:
            number = self._number()
            self._say("S", id=number, method="roots/list", params={"number": number})
            self._questions.append(number)

    def _reply(self):
        if self._questions:
            self._say("C", id=self._questions.pop(0), result={"roots": []})

    def _cancel(self):
        if self._requests:
            number = self._requests.pop()
            self._say("C", method="notifications/cancelled", params={"requestId": number})

    def _notify(self):
        params = {"data": self._number()}
        self._say("S", method="notifications/message", params=params)

    def _tell(self):
        self._say("C", method=f"notifications/of/{self._number()}")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(min_value=0), st.integers(1, 40), st.integers(0, 2**32))
def test_a_recorded_client_and_its_mock_exchange_all_messages(spoken, seed, length, schedule):
    talk = _Talk(seed)
    for _ in range(length):
        talk.go_on()
    path = spoken(*talk.said)
    mock = mock_server(path)
    clock = trio.testing.MockClock(autojump_threshold=0)
    with seeded_schedule(schedule):
        report = trio.run(run_inputs, path, mock, clock=clock)
    assert report.is_same, f"{report}\n{talk.said}"
    assert (mock.unrecorded, mock.unused, report.unsent) == ((), (), 0)
