"""Handlers that take what arrives as one value: low-level methods, completions, given schemas."""

import functools
import inspect
from typing import Any

import attrs

from mcp_trio._server.callables import place
from mcp_trio._server.signatures import Signature


@attrs.define(kw_only=True, eq=False)
class WholeSignature(Signature):
    """A signature whose first parameter besides the context takes everything, whatever its name."""

    @functools.cached_property
    def whole(self) -> inspect.Parameter | None:
        """The parameter that takes the value; None if the handler does not want it.

        Raises:
            TypeError: Another one has to be filled as well.
        """
        every = inspect.signature(self.handler).parameters.values()
        own = [item for item in every if item.name != self.context_parameter]
        for item in own[1:]:
            if item.default is inspect.Parameter.empty:
                raise TypeError(
                    f"{place(self._function, item.name)} cannot be filled:"
                    " one value arrives, and the first parameter takes it"
                )
        return own[0] if own else None

    @property
    def whole_type(self) -> Any:
        """What the annotation says of the value; `Any` if it says nothing."""
        return Any if self.whole is None else self._hints[self.whole.name]

    def bind(self, arguments: Any, context: Any) -> dict[str, Any]:
        """The keywords to call the handler with."""
        keywords = {} if self.whole is None else {self.whole.name: arguments}
        if self.context_parameter is not None:
            keywords[self.context_parameter] = context
        return keywords
