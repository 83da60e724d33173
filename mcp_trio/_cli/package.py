"""`mcp-trio package`: the files that publish a server, server.json and an MCPB bundle."""

import io
import os
import re
import sys
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from email.utils import parseaddr
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict
from urllib.parse import urlsplit

import attrs
import click
import msgspec

from mcp_trio._cli.options import check_overwrites_nothing, load_server, overwrite_option

if TYPE_CHECKING:
    from mcp_trio._server.server import Server
    from mcp_trio.types import Prompt, Tool

# https://modelcontextprotocol.io/registry
SERVER_SCHEMA: Final = (
    "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
)
_SERVER_NAME: Final = re.compile(r"[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)+/[a-zA-Z0-9._-]+")
_NAME_CHARS_MAX: Final = 200
_DESCRIPTION_CHARS_MAX: Final = 100
# The registry looks for this text in the README of a package on PyPI.
_NAME_IN_README: Final = re.compile(r"mcp-name:\s*([^\s>]+)")
_HTTP_URL: Final = re.compile(r"https?://\S+")

# https://github.com/modelcontextprotocol/mcpb/blob/main/MANIFEST.md
MANIFEST_VERSION: Final = "0.4"  # the first one with servers of type "uv"

# The keys of `project.urls`, normalized, that name a page. The first one that is present counts.
# https://packaging.python.org/en/latest/specifications/well-known-project-urls/
_REPOSITORY: Final = ("repository", "source", "sourcecode", "github", "code")
_FORGES: Final[Mapping[str, str]] = {"github.com": "github", "gitlab.com": "gitlab"}

# The zip format has no earlier time. With a fixed one, equal files make equal bundles.
_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)
_ZIP_MODE: Final = 0o644 << 16

# The parts of pyproject.toml that are used.
# https://packaging.python.org/en/latest/specifications/pyproject-toml/
_DISTRIBUTION_NAME: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z"
_ProjectTable = TypedDict(
    "_ProjectTable",
    {
        "name": Annotated[str, msgspec.Meta(pattern=_DISTRIBUTION_NAME)],
        "version": str,
        "description": str,
        "readme": str | dict[str, str],
        "license": str | dict[str, str],
        "license-files": list[str],
        "requires-python": str,
        "authors": list[dict[str, str]],
        "keywords": list[str],
        "urls": dict[str, str],
        "scripts": dict[str, str],
    },
    total=False,
)


class _Document(TypedDict, total=False):
    project: _ProjectTable


@attrs.frozen(kw_only=True)
class Project:
    """The project of a server, from its pyproject.toml and the options of the command.

    Attributes:
        folder: The folder with pyproject.toml.
        table: The table `project` of that file.
        target: The TARGET, relative to that folder.
        server_file: The file of the server's module.
        source: The server's top-level package, a folder, or its only module.
    """

    folder: Path
    table: Mapping[str, Any]
    target: str
    server_file: Path
    source: Path
    version: str
    description: str

    @property
    def name(self) -> str:
        """The name of the distribution."""
        name: str = self.table["name"]
        return name

    @property
    def readme(self) -> Path | None:
        """The README that pyproject.toml names, if the file exists."""
        readme: Any = self.table.get("readme", "")  # a name, or a table with one
        name: Any = readme if isinstance(readme, str) else readme.get("file", "")
        path = self.folder / name
        return path if path.is_file() else None

    @property
    def name_in_readme(self) -> str | None:
        """The name in the registry that the README says."""
        text = b"" if self.readme is None else self.readme.read_bytes()
        found = _NAME_IN_README.search(text.decode(errors="replace"))
        return None if found is None else found[1]

    def url(self, keys: Sequence[str]) -> str | None:
        """Return the URL in `project.urls` under the first of these keys that is present."""
        urls = {
            re.sub(r"[\W_]", "", key).lower(): url
            for key, url in self.table.get("urls", {}).items()
        }
        return next((urls[key] for key in keys if key in urls), None)


