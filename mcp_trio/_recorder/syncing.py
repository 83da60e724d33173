"""Making a file survive a power cut, now and then, in a thread of its own."""

import os
import threading


class SyncingThread:
    """Syncs a file so often until it is stopped; a sync that fails is told to the next writer.

    It has a descriptor of its own, so that it may outlive the writer's on a disk that hangs.

    Raises:
        OSError: No thread can be started.
    """

    def __init__(self, descriptor: int, seconds: float) -> None:
        self._descriptor = os.dup(descriptor)
        self._seconds = min(seconds, threading.TIMEOUT_MAX)
        self._failure: OSError | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mcp_trio sync", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            os.close(self._descriptor)
            raise OSError(None, f"no thread to sync it: {error}") from error

    def report(self) -> None:
        """Raise the failure of a sync that nobody was told of yet."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def stop(self, seconds_max: float) -> None:
        """Let the thread sync for the last time, and end; wait no longer than that for it."""
        self._stopped.set()
        self._thread.join(seconds_max)

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._sync()
        self._sync()
        os.close(self._descriptor)

    def _sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._failure = error
