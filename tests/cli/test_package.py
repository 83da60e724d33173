"""`mcp-trio package`: server.json and bundles, checked against the published schemas."""

import json
import sys
import zipfile
from pathlib import Path

import jsonschema
import pytest

from mcp_trio._cli.new import write_project

SCHEMAS = Path(__file__).parents[1] / "published_schemas" / "publishing"
NAME = "io.github.ada/weather"
AUTHOR = "Ada Lovelace <ada@example.com>"

SERVER = '''
from mcp_trio import Server

server = Server("weather", title="Weather")


@server.tool
async def forecast(city: str) -> str:
    """Forecast the weather."""
    return "rain"
'''


def check(document, schema):
    jsonschema.validate(
        document,
        json.loads((SCHEMAS / schema).read_text(encoding="utf-8")),
        format_checker=jsonschema.FormatChecker(),
    )


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """The working directory: the template with a database, as the project `weather`."""
    folder = tmp_path / "weather-project"
    write_project(folder, "full", "weather")
    monkeypatch.chdir(folder)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "weather"]:
        del sys.modules[name]


@pytest.fixture
def package(invoke):
    """Run the command on the server of the project."""
    return lambda *arguments: invoke("package", "weather.server", *arguments)


def append_to_project_table(project, text):
    file = project / "pyproject.toml"
    file.write_text(file.read_text().replace("[project.scripts]", f"{text}\n\n[project.scripts]"))


# server.json


def test_server_json_is_valid_and_has_what_pyproject_says(package, project):
    append_to_project_table(
        project, '[project.urls]\nRepository = "https://github.com/ada/weather"'
    )
    shown = package("--server-json", "--name", NAME)
    assert (shown.exit_code, shown.stdout) == (0, "wrote server.json\n"), shown.stderr
    document = json.loads((project / "server.json").read_text())
    check(document, "server.schema.json")
    assert document == {
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": NAME,
        "description": "An MCP server of a reading list, in a SQLite database.",
        "version": "0.1.0",
        "repository": {"url": "https://github.com/ada/weather", "source": "github"},
        "packages": [
            {
                "registryType": "pypi",
                "identifier": "weather",
                "version": "0.1.0",
                "runtimeHint": "uvx",
                "transport": {"type": "stdio"},
            }
        ],
    }


def test_options_replace_what_pyproject_says(package, project):
    shown = package(
        *("--server-json", "--name", NAME, "--version", "2.0", "--description", "Books."),
        *("--url", "http://127.0.0.1:8000/mcp"),
    )
    assert shown.exit_code == 0
    document = json.loads((project / "server.json").read_text())
    check(document, "server.schema.json")
    assert (document["version"], document["description"]) == ("2.0", "Books.")
    (described,) = document["packages"]
    assert described["version"] == "2.0"
    assert described["transport"] == {
        "type": "streamable-http",
        "url": "http://127.0.0.1:8000/mcp",
    }


def test_the_name_is_read_from_the_readme_where_the_registry_looks_for_it(package, project):
    assert f"<!-- mcp-name: {NAME} -->" in package("--server-json", "--name", NAME).stderr
    readme = project / "README.md"
    readme.write_text(f"{readme.read_text()}\n<!-- mcp-name: {NAME} -->\n")
    shown = package("--server-json", "--overwrite")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert json.loads((project / "server.json").read_text())["name"] == NAME


def test_a_readme_may_have_any_encoding(package, project):
    (project / "README.md").write_bytes(b"caf\xe9 mcp-name: " + NAME.encode())
    assert package("--server-json").exit_code == 0
    assert json.loads((project / "server.json").read_text())["name"] == NAME


def test_the_title_and_the_page_come_from_the_server(invoke, project):
    (project / "weather" / "titled.py").write_text(
        "from mcp_trio import Server\n"
        "server = Server('weather', title='Weather', website_url='https://weather.example')\n"
    )
    assert (
        invoke("package", "weather.titled:server", "--server-json", "--name", NAME).exit_code == 0
    )
    document = json.loads((project / "server.json").read_text())
    check(document, "server.schema.json")
    assert (document["title"], document["websiteUrl"]) == ("Weather", "https://weather.example")


# The bundle


