"""Helpers for the rounds of a request that needs input."""

import trio

from mcp_trio import Context

NOT_VALID = {"code": -32602, "message": "the request state is not valid"}


def filled(value):
    """A user's answer to a form of one value."""
    return {"action": "accept", "content": {"value": value}}


TRUE, FALSE = filled(True), filled(False)


def text_of(result):
    """The text of a result that is the last."""
    assert result["resultType"] == "complete"
    return result["content"][0]["text"]


def message_of(result, key):
    """Return the message of one of the input requests of a round."""
    return result["inputRequests"][key]["params"]["message"]


def asking_at_its_end(errors):
    """A handler that asks, and once more when that ends it; `errors` are the texts of what it gets."""

    async def ask(*, ctx: Context) -> str:
        try:
            await ctx.elicit("sure?", bool)
        finally:
            with trio.CancelScope(shield=True):
                try:
                    await ctx.elicit("really?", bool)
                except Exception as error:
                    errors.append(str(error))
        return "?"

    return ask
