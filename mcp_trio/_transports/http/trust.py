"""Whom TLS trusts where nobody has said anything else."""

import functools
import ssl

import httpx

from mcp_trio._errors import ConfigError


@functools.cache
def authorities() -> ssl.SSLContext:
    """As httpx finds them, `SSL_CERT_FILE` and `SSL_CERT_DIR` first; not to be changed.

    To read their certificates takes a while: they are read at first need, once in a process.

    Raises:
        ConfigError: They cannot be read.
    """
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        text = f"SSL_CERT_FILE, SSL_CERT_DIR: no certificates: {error.strerror or error}"
        raise ConfigError(text) from error
