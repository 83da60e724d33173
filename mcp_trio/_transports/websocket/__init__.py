"""WebSocket: channels of one message for each text message, at both ends."""
