"""The MCP hosts of `mcp-trio install`: where each has its configuration file, and its format."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, Literal, TypeAlias

import msgspec

Scope: TypeAlias = Literal["user", "project"]

PLATFORMS: Final = ("linux", "darwin", "win32")
"""The values of `sys.platform` that have files of their own; other systems have those of Linux."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP host.

    In paths, `{home}` is the user's home folder, `{config}` the folder that `XDG_CONFIG_HOME` names
    or `~/.config`, and `{appdata}` the one that `APPDATA` names or `~/AppData/Roaming`.

    Attributes:
        title: The name of the host.
        user_files: The user's configuration file, for each platform.
        project_file: The configuration file within a project, if the host reads one.
        folder: The folder that exists once the host is installed; by default that of the user's
            file.
        folder_variable: The environment variable that moves the folder, and the user's file into
            it.
        servers_key: The member of the file under which the servers are.
        may_have_comments: Whether the host accepts comments in the file.
        local_members: Members of the entry of each server that the host starts.
        remote_members: Members of the entry of each server at a URL.
        url_key: The member with the URL of a server; None if the file is for local servers only.
    """

    title: str
    user_files: Mapping[str, str]
    project_file: str | None = None
    folder: str | None = None
    folder_variable: str | None = None
    servers_key: str = "mcpServers"
    may_have_comments: bool = False
    local_members: Mapping[str, Any] = {}
    remote_members: Mapping[str, Any] = {}
    url_key: str | None = "url"


class Location(msgspec.Struct, frozen=True):
    """A configuration file, and the folder that has to exist before it is written."""

    file: PurePath
    folder: PurePath


def _everywhere(file: str) -> Mapping[str, str]:
    return dict.fromkeys(PLATFORMS, file)


def _in_application_data(file: str) -> Mapping[str, str]:
    """Return the paths of a file that each platform has in its folder for applications' data."""
    return {
        "linux": f"{{config}}/{file}",
        "darwin": f"{{home}}/Library/Application Support/{file}",
        "win32": f"{{appdata}}/{file}",
    }


HOSTS: Final[Mapping[str, Host]] = {
    "claude-desktop": Host(
        title="Claude Desktop",
        user_files=_in_application_data("Claude/claude_desktop_config.json"),
        url_key=None,
    ),
    "claude-code": Host(
        title="Claude Code",
        user_files=_everywhere("{home}/.claude.json"),
        project_file=".mcp.json",
        folder="{home}/.claude",
        folder_variable="CLAUDE_CONFIG_DIR",
        local_members={"type": "stdio"},
        remote_members={"type": "http"},
    ),
    "cursor": Host(
        title="Cursor",
        user_files=_everywhere("{home}/.cursor/mcp.json"),
        project_file=".cursor/mcp.json",
    ),
    "vscode": Host(
        title="VS Code",
        user_files=_in_application_data("Code/User/mcp.json"),
        project_file=".vscode/mcp.json",
        servers_key="servers",
        may_have_comments=True,
        local_members={"type": "stdio"},
        remote_members={"type": "http"},
    ),
    "windsurf": Host(
        title="Windsurf",
        user_files=_everywhere("{home}/.codeium/windsurf/mcp_config.json"),
        url_key="serverUrl",
    ),
    # The name of Windsurf since June 2026. Its new agent reads another file than Cascade.
    "devin-desktop": Host(
        title="Devin Desktop",
        user_files={
            "linux": "{config}/devin/mcp_config.json",
            "darwin": "{home}/.config/devin/mcp_config.json",
            "win32": "{appdata}/devin/mcp_config.json",
        },
        project_file=".devin/mcp_config.json",
    ),
    "gemini-cli": Host(
        title="Gemini CLI",
        user_files=_everywhere("{home}/.gemini/settings.json"),
        project_file=".gemini/settings.json",
        may_have_comments=True,
        url_key="httpUrl",
    ),
    "copilot-cli": Host(
        title="GitHub Copilot CLI",
        user_files=_everywhere("{home}/.copilot/mcp-config.json"),
        project_file=".mcp.json",
        folder_variable="COPILOT_HOME",
        local_members={"type": "stdio", "tools": ["*"]},
        remote_members={"type": "http", "tools": ["*"]},
    ),
    "kiro": Host(
        title="Kiro",
        user_files=_everywhere("{home}/.kiro/settings/mcp.json"),
        project_file=".kiro/settings/mcp.json",
        folder="{home}/.kiro",
    ),
    "lm-studio": Host(
        title="LM Studio",
        user_files=_everywhere("{home}/.lmstudio/mcp.json"),
    ),
    "zed": Host(
        title="Zed",
        user_files={
            "linux": "{config}/zed/settings.json",
            "darwin": "{home}/.config/zed/settings.json",
            "win32": "{appdata}/Zed/settings.json",
        },
        project_file=".zed/settings.json",
        servers_key="context_servers",
        may_have_comments=True,
    ),
}


def user_location(
    host: Host, platform: str, home: PurePath, variables: Mapping[str, str]
) -> Location:
    """Return the location of the user's configuration file.

    Args:
        host: The host.
        platform: The platform, as in `sys.platform`.
        home: The user's home folder, as a path of that platform.
        variables: The environment variables, some of which move the file.
    """
    template = host.user_files[platform if platform in PLATFORMS else "linux"]

    def path(template: str) -> PurePath:
        return type(home)(
            template.format(
                home=home,
                config=variables.get("XDG_CONFIG_HOME") or home / ".config",
                appdata=variables.get("APPDATA") or home / "AppData" / "Roaming",
            )
        )

    file = path(template)
    if host.folder_variable is not None and variables.get(host.folder_variable):
        folder = type(home)(variables[host.folder_variable])
        return Location(folder / file.name, folder)
    return Location(file, file.parent if host.folder is None else path(host.folder))


def project_location(host: Host, project: PurePath) -> Location | None:
    """Return the location of the configuration file in a project; None if the host has none."""
    return None if host.project_file is None else Location(project / host.project_file, project)


def local_entry(
    host: Host, command: str, args: Sequence[str], variables: Mapping[str, str]
) -> dict[str, Any]:
    """Return the entry of a server that the host starts with a command."""
    entry = {**host.local_members, "command": command, "args": list(args)}
    return {**entry, "env": dict(variables)} if variables else entry


def remote_entry(host: Host, url: str) -> dict[str, Any] | None:
    """Return the entry of a server at a URL; None if the host's file cannot hold one."""
    return None if host.url_key is None else {**host.remote_members, host.url_key: url}
