"""Compare the schemas that we generate with those of both official Python SDKs and of pydantic.

`python tools/interop/schemas.py [--sdk-1 PYTHON] [--sdk-2 PYTHON]` prints each difference for about
50 annotations, with the reason why it stays. Status 1: a difference has no reason. A PYTHON has
`mcp` 1.x or 2.x; without the options they are the environments of `install.py`.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from peers import PYTHON_1, PYTHON_2

SHAPES: Final = Path(__file__).with_name("schema_shapes.py")
SECONDS: Final = 120

# The first name of a shape is that before " = ": a default has the reason of its type.
INPUT_REASONS: Final = {
    "Literal of one": "an `enum` of one value means the same, and Gemini knows only `enum`",
    "Literal of both": "a list of types excludes what `enum` excludes already",
    "Flag": "any combination of flags is accepted, which a list of single flags would exclude",
    "datetime": "`date-time` demands a time zone; annotate with `Timezone(...)` to demand one",
    "time": "`time` demands a time zone; annotate with `Timezone(...)` to demand one",
    "Decimal": "a JSON number would lose digits on its way through a host",
    "bytes": "bytes are base64 text, which `contentEncoding` says and `binary` does not",
    "Path": "`path` is no format of JSON Schema",
    "attrs class": "the SDKs do not know the class",
    "msgspec.Struct": "the SDKs do not know the class",
}
OUTPUT_REASONS: Final = {
    **dict.fromkeys(
        ("Enum", "IntEnum", "StrEnum", "Flag", "datetime", "date", "time", "timedelta", "UUID"),
        "the SDKs send such values as text only",
    ),
    **dict.fromkeys(("Decimal", "Path", "NamedTuple"), "the SDKs send such values as text only"),
    "TypedDict": "SDK 1 gives a key that is not required a default of null",
    "dataclass, recursive": "the root of the schema is written in full, not as a reference",
    "dict": "the SDKs send such a dict as text only; it is an object",
    "dict[int, str]": "the keys are strings in JSON, so it is an object that needs no wrapper",
    "None": "a tool without a result has no content",
    "bytes": "bytes are sent as an embedded resource",
    "attrs class": "the SDKs do not know the class",
    "msgspec.Struct": "the SDKs do not know the class",
    **dict.fromkeys(("Literal of one", "Literal of both"), "as in the input schema"),
}


def schemas(python: str, implementation: str) -> dict[str, Any]:
    """Return the schemas that an implementation generates, by the name of the annotation."""
    done = subprocess.run(
        [python, str(SHAPES), implementation],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=SECONDS,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def normal(schema: Any, definitions: dict[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """Return a schema without titles and defaults of the format, and with its `$ref`s resolved."""
    if isinstance(schema, list):
        return [normal(item, definitions, inside) for item in schema]
    if not isinstance(schema, dict):
        return schema
    members = dict(schema)
    name = str(members.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions and name not in inside:
        del members["$ref"]
        members = definitions[name] | members
        inside = (*inside, name)
    members = {key: it for key, it in members.items() if key not in ("title", "$defs")}
    if members.get("additionalProperties") is True:
        del members["additionalProperties"]
    return {key: normal(it, definitions, inside) for key, it in members.items()}


def argument(found: Any) -> Any:
    """Return the normal schema of the argument of a tool, or of a whole schema of pydantic."""
    if found is None or "error" in found:
        return None
    schema = found["input"]
    own = schema["properties"]["value"] if "value" in schema.get("properties", {}) else schema
    return normal(own, schema.get("$defs", {}))


def result(found: Any) -> Any:
    """Return the normal output schema of a tool."""
    if found is None or not found.get("output"):
        return None
    schema = found["output"]
    return normal(schema, schema.get("$defs", {}))


def short(schema: Any) -> str:
    text = "-" if schema is None else json.dumps(schema)
    return text if len(text) <= 150 else text[:149] + "…"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sdk-1", default=str(PYTHON_1.folder / "bin" / "python"))
    parser.add_argument("--sdk-2", default=str(PYTHON_2.folder / "bin" / "python"))
    options = parser.parse_args()
    ours = schemas(sys.executable, "ours")
    others = {
        "SDK 1": schemas(options.sdk_1, "sdk-1"),
        "SDK 2": schemas(options.sdk_2, "sdk-2"),
        "pydantic": schemas(options.sdk_1, "pydantic"),
    }
    compared = unexplained = 0
    for kind, read, reasons in (
        ("input", argument, INPUT_REASONS),
        ("output", result, OUTPUT_REASONS),
    ):
        for name, found in ours.items():
            for other, table in others.items():
                if name not in table or (
                    other == "pydantic" and (kind == "output" or " = " in name)
                ):
                    continue
                compared += 1
                mine, theirs = read(found), read(table[name])
                if mine == theirs:
                    continue
                reason = reasons.get(name.partition(" = ")[0])
                unexplained += reason is None
                print(f"{kind} of {name}: {reason or 'UNEXPLAINED'}")
                print(f"    ours   {short(mine)}\n    {other:6} {short(theirs)}")
    print(f"{len(ours)} annotations, {compared} comparisons, {unexplained} differences unexplained")
    sys.exit(1 if unexplained else 0)


if __name__ == "__main__":
    main()
