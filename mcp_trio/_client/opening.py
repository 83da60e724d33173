"""A channel and a connection become a session, recorded or not."""

from mcp_trio._engine import Application, Recording, Session
from mcp_trio._protocol import Connection
from mcp_trio._recorder.opening import begin_session
from mcp_trio._recorder.options import RecordTo
from mcp_trio._transports.channel import Channel


async def open_session(
    channel: Channel,
    connection: Connection,
    application: Application,
    *,
    record: RecordTo | None,
) -> Session:
    """A session that owns `channel`, recorded if there is a place to `record` it.

    Raises:
        RecordingError: The recording cannot be made; the channel is closed.
        ValueError: Its redaction is wrong in itself; the channel is closed.
    """
    if record is None:
        return Session(channel, connection, application)
    try:
        recorder, channel_number = begin_session(
            record,
            role="client",
            transport=getattr(channel, "transport", type(channel).__name__),
            name=connection.our_info.name,
            version=connection.our_info.version,
            limits=connection.limits,
        )
    except BaseException:
        await channel.aclose()
        raise
    return Session(channel, connection, application, Recording(recorder, channel_number))
