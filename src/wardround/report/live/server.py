"""The live page's server: one page, a stream of events, and an operator's two actions."""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from wardround.errors import ConfigError, WardroundError, require
from wardround.report.live.access import HEADERS, Access, is_loopback, same_origin
from wardround.report.live.feed import Feed
from wardround.report.live.stream import Cursor, Hub

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["application", "watch"]

TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
MOST_RUNS = 12  # in one stream
LONGEST_REASON = 400
LARGEST_BODY = 10_000
ASSETS = resources.files("wardround.report.live").joinpath("static")


def application(roots: Sequence[Path], access: Access, port: int = 0) -> Starlette:
    """The page for these folders, as an ASGI application. Its `state.hub` wakes and ends the streams."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import Route

    hub = Hub(Feed(roots), secrets.token_hex(4), actions=access.token is not None)
    feed, cookie = hub.feed, f"wardround_{port}"

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        hub.start()
        yield
        hub.stop()

    async def page(request: Request) -> Response:
        return Response(_asset("index.html"), media_type="text/html")

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        media_type = TYPES.get(Path(name).suffix)
        if media_type is None or not ASSETS.joinpath(name).is_file():
            return PlainTextResponse("no such file", 404)
        return Response(_asset(name), media_type=media_type, headers={"Cache-Control": "no-cache"})

    async def events(request: Request) -> Response:
        asked = request.query_params
        wanted = [run for run in asked.get("run", "").split(",") if run][:MOST_RUNS]
        curves = [run for run in asked.get("with", "").split(",") if run and run not in wanted][:MOST_RUNS]
        cursor = Cursor.of(hub.boot, request.headers.get("last-event-id") or asked.get("after", ""))
        return StreamingResponse(
            hub.stream(cursor, wanted, curves),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def runs(request: Request) -> Response:
        text = f"[{','.join(run.info for run in list(feed.runs.values()))}]"
        return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})

    async def act(request: Request) -> Response:
        told = await _told(request)
        run = feed.runs.get(request.path_params["run"])
        if run is None:
            return JSONResponse({"error": "no such run"}, 404)
        if not run.federation:
            return JSONResponse({"error": "only the clients of a federation can be set aside"}, 409)
        if isinstance(told, str):
            return JSONResponse({"error": told}, 400)
        if told["client"] not in run.names and told["client"] not in run.quarantined and run.names:
            return JSONResponse({"error": f"no client {told['client']!r} in this run"}, 404)
        try:
            await asyncio.to_thread(_act, request.path_params["action"], run.path, told)
        except WardroundError as error:
            return JSONResponse({"error": str(error)}, 409)
        return JSONResponse({"done": request.path_params["action"], "client": told["client"]})

    async def login(request: Request) -> Response:
        form = parse_qs((await request.body())[:LARGEST_BODY].decode(errors="replace"))
        if not access.is_token(form.get("token", [""])[0]):
            return Response(_asset("login.html"), 401, media_type="text/html")
        return enter()

    def enter() -> Response:
        response = RedirectResponse("/", 303)
        response.set_cookie(cookie, access.session, httponly=True, samesite="lax", path="/")
        return response

    async def guard(request: Request) -> Response | None:
        """What stands in a request's way; None where nothing does."""
        host = request.headers.get("host", "")
        if not access.knows_host(host):
            return PlainTextResponse(
                f"This page does not answer to the name {host!r}; start it with --allow-host NAME.", 421
            )
        changes = request.method not in ("GET", "HEAD")
        if changes and not same_origin(request.headers.get("origin"), host):
            return PlainTextResponse("another site's page may not do this", 403)
        if request.url.path.startswith("/static/") or request.url.path == "/login":
            return None
        if access.token is None and changes:
            return JSONResponse({"error": "start wardround watch with --token to switch the actions on"}, 403)
        if request.method == "GET" and request.url.path == "/" and access.is_token(request.query_params.get("token", "")):
            return enter()
        headers = request.headers
        if not access.admits(headers.get("cookie", ""), headers.get("authorization", ""), cookie):
            if request.url.path == "/":
                return Response(_asset("login.html"), 401, media_type="text/html")
            return JSONResponse({"error": "the token is missing or wrong"}, 401)
        if changes and headers.get("x-wardround") != "1":
            # A form on another site cannot set a header; a script there may not, without our leave.
            return JSONResponse({"error": "the header X-Wardround: 1 is missing"}, 403)
        return None

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/login", login, methods=["POST"]),
            Route("/static/{name}", asset),
            Route("/events", events),
            Route("/api/runs", runs),
            Route("/api/runs/{run}/{action:str}", act, methods=["POST"]),
        ],
        lifespan=lifespan,
    )
    app.state.hub = hub
    app.add_middleware(_Guarded, guard=guard)
    return app


class _Guarded:
    """Asks `guard` first and puts the security headers on every answer; streams pass through untouched."""

    def __init__(self, app: Any, guard: Callable[[Request], Awaitable[Response | None]]) -> None:
        self.app, self.guard = app, guard

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        from starlette.requests import Request

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.lower().encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        refusal = await self.guard(Request(scope, receive))
        await (refusal or self.app)(scope, receive, send_with_headers)


def _asset(name: str) -> bytes:
    return ASSETS.joinpath(name).read_bytes()


async def _told(request: Request) -> dict[str, str] | str:
    """Client and reason of an action, or what is wrong with them."""
    if request.path_params["action"] not in ("quarantine", "release"):
        return "the actions are quarantine and release"
    if request.headers.get("content-type", "").split(";")[0] != "application/json":
        return "send JSON"
    if int(request.headers.get("content-length", LARGEST_BODY + 1)) > LARGEST_BODY:
        return "too long"
    try:
        values = await request.json()
        client, reason = values["client"], values["reason"].strip()
        client.strip()
    except (ValueError, KeyError, TypeError, AttributeError):
        return "send client and reason, both text"
    if not reason or len(reason) > LONGEST_REASON or not reason.isprintable():
        return f"the reason must be one line of 1 to {LONGEST_REASON} characters: it goes into the audit log"
    return {"client": client, "reason": reason}


def _act(action: str, folder: Path, told: dict[str, str]) -> None:
    from wardround.experiments import quarantine

    {"quarantine": quarantine.quarantine, "release": quarantine.release}[action](folder, **told)


def watch(
    roots: Sequence[Path],
    host: str,
    port: int,
    token: str | None,
    names: Sequence[str] = (),
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the page until Ctrl-C; `ready` is told its address."""
    require("starlette", "live")
    uvicorn = require("uvicorn", "live")
    if token is not None and not token.strip():
        raise ConfigError("--token: is empty; give a secret of your own")
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host}: other machines could reach the page; add --token SECRET, or leave --host 127.0.0.1"
        )
    listener = _listener(host, port)
    port = listener.getsockname()[1]
    app = application(roots, Access(host, token, names), port)

    class Server(uvicorn.Server):  # type: ignore[misc, name-defined]
        def handle_exit(self, sig: int, frame: Any) -> None:
            app.state.hub.closing = True  # or the open streams would keep the server waiting
            app.state.hub.wake()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3
    )
    shown = "127.0.0.1" if host in ("0.0.0.0", "localhost") else host
    shown = f"[{shown}]" if ":" in shown else shown
    with listener:
        ready(f"http://{shown}:{port}/")
        Server(config).run(sockets=[listener])


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"--port {port}: is in use on {host}; choose another, or 0 for any free one") from None
        raise ConfigError(f"--host {host} --port {port}: cannot listen there ({error.strerror or error})") from None
    return listener
