"""Who may see the page and who may act on it: host name, token and origin of a request.

Without a token only this machine can open the page, and nothing can be changed by it. A page of another site can
still make a browser on this machine send requests here: its `Host` header gives it away (DNS rebinding), and no
answer carries a CORS header.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from wardround.live.attempts import Attempts

__all__ = ["HEADERS", "Access", "is_loopback"]

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # no-referrer would also hide the origin of our own form
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Is this an address that other machines cannot reach?

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "192.0.2.1")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Access:
    """Who has access to one server."""

    def __init__(self, host: str, token: str | None, names: Iterable[str] = ()) -> None:
        self.token = token
        self.session = secrets.token_urlsafe(32)
        """The content of the cookie: proves that the token was entered, and is void once this server has ended."""
        self.attempts = Attempts()
        self._names = {host.lower(), "localhost", *(name.lower() for name in names)}
        self._open_to_others = not is_loopback(host)
        if self._open_to_others:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def knows_host(self, header: str) -> bool:
        """Is this one of our host names? An address always is (it cannot be rebound), an unknown name never."""
        host = _host_of(header)
        if host in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return address.is_loopback or self._open_to_others

    def is_token(self, value: str, source: str) -> bool:
        """Is this the token? Compared in constant time; a wrong one counts against its source.

        While the source has to wait (`attempts.wait`), no token of it is right.
        """
        if self.token is None or self.attempts.wait(source):
            return False
        right = hmac.compare_digest(value.encode(), self.token.encode())
        if not right:
            self.attempts.fail(source)
        return right

    def admits(self, cookie: str, authorization: str, cookie_name: str, source: str) -> bool:
        """May this request see the page? Everything may where there is no token."""
        if self.token is None:
            return True
        bearer = bearer_token(authorization)
        if bearer is not None:
            return self.is_token(bearer, source)
        return self.has_session(cookie, cookie_name)

    def has_session(self, cookie: str, cookie_name: str) -> bool:
        """Has this browser entered the token before?"""
        try:
            morsel = SimpleCookie(cookie).get(cookie_name)
        except CookieError:
            return False
        return morsel is not None and hmac.compare_digest(morsel.value.encode(), self.session.encode())


def bearer_token(authorization: str) -> str | None:
    """The token in an `Authorization` header; None where there is none.

    >>> bearer_token("Bearer secret"), bearer_token("Basic abc"), bearer_token("")
    ('secret', None, None)
    """
    scheme, _, value = authorization.partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def same_origin(origin: str | None, host: str) -> bool:
    """Does a browser's request come from our own page? (Programs send no `Origin`.)

    >>> same_origin("http://127.0.0.1:8400", "127.0.0.1:8400"), same_origin("http://evil.example", "127.0.0.1:8400")
    (True, False)
    """
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _host_of(header: str) -> str:
    """The host in a `Host` header, without its port.

    >>> _host_of("LocalHost:8400"), _host_of("[::1]:8400"), _host_of("::::")
    ('localhost', '::1', '')
    """
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""
