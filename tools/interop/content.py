"""Content of the "everything" servers that the Python SDKs run, in the words of the wire."""

from facts import FACTS
from parties import Json


def text(of: str) -> Json:
    """A text."""
    return {"type": "text", "text": of}


def image() -> Json:
    """An image."""
    return {"type": "image", "data": FACTS.png, "mimeType": "image/png"}


def audio() -> Json:
    """A sound."""
    return {"type": "audio", "data": FACTS.wav, "mimeType": "audio/wav"}


def link() -> Json:
    """The way to a resource."""
    return {"type": "resource_link", "uri": FACTS.static_text_uri, "name": "static-text"}


def resource(uri: str, mime_type: str, of: str) -> Json:
    """An embedded resource."""
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": of}}


def prompt_message(content: Json) -> Json:
    """A message of a prompt."""
    return {"role": "user", "content": content}