@click.command(
    short_help="Write the files that publish a server.",
    epilog="""\b
--server-json writes server.json for the MCP registry, for a package on PyPI that hosts run with
uvx. Its README has to contain the text "mcp-name: NAME"; NAME is read from there without --name.

\b
--mcpb writes weather.mcpb for the distribution weather, a bundle that hosts install with uv. It
contains manifest.json, pyproject.toml, uv.lock, the README and licence files, and the server's
package. --include adds other files. The bundle serves over stdio.

\b
Options give what pyproject.toml does not say. The server is imported, without its lifespan.

\b
Exit status: 0 success; 1 a file cannot be written; 2 TARGET names no server, or information is
missing.

\b
Examples:
  mcp-trio package weather.server --server-json --name io.github.ada/weather
  mcp-trio package weather.server --mcpb --author 'Ada <ada@example.com>' --output dist
""",
)
@click.argument("target")
@click.option("--server-json", "with_server_json", is_flag=True, help="Write server.json.")
@click.option("--mcpb", "with_bundle", is_flag=True, help="Write an MCPB bundle.")
@click.option(
    "--name",
    "registry_name",
    metavar="NAME",
    help="For server.json: the name in the registry, in reverse-DNS form, such as "
    "io.github.ada/weather.",
)
@click.option(
    "--url",
    metavar="URL",
    help="For server.json: the URL at which the command of the package serves over HTTP; without "
    "it, stdio.",
)
@click.option(
    "--author",
    metavar="'NAME <EMAIL>'",
    help="For the bundle: the author; by default the first one in pyproject.toml.",
)
@click.option(
    "--include",
    "included",
    metavar="PATH",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="For the bundle: another file or folder of the project.",
)
@click.option(
    "--description",
    metavar="TEXT",
    help="What the server does; by default the description in pyproject.toml.",
)
@click.option(
    "--version",
    metavar="TEXT",
    help="The version of the package; by default the one in pyproject.toml.",
)
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Write to this folder; the working directory by default.",
)
@overwrite_option
def package_command(
    target: str,
    registry_name: str | None,
    url: str | None,
    author: str | None,
    included: tuple[Path, ...],
    description: str | None,
    version: str | None,
    output: Path,
    *,
    with_server_json: bool,
    with_bundle: bool,
    overwrite: bool,
) -> None:
    """Write server.json for the MCP registry, or an MCPB bundle, for the server TARGET."""
    if not (with_server_json or with_bundle):
        raise click.UsageError("nothing to write: add --server-json, --mcpb, or both")
    server = load_server(target)
    project = read_project(target, description=description, version=version)
    files: dict[Path, bytes] = {}
    if with_server_json:
        document = server_json(project, server, registry_name, url)
        files[output / "server.json"] = _json(document)
        if project.name_in_readme != document["name"]:
            line = f"<!-- mcp-name: {document['name']} -->"
            click.echo(f"add this line to the README for the registry: {line}", err=True)
    if with_bundle:
        manifest = manifest_json(project, server, author)
        files[output / f"{project.name}.mcpb"] = bundle(project, manifest, included)
    for path in files:
        check_overwrites_nothing(str(path), overwrite=overwrite)
    for path, content in files.items():
        try:
            path.write_bytes(content)
        except OSError as error:
            raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
        click.echo(f"wrote {path}")


