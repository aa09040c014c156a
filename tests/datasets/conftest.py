"""Small made-up data, and the real data where it is kept beside the project."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

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
    image_module = pytest.importorskip("PIL.Image")

    def write(path: Path, seed: int = 0, size: tuple[int, int] = (20, 16), colour: bool = True) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (size[1], size[0], 3) if colour else (size[1], size[0])
        pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
        image_module.fromarray(pixels).save(path)

    return write


@pytest.fixture
def left_behind(cache: Path) -> Callable[[], list[str]]:
    """What is in the cache folder."""
    return lambda: sorted(str(path.relative_to(cache)) for path in cache.rglob("*")) if cache.exists() else []
