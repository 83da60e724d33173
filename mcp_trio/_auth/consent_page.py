"""The consent page and the error page of an authorization server, and the cookies that it sets.

The pages are plain HTML without scripts. No other page can frame them, and every text from outside
is escaped.
"""

import base64
import hashlib
import re
from html import escape
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import attrs

from mcp_trio._auth.oauth_clients import OAuthClient, is_loopback_redirect
from mcp_trio._protocol.http_headers import Headers, HttpRequest

if TYPE_CHECKING:
    from mcp_trio._auth.authorization_server import AuthorizationRequest, AuthorizationServer

# 256 random bits in Base64URL.
_COOKIE_VALUE: Final = re.compile(r"[A-Za-z0-9_-]{43}")


@attrs.frozen
class HttpResponse:
    """A response of the authorization server, or of the login page that its operator wrote.

    Attributes:
        status: The HTTP status.
        headers: Names and values of headers.
        body: The body.
    """

    status: int = 200
    headers: Headers = attrs.field(default=(), repr=False)
    body: bytes = attrs.field(default=b"", repr=False)


_STYLE: Final = """
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 34rem; margin: 3rem auto; padding: 0 1rem;
  color: #1c1c1e; background: #fff }
h1 { font-size: 1.4rem; line-height: 1.3; overflow-wrap: anywhere }
dl { border: 1px solid #c8c8cc; border-radius: .5rem; padding: 1rem; margin: 1.5rem 0 }
dt { color: #55555a; font-size: .875rem }
dd { margin: 0 0 .75rem; overflow-wrap: anywhere }
dd:last-child { margin-bottom: 0 }
ul { padding-left: 1.25rem }
.warning { border-left: .25rem solid #b25000; padding-left: .75rem }
form { display: flex; gap: .75rem; margin-top: 1.5rem }
button { font: inherit; padding: .6rem 1.5rem; border-radius: .5rem; border: 1px solid #55555a;
  background: #fff; color: inherit; cursor: pointer }
button.allow { background: #0a5ad4; border-color: #0a5ad4; color: #fff }
button:focus-visible { outline: .2rem solid #f0a000; outline-offset: .1rem }
"""

_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

# `form-action` is left out: browsers apply it to the redirect to the client as well, and to all
# further redirects there. No form can be injected, as all text is escaped.
_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; frame-ancestors 'none'"
)

_PAGE_HEADERS: Final[Headers] = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", _POLICY),
    ("X-Frame-Options", "DENY"),  # for browsers without `frame-ancestors`
    ("X-Content-Type-Options", "nosniff"),
    # With `no-referrer`, browsers would send the form with the origin `null`.
    ("Referrer-Policy", "same-origin"),
)


def _page(
    title: str, body: str, *, status: int = HTTPStatus.OK, headers: Headers = ()
) -> HttpResponse:
    """Return a page; the title is plain text, the body HTML."""
    html = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )
    content_type = ("Content-Type", "text/html; charset=utf-8")
    return HttpResponse(status, [content_type, *_PAGE_HEADERS, *headers], html.encode())


def _destination_text(redirect_uri: str) -> str:
    """Return the site or program to which a redirect URI leads, in words for the user."""
    if is_loopback_redirect(redirect_uri):
        return f"a program on your computer ({urlsplit(redirect_uri).netloc})"
    parts = urlsplit(redirect_uri)
    if parts.scheme == "https":
        return parts.netloc
    return f"the application on your computer that opens {parts.scheme}: links"


def error_page(
    text: str,
    *,
    status: int = HTTPStatus.BAD_REQUEST,
    headers: Headers = (),
    back: str | None = None,
) -> HttpResponse:
    """Return the page that reports an error to the user.

    `back` is the redirect URI of the client with the error. The page has a link to it and is no
    redirect, since anyone may have registered that URI, and a redirect would lead users of this
    server to any site.
    """
    body = f"<p>{escape(text)}</p>"
    if back is not None:
        destination = escape(_destination_text(back))
        body += f'\n<p><a href="{escape(back)}" rel="noreferrer">Return to {destination}</a></p>'
    return _page("Access cannot be allowed", body, status=status, headers=headers)