def read_project(target: str, *, description: str | None, version: str | None) -> Project:
    """Read the pyproject.toml of an imported server; a description or version given replaces its.

    Raises:
        click.UsageError: There is no pyproject.toml, it cannot be used, or information is missing.
    """
    from mcp_trio._replay.targets import split_target

    module, colon, name = split_target(target)
    is_file = module.endswith(".py")
    server_file = Path(module if is_file else str(sys.modules[module].__file__)).resolve()
    source = server_file
    while (source.parent / "__init__.py").exists():
        source = source.parent
    file = None
    for folder in source.parents:
        if (folder / "pyproject.toml").is_file():
            file = folder / "pyproject.toml"
        if file is not None or (folder / ".git").exists():  # A project ends at its repository.
            break
    if file is None:
        raise click.UsageError(
            f"{target} has no pyproject.toml, beside it or above: write one, or begin with"
            " `mcp-trio new`"
        )
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
        table: Mapping[str, Any] = msgspec.convert(document, _Document).get("project", {})
    except (OSError, ValueError) as error:
        raise click.UsageError(f"cannot read {file}: {error}") from error
    if "name" not in table:
        raise click.UsageError(f"{file} has no project.name: write it")
    version = version or table.get("version")
    if not version:
        raise click.UsageError(f"{file} has no project.version: add --version TEXT")
    description = description or table.get("description")
    if not description:
        raise click.UsageError(f"{file} has no project.description: add --description TEXT")
    if is_file:
        module = server_file.relative_to(file.parent).as_posix()
    return Project(
        folder=file.parent,
        table=table,
        target=f"{module}{colon}{name}",
        server_file=server_file,
        source=source,
        version=version,
        description=description,
    )


# server.json.


def server_json(
    project: Project, server: "Server", name: str | None, url: str | None
) -> dict[str, Any]:
    """Return the content of server.json for a project that is a package on PyPI.

    Without a name in the registry, the README says it. Without the URL at which the package's
    command serves over HTTP, it serves over stdio.

    Raises:
        click.UsageError: The name is missing, a value is not valid in the registry, or hosts could
            not run the package.
    """
    name = name or project.name_in_readme
    if name is None:
        raise click.UsageError(
            f"server.json needs a name in the registry: add --name io.github.USER/{project.name}"
        )
    if not _SERVER_NAME.fullmatch(name) or len(name) > _NAME_CHARS_MAX:
        raise click.UsageError(
            f"{name!r} is not a name in reverse-DNS form: write --name"
            f" io.github.USER/{project.name}, or --name com.example/{project.name} for a domain"
        )
    if len(project.description) > _DESCRIPTION_CHARS_MAX:
        raise click.UsageError(
            f"the description has {len(project.description)} characters, and the registry takes"
            f" {_DESCRIPTION_CHARS_MAX}: add --description with a shorter TEXT"
        )
    if url is not None and not _HTTP_URL.fullmatch(url):
        raise click.UsageError(
            f"{url!r} is not a URL of HTTP: write --url http://127.0.0.1:8000/mcp"
        )
    if project.name not in project.table.get("scripts", {}):
        raise click.UsageError(
            f"hosts run `uvx {project.name}`, but pyproject.toml has no such command: add"
            f" {project.name} to project.scripts"
        )
    repository = project.url(_REPOSITORY)
    try:
        host = urlsplit(repository or "").hostname or ""
    except ValueError as error:
        raise click.UsageError(f"pyproject.toml: {repository!r}: {error}") from None
    return _without_none(
        {
            "$schema": SERVER_SCHEMA,
            "name": name,
            "title": server.title,
            "description": project.description,
            "version": project.version,
            "websiteUrl": server.website_url or project.url(["homepage"]),
            "repository": repository and {"url": repository, "source": _FORGES.get(host, host)},
            "packages": [
                {
                    "registryType": "pypi",
                    "identifier": project.name,
                    "version": project.version,
                    "runtimeHint": "uvx",
                    "transport": {"type": "stdio"}
                    if url is None
                    else {"type": "streamable-http", "url": url},
                }
            ],
        }
    )


# The bundle.


