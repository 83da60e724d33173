"""A user of an `AuthorizationServer` without a browser, for tests."""

import re
from html import unescape
from typing import Final

_FORM: Final = re.compile(r'<form method="post" action="([^"]*)"><input[^>]* value="([^"]*)">')


async def allow_access(url: str) -> str:
    """Allow the access of a client on the consent page, and return where the user is sent.

        async with Client(url, auth=OAuth(on_authorize=allow_access, store=MemoryTokenStore())): ...

    Args:
        url: The URL of the authorization request, at a server with `DevelopmentLogin`.

    Returns:
        The URL to which the server redirects, which is not opened.

    Raises:
        ValueError: There is no consent page, or the server does not redirect.
    """
    import httpx2

    async with httpx2.AsyncClient() as browser:
        page = await browser.get(url)
        found = _FORM.search(page.text)
        if found is None:
            raise ValueError(f"no consent page, but status {page.status_code}: {page.text}")
        action, request_id = map(unescape, found.groups())
        form = {"request": request_id, "decision": "allow"}
        decided = await browser.post(action, data=form)
        if "location" not in decided.headers:
            raise ValueError(f"no redirect, but status {decided.status_code}: {decided.text}")
        location: str = decided.headers["location"]
        return location
