"""A list of events, and the tasks that wait for them."""

import trio


class Story(list):
    """Words in the order in which they were noted."""

    def __init__(self):
        super().__init__()
        self._news = trio.Event()

    def append(self, word):
        super().append(word)
        news, self._news = self._news, trio.Event()
        news.set()

    async def until(self, word):
        """Returns as soon as it was noted."""
        while word not in self:
            await self._news.wait()
