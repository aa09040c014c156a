"""The program that builds the site stands outside the package."""

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "tools"
for needed in ("sphinx", "furo", "myst_parser", "latex2mathml", "matplotlib"):
    pytest.importorskip(needed, reason="the site needs wardround[docs]")
sys.path.insert(0, str(DOCS))
