"""What an "everything" server says: servers send it, clients compare; JavaScript reads it, too."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Final

FACTS: Final = SimpleNamespace(
    **json.loads(Path(__file__).with_name("facts.json").read_text(encoding="utf-8"))
)
