"""Read the recording of a finished session."""

from collections.abc import Iterable

from mcp_trio.recording import Damage, Record, read_recording


def records_of(lines: Iterable[bytes]) -> tuple[list[Record], list[str]]:
    """The records of a recording, and what keeps it from being whole, in sentences.

    Raises:
        RecordingError: It is no recording.
    """
    records: list[Record] = []
    faults: list[str] = []
    for item in read_recording(lines):
        if isinstance(item, Damage):
            faults.append(f"line {item.line} of the recording: {item.text}")
        else:
            records.append(item)
    if not records or records[-1].kind != "end":
        faults.append("the recording has no end")
    return records, faults
