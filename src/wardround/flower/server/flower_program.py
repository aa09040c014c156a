"""Runs a program of Flower's with a garbage collector that seldom looks at what stays.

    python -m wardround.flower.server.flower_program flower-superlink --help

A SuperLink makes about 700 objects per request. By default Python then looks for garbage with each request, and every
hundredth time at everything that was ever imported: a seventh of the SuperLink's processor time.
"""

from __future__ import annotations

import gc
import sys
from importlib.metadata import entry_points

__all__ = ["collect_seldom", "main"]

NEW_OBJECTS = 10_000
"""So many make the collector look at them (Python's default: 700)."""


def collect_seldom() -> None:
    """Have the collector leave alone what is there now, and look at new objects seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)


def main(arguments: list[str]) -> object:
    """Run the program that is named first, with the rest as its arguments."""
    (program,) = entry_points(group="console_scripts", name=arguments[0])
    run = program.load()
    collect_seldom()
    sys.argv = arguments
    return run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))  # type: ignore[arg-type]
