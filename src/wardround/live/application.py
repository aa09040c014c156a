"""The live page as an ASGI application: one page, a stream of events, and the operator's two actions.

Imported only where the extra `live` is installed: it needs Starlette.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wardround.errors import WardroundError
from wardround.live.access import HEADERS, Access, bearer_token, same_origin
from wardround.live.feed import Feed
from wardround.live.metrics import RunMetrics
from wardround.live.stream import Cursor, Hub
from wardround.runs.prometheus import CONTENT_TYPE

__all__ = ["LivePage"]

TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
NO_STORE = {"Cache-Control": "no-store"}
MOST_RUNS = 12  # in one stream
LONGEST_REASON = 400
LARGEST_BODY = 10_000
BODY_SECONDS = 10.0  # a browser sends a token at once
ASSETS = resources.files("wardround.live").joinpath("static")
ACTIONS = ("quarantine", "release")


class LivePage:
    """The page for some folders, and who has access to it."""

    def __init__(self, roots: Sequence[Path], access: Access, port: int, tls: bool = False) -> None:
        self.access, self.tls = access, tls
        self.cookie = f"wardround_{port}"  # cookies ignore ports: two pages on one machine need two names
        self.feed = Feed(roots)
        self.hub = Hub(self.feed, secrets.token_hex(4), actions=access.token is not None)
        self.run_metrics = RunMetrics(self.feed)
        self.app = Starlette(
            routes=[
                Route("/", self.page),
                Route("/login", self.login, methods=["POST"]),
                Route("/static/{name}", self.asset),
                Route("/events", self.events),
                Route("/api/runs", self.runs),
                Route("/metrics", self.metrics),
                Route("/api/runs/{run}/{action}", self.act, methods=["POST"]),
            ],
            middleware=[Middleware(_AccessControl, check=self.refuse)],
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.hub.start()
        yield
        self.hub.stop()

    async def page(self, request: Request) -> Response:
        return _html("index.html")

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        media_type = TYPES.get(Path(name).suffix)
        if media_type is None or not ASSETS.joinpath(name).is_file():
            return PlainTextResponse("no such file", 404)
        content = ASSETS.joinpath(name).read_bytes()
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

    async def events(self, request: Request) -> Response:
        """The stream: `run` names runs to send whole, `with` those of which only curves, `after` is the cursor."""
        query = request.query_params
        whole = [run for run in query.get("run", "").split(",") if run][:MOST_RUNS]
        curves = [run for run in query.get("with", "").split(",") if run and run not in whole][:MOST_RUNS]
        cursor = Cursor.of(self.hub.boot, request.headers.get("last-event-id") or query.get("after", ""))
        return StreamingResponse(
            self.hub.stream(cursor, whole, curves),
            media_type="text/event-stream",
            headers=NO_STORE | {"X-Accel-Buffering": "no"},
        )

    async def runs(self, request: Request) -> Response:
        """The list of runs for programs."""
        text = f"[{','.join(run.info for run in list(self.feed.runs.values()) if run.info)}]"
        return Response(text, media_type="application/json", headers=NO_STORE)

    async def metrics(self, request: Request) -> Response:
        """The runs for Prometheus: federations, and what is running."""
        text = await asyncio.to_thread(self.run_metrics.text)
        return Response(text, headers={"Content-Type": CONTENT_TYPE, **NO_STORE})

    async def act(self, request: Request) -> Response:
        """Quarantine or release a client."""
        run, action = self.feed.runs.get(request.path_params["run"]), request.path_params["action"]
        action_body = await _read_action(request)
        if run is None or action not in ACTIONS:
            return _refusal(404, "no such run or action")
        if isinstance(action_body, str):
            return _refusal(400, action_body)
        client = action_body["client"]
        if run.names and client not in {*run.names, *run.quarantined}:
            return _refusal(404, f"no client {client!r} in this run")
        try:
            await asyncio.to_thread(_act, action, run.path, client, action_body["reason"])
        except WardroundError as error:
            return _refusal(409, str(error))
        return JSONResponse({"done": action, "client": client})

    async def login(self, request: Request) -> Response:
        """Check the token once; a cookie is enough from then on. `refuse` has looked at the headers."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.body()
        except TimeoutError:
            return _refusal(408, "the token did not come in time")
        token = parse_qs(body.decode(errors="replace")).get("token", [""])[0]
        return self._enter() if self.access.is_token(token, _source(request)) else _html("login.html", 401)

    def _enter(self) -> Response:
        response = RedirectResponse("/", 303)
        response.set_cookie(
            self.cookie, self.access.session, httponly=True, samesite="lax", path="/", secure=self.tls
        )
        return response

    async def refuse(self, request: Request) -> Response | None:
        """The answer to a request that is not allowed; None for one that is."""
        path, headers, access = request.url.path, request.headers, self.access
        host, changes = headers.get("host", ""), request.method not in ("GET", "HEAD")
        if not access.knows_host(host):
            return PlainTextResponse(
                f"not a name of this page: {host!r}; if it should be one, start it with --allow-host", 421
            )
        if changes and not same_origin(headers.get("origin"), host):
            return _refusal(403, "another site's page may not do this")
        if path.startswith("/static/"):
            return None
        if changes and access.token is None:
            return _refusal(403, "start wardround watch with --token to switch the actions on")
        cookie, authorization = headers.get("cookie", ""), headers.get("authorization", "")
        source = _source(request)
        token = request.query_params.get("token", "") if path == "/" else ""
        if access.has_session(cookie, self.cookie):
            token = ""  # a bookmark with an old one does no harm
        brings_token = path == "/login" or token or bearer_token(authorization) is not None
        if access.token is not None and brings_token and (wait := access.attempts.wait(source)):
            refusal = _refusal(429, f"too many wrong tokens; try again in {math.ceil(wait)} s")
            refusal.headers["Retry-After"] = str(math.ceil(wait))
            return refusal
        if path == "/login":
            return _refuse_login(request)
        if token and access.is_token(token, source):
            return self._enter()
        if not access.admits(cookie, authorization, self.cookie, source):
            return _html("login.html", 401) if path == "/" else _refusal(401, "the token is missing or wrong")
        if changes and headers.get("x-wardround") != "1":
            # A form of another site cannot set a header, and a script there would need our CORS header.
            return _refusal(403, "the header X-Wardround: 1 is missing")
        return None


