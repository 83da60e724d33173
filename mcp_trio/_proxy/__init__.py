"""Record the messages between any client and any server."""
