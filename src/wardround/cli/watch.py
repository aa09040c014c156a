"""`wardround watch`. Light to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from wardround.live.access import is_loopback

__all__ = ["mount", "watch"]

SHORT = 16  # shorter tokens can be guessed by others on the network


def mount(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(watch)


def watch(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="Run folders, or folders that contain run folders; they may still be empty.",
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8400,
    host: Annotated[
        str, typer.Option(help="Any address but loopback needs --token and --certificate.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            envvar="WARDROUND_WATCH_TOKEN",
            help="A secret that the page asks for; it also switches on quarantine and release.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="Another host name under which the page may be opened."),
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate (PEM).")] = None,
    certificate_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Let other machines connect without TLS: anyone between can read along."
        ),
    ] = False,
) -> None:
    """Show running experiments, or a federation, on a live page. Ctrl-C ends it; the runs continue."""
    from wardround.live.server import watch as serve

    def ready(url: str) -> None:
        entry = "" if token is None else f"?token={quote(token, safe='')}"
        print(f"watching {', '.join(map(str, paths))}: {url}{entry}  (Ctrl-C ends)", flush=True)
        if not is_loopback(host):
            if certificate is None:
                print("the connection is NOT ENCRYPTED: put TLS or an SSH tunnel before it", flush=True)
            if token is not None and len(token) < SHORT:
                print(f"a token of fewer than {SHORT} characters can be guessed", flush=True)

    try:
        serve(paths, host, port, token, allow_host or (), ready, certificate, certificate_key, insecure)
    except KeyboardInterrupt:
        print("no longer watching")
