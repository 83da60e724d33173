"""Handlers that take what arrives as one value: low-level methods, completions, given schemas."""

import functools
import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from mcp_trio._server.callables import place
from mcp_trio._server.signatures import Signature


@attrs.define(kw_only=True, eq=False, slots=False)  # as what it extends
class WholeSignature(Signature):
    """A signature whose first parameter besides the context takes everything, whatever its name."""

    values_max: ClassVar[int] = 1

    @functools.cached_property
    def taking(self) -> list[str]:
        """The parameters that take the values: the first, and others that have no default.

        Raises:
            TypeError: There are more than values.
        """
        every = inspect.signature(self.handler).parameters.values()
        own = [item for item in every if item.name != self.context_parameter]
        filled = own[:1] + [item for item in own[1:] if item.default is inspect.Parameter.empty]
        for item in filled[self.values_max :]:
            raise TypeError(
                f"{place(self._function, item.name)} cannot be filled: "
                f"no more than {self.values_max} can, and the parameters before it are"
            )
        return [item.name for item in filled]

    @property
    def whole_type(self) -> Any:
        """What the annotation says of the value; `Any` if it says nothing."""
        return self._hints[self.taking[0]] if self.taking else Any

    def bind(self, arguments: Any, context: Any) -> dict[str, Any]:
        """The keywords to call the handler with."""
        return self._keywords((arguments,), context)

    def _keywords(self, values: Sequence[Any], context: Any) -> dict[str, Any]:
        keywords = dict(zip(self.taking, values, strict=False))
        if self.context_parameter is not None:
            keywords[self.context_parameter] = context
        return keywords
