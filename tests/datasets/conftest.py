"""Small made-up data, and the real data where it is kept beside the project."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from raw_files import write_picture

REAL = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def real() -> Callable[[str], Path]:
    """Folder name → the real data, or a skip that says what is not there."""

    def find(name: str) -> Path:
        if not (REAL / name).exists():
            pytest.skip(f"real data {name} is not kept beside the project")
        return REAL / name

    return find


@pytest.fixture
def picture() -> Callable[..., None]:
    """Write a picture of noise, the same for the same seed."""
    pytest.importorskip("PIL.Image")
    return write_picture


@pytest.fixture
def left_behind(cache: Path) -> Callable[[], list[str]]:
    """What is in the cache folder."""
    return lambda: sorted(str(path.relative_to(cache)) for path in cache.rglob("*")) if cache.exists() else []