def bundled(project):
    with zipfile.ZipFile(project / "weather.mcpb") as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_bundle_has_a_valid_manifest_and_the_files_that_uv_needs(package, project):
    (project / "weather" / ".secret").write_text("not for others")
    (project / "weather" / "__pycache__").mkdir()
    (project / "weather" / "__pycache__" / "server.pyc").write_bytes(b"")
    (project / "books.db").write_bytes(b"")
    shown = package("--mcpb", "--author", AUTHOR)
    assert (shown.exit_code, shown.output) == (0, "wrote weather.mcpb\n")
    files = bundled(project)
    assert list(files) == [
        "README.md",
        "manifest.json",
        "pyproject.toml",
        "weather/__init__.py",
        "weather/database.py",
        "weather/server.py",
    ]
    manifest = json.loads(files["manifest.json"])
    check(manifest, "mcpb-manifest-v0.4.schema.json")
    assert manifest["author"] == {"name": "Ada Lovelace", "email": "ada@example.com"}
    assert manifest["server"] == {
        "type": "uv",
        "entry_point": "weather/server.py",
        "mcp_config": {
            "command": "uv",
            "args": ["run", "--directory", "${__dirname}", "mcp-trio", "run", "weather.server"],
        },
    }
    assert manifest["tools"][1] == {
        "name": "remove_book",
        "description": "Remove a book, after asking the user.",
    }
    assert manifest["prompts"] == [
        {
            "name": "recommend",
            "description": "Ask for a book to read next.",
            "arguments": ["author"],
            "text": "Ask for a book to read next.",
        }
    ]
    assert manifest["prompts_generated"] is True
    assert manifest["compatibility"] == {"runtimes": {"python": ">=3.11"}}


def test_the_server_is_listed_without_its_lifespan(package, project):
    assert package("--mcpb", "--author", AUTHOR).exit_code == 0
    assert not (project / "books.db").exists()


def test_an_unpacked_bundle_serves_with_the_arguments_of_its_manifest(
    package, project, tmp_path, mcp_trio
):
    assert package("--mcpb", "--author", AUTHOR).exit_code == 0
    with zipfile.ZipFile(project / "weather.mcpb") as archive:
        archive.extractall(tmp_path / "unpacked")
    arguments = json.loads(bundled(project)["manifest.json"])["server"]["mcp_config"]["args"]
    command = arguments[arguments.index("mcp-trio") + 1 :]
    assert command[0] == "run"
    listed = mcp_trio("list", *command[1:], cwd=tmp_path / "unpacked")
    assert "add_books" in listed.stdout


def test_equal_files_make_equal_bundles(package, project):
    package("--mcpb", "--author", AUTHOR)
    with zipfile.ZipFile(project / "weather.mcpb") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    first = (project / "weather.mcpb").read_bytes()
    (project / "pyproject.toml").touch()
    assert package("--mcpb", "--author", AUTHOR, "--overwrite").exit_code == 0
    assert (project / "weather.mcpb").read_bytes() == first


def test_more_of_pyproject_is_in_the_manifest_and_more_files_in_the_bundle(package, project):
    append_to_project_table(
        project,
        'authors = [{ name = "Ada" }]\nlicense = "MIT"\nkeywords = ["books"]\n\n'
        '[project.urls]\nSource = "https://git.example/weather"\nHomepage = "https://weather.example"',
    )
    (project / "LICENSE").write_text("MIT")
    (project / "data").mkdir()
    (project / "data" / "books.csv").write_text("Emma,Austen")
    assert package("--mcpb", "--include", "data").exit_code == 0
    files = bundled(project)
    assert {"LICENSE", "data/books.csv"} <= set(files)
    manifest = json.loads(files["manifest.json"])
    check(manifest, "mcpb-manifest-v0.4.schema.json")
    assert manifest["author"] == {"name": "Ada"}
    assert manifest["repository"] == {"type": "git", "url": "https://git.example/weather"}
    assert manifest["homepage"] == "https://weather.example"
    assert (manifest["license"], manifest["keywords"]) == ("MIT", ["books"])


def test_a_server_in_one_module_without_prompts_is_bundled_too(invoke, project):
    (project / "one.py").write_text(SERVER)
    assert invoke("package", "one.py:server", "--mcpb", "--author", "Ada").exit_code == 0
    files = bundled(project)
    assert "one.py" in files
    manifest = json.loads(files["manifest.json"])
    check(manifest, "mcpb-manifest-v0.4.schema.json")
    assert manifest["display_name"] == "Weather"
    assert manifest["server"]["mcp_config"]["args"][-1] == "one.py:server"
    assert manifest["tools"] == [{"name": "forecast", "description": "Forecast the weather."}]
    assert (manifest["prompts"], "prompts_generated" in manifest) == ([], False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('readme = "README.md"', 'readme = "../README.md"'),
        ('readme = "README.md"', 'license-files = ["../READ*"]'),
    ],
)
def test_a_bundle_has_no_files_from_outside_of_the_project(package, project, old, new):
    file = project / "pyproject.toml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    outside = project.with_name("README.md")
    outside.write_text("Weather")
    shown = package("--mcpb", "--author", "Ada")
    assert shown.exit_code == 2
    assert f"{outside}, which is not in {project}: copy it there" in shown.stderr