class _AccessControl:
    """Asks `check` for a refusal first and puts the security headers on every answer; streams pass unchanged."""

    def __init__(self, app: ASGIApp, check: Callable[[Request], Awaitable[Response | None]]) -> None:
        self.app, self.check = app, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = ((name.lower().encode(), value.encode()) for name, value in HEADERS.items())
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        refusal = await self.check(Request(scope))
        if refusal is not None and {b"content-length", b"transfer-encoding"} & dict(scope["headers"]).keys():
            # or the server would read the body to find the next request
            refusal.headers["Connection"] = "close"
        await (refusal or self.app)(scope, receive, send_with_headers)


def _html(name: str, status: int = 200) -> Response:
    return Response(ASSETS.joinpath(name).read_bytes(), status, media_type="text/html", headers=NO_STORE)


def _refusal(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)


def _source(request: Request) -> str:
    """Where a request comes from: the address of the connection, not what a header claims."""
    return "" if request.client is None else request.client.host


def _refuse_login(request: Request) -> Response | None:
    """The answer to a login whose headers are wrong, given before its body is read; None where they are right."""
    if request.method != "POST":
        return PlainTextResponse("Method Not Allowed", 405, {"Allow": "POST"})
    if request.headers.get("origin") is None:  # that it is our own has been checked
        return _refusal(
            403, "the header Origin is missing; programs send Authorization: Bearer TOKEN instead"
        )
    size = request.headers.get("content-length", "")
    if not (size.isascii() and size.isdigit()):
        return _refusal(411, "the header Content-Length is missing")
    if len(size) > 10 or int(size) > LARGEST_BODY:
        return _refusal(413, "too long for a token")
    return None


async def _read_action(request: Request) -> dict[str, str] | str:
    """Client and reason of an action, or what is wrong with them."""
    if request.headers.get("content-type", "").split(";")[0] != "application/json":
        return "send JSON"
    size = request.headers.get("content-length", "")
    if not (size.isascii() and size.isdigit()) or len(size) > 10 or int(size) > LARGEST_BODY:
        return "too long"
    try:
        values = await request.json()
        client, reason = values["client"], values["reason"].strip()
    except (ValueError, KeyError, TypeError, AttributeError):
        return "send client and reason, both text"
    if not isinstance(client, str) or not client:
        return "send client and reason, both text"
    if not reason or len(reason) > LONGEST_REASON or not reason.isprintable():
        return f"the reason must be one line of 1 to {LONGEST_REASON} characters: it goes into the audit log"
    return {"client": client, "reason": reason}


def _act(action: str, folder: Path, client: str, reason: str) -> None:
    from wardround.runs import quarantine

    {"quarantine": quarantine.quarantine, "release": quarantine.release}[action](folder, client, reason)
