"""The words of the wire, of what either official Python SDK has made of them."""

from parties import Json
from pydantic import BaseModel


def wire(value: BaseModel) -> Json:
    """A typed value in the words of the wire."""
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)