def manifest_json(project: Project, server: "Server", author: str | None) -> dict[str, Any]:
    """Return the content of a bundle's manifest.json, with the tools and prompts of the server.

    The server gets no lifespan, so it cannot be served afterwards. The author, `NAME <EMAIL>`, is
    by default the first one in pyproject.toml.
    """
    if author is not None:
        name, email = parseaddr(author)
        authors = [{"name": name, "email": email or None} if name else {"name": email}]
    else:
        authors = [each for each in project.table.get("authors", ()) if "name" in each]
    if not authors or not authors[0]["name"]:
        raise click.UsageError("the bundle needs an author: add --author 'NAME <EMAIL>'")

    import trio

    from mcp_trio._client.client import Client

    async def list_entries() -> "tuple[Sequence[Tool], Sequence[Prompt]]":
        async with Client(server) as client:
            offered = client.server_capabilities
            tools = await client.list_tools() if offered.tools is not None else []
            prompts = await client.list_prompts() if offered.prompts is not None else []
            return tools, prompts

    server.lifespan = None  # lists do not need what it opens
    tools, prompts = trio.run(list_entries)
    repository = project.url(_REPOSITORY)
    licence = project.table.get("license")
    requires_python = project.table.get("requires-python")
    run = ["run", "--directory", "${__dirname}", "mcp-trio", "run", project.target]
    return _without_none(
        {
            "manifest_version": MANIFEST_VERSION,
            "name": project.name,
            "display_name": server.title,
            "version": project.version,
            "description": project.description,
            "author": _without_none(authors[0]),
            "repository": repository and {"type": "git", "url": repository},
            "homepage": server.website_url or project.url(["homepage"]),
            "server": {
                "type": "uv",
                "entry_point": project.server_file.relative_to(project.folder).as_posix(),
                "mcp_config": {"command": "uv", "args": run},
            },
            "tools": [
                _without_none({"name": tool.name, "description": tool.description})
                for tool in tools
            ],
            # The server makes a prompt's text from the arguments, which `prompts_generated` says.
            # The schema requires a text, and the description stands for it.
            "prompts": [
                _without_none({"name": prompt.name, "description": prompt.description})
                | {
                    "arguments": [argument.name for argument in prompt.arguments or ()],
                    "text": prompt.description or prompt.name,
                }
                for prompt in prompts
            ],
            "prompts_generated": True if prompts else None,
            "keywords": project.table.get("keywords"),
            "license": licence if isinstance(licence, str) else None,
            "compatibility": requires_python and {"runtimes": {"python": requires_python}},
        }
    )


def bundle(project: Project, manifest: Mapping[str, Any], included: Sequence[Path]) -> bytes:
    """Return an MCPB bundle, a zip file with files of the project, and more that are `included`.

    The same files make the same bytes. Hidden files and byte code in folders are left out.
    """
    for path in included:
        if not path.resolve().is_relative_to(project.folder):
            raise click.UsageError(f"--include {path} is not in {project.folder}")
    patterns: list[str] = ["pyproject.toml", "uv.lock"]
    patterns += project.table.get("license-files", ["LICEN[CS]E*"])
    try:
        paths = [path for pattern in patterns for path in project.folder.glob(pattern)]
    except (NotImplementedError, ValueError) as error:
        raise click.UsageError(f"pyproject.toml: license-files: {error}") from None
    if project.readme is not None:
        paths.append(project.readme)
    paths = [Path(os.path.normpath(path)) for path in paths]
    for path in paths:
        if not path.is_relative_to(project.folder):
            raise click.UsageError(
                f"pyproject.toml names {path}, which is not in {project.folder}: copy it there"
            )
    paths += [project.source, *(path.resolve() for path in included)]
    content = {"manifest.json": _json(manifest)}
    for path in paths:
        for file in path.rglob("*") if path.is_dir() else [path]:
            inside = file.relative_to(path).parts
            is_hidden = any(part == "__pycache__" or part.startswith(".") for part in inside)
            if file.is_file() and not is_hidden:
                content[file.relative_to(project.folder).as_posix()] = file.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.external_attr = _ZIP_MODE
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content[name])
    return buffer.getvalue()


def _json(document: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
