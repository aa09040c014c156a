"""`/metrics` for Prometheus and `/health` for service managers, in a thread of `wardround serve`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from wardround.errors import ConfigError
from wardround.runs.overview import RunOverview
from wardround.runs.prometheus import CONTENT_TYPE, exposition

__all__ = ["serve_metrics"]

REQUEST_SECONDS = 10.0


@contextmanager
def serve_metrics(folder: Path, host: str, port: int | None) -> Iterator[int | None]:
    """Answer requests about the run in `folder` as long as the block lasts; without a port, do nothing.

    Yields:
        The port that it listens on (another one than `port` where that is 0).
    """
    if port is None:
        yield None
        return
    run, lock = RunOverview(folder), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                with lock:
                    run.poll()
                    text = exposition([run])
                self._answer(200, CONTENT_TYPE, text)
            elif path == "/health":
                self._answer(200, "text/plain; charset=utf-8", "ok\n")
            else:
                self._answer(404, "text/plain; charset=utf-8", "here are /metrics and /health\n")

        def _answer(self, status: int, kind: str, text: str) -> None:
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def version_string(self) -> str:
            return "wardround"

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a scrape every few seconds is no news."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Who hangs up in the middle of an answer is no news either."""

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"federation.metrics_port: cannot listen on {host}:{port} ({reason})") from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=REQUEST_SECONDS)
