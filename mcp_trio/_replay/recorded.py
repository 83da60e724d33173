"""A recording of any role as the conversation that it holds."""

import os

from mcp_trio._journal.conversation import Conversation, conversation
from mcp_trio._journal.reader import Flaw, read_recording
from mcp_trio._recorder.sink import open_recording


def load_conversation(path: str | os.PathLike[str], *, channel: int | None = None) -> Conversation:
    """What client and server said in a recording; flaws of the file are passed over.

    Raises:
        RecordingError: The file is no recording, or holds several sessions and `channel` names
            none of them.
    """
    items = read_recording(open_recording(path))
    return conversation((item for item in items if not isinstance(item, Flaw)), channel=channel)
