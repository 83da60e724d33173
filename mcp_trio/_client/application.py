"""What a client's session tells: to the client itself first, and then to people's callbacks."""

import logging
from collections.abc import Callable
from typing import Any

import attrs

from mcp_trio._client.callbacks import Callbacks
from mcp_trio._client.listening import notifications_of
from mcp_trio._protocol import ACKNOWLEDGED, METHODS, Method

logger = logging.getLogger("mcp_trio")


@attrs.define(kw_only=True, eq=False)
class ClientApplication(Callbacks):
    """The callbacks; `notice` hears of each notification before they do."""

    notice: Callable[[str, Any], None]

    def hears(self, method: Method) -> bool:
        """See `Application.hears`."""
        return method.name == ACKNOWLEDGED or super().hears(method)

    async def notified(self, method: Method, params: Any) -> None:
        """See `Application.notified`; a subscription that began again may have missed anything."""
        if method.name == ACKNOWLEDGED:
            for name, missed in notifications_of(params.notifications):
                await self._tell_of_missed(METHODS[name], missed)
            return
        self.notice(method.name, params)
        await super().notified(method, params)

    async def _tell_of_missed(self, method: Method, params: Any) -> None:
        """What one callback raises keeps nothing from the next."""
        try:
            await super().notified(method, params)
        except Exception:
            logger.exception("the callback for %s failed", method.name)
