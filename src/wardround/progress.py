"""How far something is: a bar on a terminal and in a notebook, plain lines where the output goes elsewhere."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["Advance", "progress"]


class Advance(Protocol):
    """Updates the display: how much is done in total, and a note beside it."""

    def __call__(self, done: int, note: str = "") -> None: ...


@contextmanager
def progress(title: str, total: int, every_seconds: float = 10.0) -> Iterator[Advance]:
    """A bar with the time left on a terminal or in a notebook; elsewhere a line every few seconds, on stderr."""
    display = _notebook_display()
    if display is not None:
        yield _notebook_bar(display, title, total)
        return
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=total, note="")
            yield lambda done, note="": bar.update(task, completed=done, note=note)
        return
    yield _lines(title, total, every_seconds)


def _lines(title: str, total: int, every_seconds: float) -> Advance:
    last, shown = time.monotonic() - every_seconds, -1

    def plain(done: int, note: str = "") -> None:
        nonlocal last, shown
        if done > shown and (time.monotonic() - last >= every_seconds or done >= total):
            last, shown = time.monotonic(), done
            print(f"{title}: {done}/{total} {note}".rstrip(), file=sys.stderr, flush=True)

    return plain


def _notebook_display() -> Any | None:
    """IPython's display module where a notebook runs this code, else None. Never imports IPython by itself."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):  # a terminal with IPython has no kernel behind it
        return None
    from IPython import display

    return display


def _notebook_bar(display: Any, title: str, total: int) -> Advance:
    """One output that is replaced as the work goes on; needs no widgets, so it survives in the saved notebook."""
    started = time.monotonic()
    shown = display.display(display.HTML(_bar(title, 0, total, "")), display_id=True)
    last = 0.0

    def draw(done: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < 0.1 and done < total:
            return
        last = now
        left = (now - started) * (total - done) / done if done else 0.0
        words = f"{note} · {left:.0f} s left" if done < total else f"{note} · {now - started:.0f} s"
        shown.update(display.HTML(_bar(title, done, total, words.removeprefix(" · "))))

    return draw


def _bar(title: str, done: int, total: int, note: str) -> str:
    return (
        f'<div><progress value="{done}" max="{total}" aria-label="{html.escape(title, quote=True)}"></progress> '
        f"{html.escape(title)} {done}/{total} {html.escape(note)}</div>"
    )