# Both, and what is rejected


def test_both_files_are_written_to_another_folder(package, project, tmp_path):
    shown = package(
        "--server-json", "--mcpb", "--name", NAME, "--author", "Ada", "--output", tmp_path
    )
    assert shown.stdout == f"wrote {tmp_path}/server.json\nwrote {tmp_path}/weather.mcpb\n"
    assert (tmp_path / "server.json").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "nothing to write: add --server-json, --mcpb, or both"),
        (["--server-json"], "add --name io.github.USER/weather"),
        (["--server-json", "--name", "weather"], "write --name io.github.USER/weather"),
        (["--server-json", "--name", f"io.github.ada/{'x' * 200}"], "not a name in reverse-DNS"),
        (["--server-json", "--name", NAME, "--description", "x" * 101], "add --description with"),
        (["--server-json", "--name", NAME, "--url", "stdio"], "write --url http://127.0.0.1:8000"),
        (["--mcpb"], "the bundle needs an author: add --author 'NAME <EMAIL>'"),
        (["--mcpb", "--author", ""], "the bundle needs an author"),
        (["--mcpb", "--author", "Ada", "--include", ".."], "--include .. is not in "),
    ],
)
def test_missing_and_wrong_information_is_named_with_its_option(package, project, arguments, text):
    shown = package(*arguments)
    assert shown.exit_code == 2
    assert text in shown.stderr.splitlines()[-1]
    assert not (project / "server.json").exists()
    assert not (project / "weather.mcpb").exists()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('name = "weather"', "has no project.name: write it"),
        ('version = "0.1.0"', "has no project.version: add --version TEXT"),
        ("description = ", "has no project.description: add --description TEXT"),
        ("weather = ", "hosts run `uvx weather`, but pyproject.toml has no such command"),
        ("]", "cannot read "),
    ],
)
def test_a_gap_in_pyproject_is_named(package, project, line, text):
    file = project / "pyproject.toml"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(each for each in lines if not each.startswith(line)))
    shown = package("--server-json", "--name", NAME)
    assert shown.exit_code == 2
    assert text in shown.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('version = "0.1.0"', "version = 1", "Expected `str`, got `int` - at `$.project.version`"),
        ('name = "weather"', 'name = "../weather"', "- at `$.project.name`"),
        ('readme = "README.md"', "readme = 1", "- at `$.project.readme`"),
        ("[project.scripts]", '[project.urls]\nSource = "//["\n[project.scripts]', "//["),
        ('readme = "README.md"', 'license-files = ["/LICENCE"]', "license-files: Non-relative"),
        ('readme = "README.md"', 'license-files = [""]', "license-files: Unacceptable pattern"),
    ],
)
def test_an_invalid_value_in_pyproject_is_named(package, project, old, new, text):
    file = project / "pyproject.toml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    shown = package("--server-json", "--mcpb", "--name", NAME, "--author", AUTHOR)
    assert shown.exit_code == 2, shown.output
    assert "pyproject.toml: " in shown.stderr.splitlines()[-1]
    assert text in shown.stderr.splitlines()[-1]
    assert not (project / "server.json").exists()


def test_a_server_without_a_pyproject_is_rejected(package, project):
    (project / "pyproject.toml").unlink()
    (project / ".git").mkdir()  # The search for the file ends there.
    shown = package("--server-json", "--name", NAME)
    assert shown.exit_code == 2
    assert "has no pyproject.toml, beside it or above: write one" in shown.stderr


def test_an_existing_file_is_not_overwritten(package, project):
    (project / "server.json").write_text("mine")
    shown = package("--server-json", "--name", NAME)
    assert shown.exit_code == 2
    assert "server.json exists: name another file, or add --overwrite" in shown.stderr
    assert (project / "server.json").read_text() == "mine"


def test_a_file_that_cannot_be_written_is_one_line(package, project):
    (project / "server.json").mkdir()
    shown = package("--server-json", "--name", NAME)
    assert shown.exit_code == 1
    assert "cannot write server.json: Is a directory" in shown.stderr