def _cookie_name(name: str, issuer: str) -> str:
    # No other host, and no page without TLS, can set a cookie with this prefix.
    return f"__Host-{name}" if issuer.startswith("https:") else name


def cookie_of(request: HttpRequest, name: str, issuer: str) -> str | None:
    """Return the value of a cookie of this server; None if it is absent, repeated or malformed."""
    found = [
        value
        for part in request.headers.get("cookie", "").split(";")
        for key, _, value in [part.strip().partition("=")]
        if key == _cookie_name(name, issuer)
    ]
    return found[0] if len(found) == 1 and _COOKIE_VALUE.fullmatch(found[0]) else None


def set_cookie(name: str, value: str, issuer: str, seconds: float) -> tuple[str, str]:
    """Return the header that sets a cookie, which only this server gets, and no script reads."""
    secure = "; Secure" if issuer.startswith("https:") else ""
    attributes = f"Path=/; HttpOnly; SameSite=Lax{secure}; Max-Age={seconds:.0f}"
    return "Set-Cookie", f"{_cookie_name(name, issuer)}={value}; {attributes}"


def consent_page(
    client: OAuthClient,
    auth_request: "AuthorizationRequest",
    server: "AuthorizationServer",
    *,
    action: str,
    request_id: str,
    is_development: bool,
    headers: Headers,
) -> HttpResponse:
    """Return the page on which the user allows or denies the access of a client.

    Its form is sent to the URL `action`, where it is accepted with the secret `request_id` only.
    """
    name = client.name or "An application without a name"
    # A client with a metadata document has the URL of the document as its id.
    host = urlsplit(client.client_id).netloc if client.client_id.startswith("https://") else ""
    if client.is_trusted:
        registration = "registered by the operator of this server"
    elif host:
        registration = f"described by {host}"
    else:
        registration = "registered by itself, with a name that is not verified"
    texts, redirect_uri = server.scopes or {}, auth_request.redirect_uri
    permissions = "".join(
        f"<li>{escape(scope)}{': ' + escape(text) if (text := texts.get(scope)) else ''}</li>"
        for scope in auth_request.scopes
    )
    warnings: list[str] = []
    if is_development:
        warnings.append(
            "This server has no login, for development: everyone who opens this page can allow"
            " access."
        )
    if not redirect_uri.startswith("https://"):
        warnings.append(
            "Allow access only if you have just started to connect from a program on this computer."
        )
    elif host and urlsplit(redirect_uri).netloc != host:
        warnings.append(f"You will be sent to another site than {host}.")
    if auth_request.subject is None:  # the user logs in after allowing the access
        provider = getattr(server.login, "issuer", "")
        user = ("Next you sign in at", escape(urlsplit(provider).netloc))
    else:
        user = ("Signed in as", escape(auth_request.subject))
    rows = [
        ("Application", f"{escape(name)}<br>({escape(registration)})"),
        user,
        ("Access to", escape(auth_request.resource)),
        ("Permissions", f"<ul>{permissions}</ul>" if permissions else "use of this server"),
        ("Then you return to", escape(_destination_text(redirect_uri))),
    ]
    listed = "".join(f"<dt>{title}</dt><dd>{value}</dd>\n" for title, value in rows)
    warned = "".join(f'<p class="warning">{escape(each)}</p>\n' for each in warnings)
    body = (
        f"<dl>{listed}</dl>\n{warned}"
        f'<form method="post" action="{escape(action)}">'
        f'<input type="hidden" name="request" value="{escape(request_id)}">'
        '<button class="allow" name="decision" value="allow">Allow</button>'
        '<button name="decision" value="deny">Deny</button></form>'
    )
    return _page(f"{name} asks for access to {server.name}", body, headers=headers)
