"""How a session comes to be recorded: the recording, and the sequencer that fills it."""

import os

from mcp_trio._engine.sequencer import Recording
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._recorder.opening import open_recorder


def start_recording(
    path: str | os.PathLike[str],
    *,
    role: str,
    transport: str,
    name: str,
    version: str,
    tools_digest: str | None = None,
    lifespan: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Recording:
    """A sequencer that records a session to `path`, from now on; to be given to one `Session`.

    A `path` that is a folder, or ends with a slash, gets a new file for this session, named after
    the server, the time and the process. The file may be read by its owner only.

    Raises:
        RecordingError: The file cannot be made.
    """
    recorder = open_recorder(
        path,
        role=role,
        transport=transport,
        name=name,
        version=version,
        tools_digest=tools_digest,
        lifespan=lifespan,
        limits=limits,
    )
    return Recording(recorder, recorder.clock_ns)
