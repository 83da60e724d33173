"""The recording proxy: between any client and any server, transparent byte for byte."""

from mcp_trio._proxy.stdio import run_stdio_proxy

__all__ = ["run_stdio_proxy"]
