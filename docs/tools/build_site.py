"""Build the documentation into a folder that any web server can serve: python docs/tools/build_site.py [FOLDER].

Every warning is an error. Nothing is fetched, neither now nor by the pages.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch
from sitegen.pages import ROOT, WORKERS, stage
from sphinx.cmd.build import main as sphinx_build

SETTINGS = Path(__file__).parent / "sitegen"


def build(target: Path) -> None:
    """Write the source into a temporary folder, then let Sphinx build the site."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        source, doctrees = Path(folder) / "source", Path(folder) / "doctrees"
        source.mkdir()
        stage(source)
        arguments = [
            "-q",
            "-W",
            "--keep-going",
            "-E",
            "-j",
            str(WORKERS),
            "-c",
            str(SETTINGS),
            "-d",
            str(doctrees),
        ]
        if sphinx_build([*arguments, str(source), str(target)]):
            raise SystemExit("the site has warnings: see above")


if __name__ == "__main__":
    begun = time.monotonic()
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    build(target)
    print(f"{target / 'index.html'}: built in {time.monotonic() - begun:.0f} s")
