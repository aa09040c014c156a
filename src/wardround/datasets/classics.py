"""MNIST and CIFAR-10 from their original files."""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wardround.datasets.base import Task, register, split_units
from wardround.datasets.decoding import IMAGES, MOMENTS
from wardround.datasets.images import ImageSource, moments_of
from wardround.datasets.preparation import Workspace
from wardround.errors import DataError

OFFICIAL_TEST = "test"


class ArraySource(ImageSource):
    """Images that come as arrays with a test set of their own: kept as it is, the rest split 7 : 1."""

    shades = None

    @abstractmethod
    def arrays(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """`train` and `test`: images (n × channels × height × width, uint8) and class indices."""

    def build(self, folder: Path | None, work: Workspace) -> dict[str, Any]:
        assert folder is not None
        arrays = self.arrays(folder)
        images = np.concatenate([arrays["train"][0], arrays["test"][0]])
        targets = np.concatenate([arrays["train"][1], arrays["test"][1]]).astype(np.int64)
        if targets.max() >= len(self.class_names):
            raise DataError(
                f"{folder}: label {targets.max()} where {len(self.class_names)} classes are expected"
            )
        facts = {"images": len(images), "labels": self.label_counts(targets), "test": len(arrays["test"][0])}
        moments = moments_of(torch.from_numpy(images))
        units = [*map(str, range(len(arrays["train"][0]))), *[OFFICIAL_TEST] * len(arrays["test"][0])]
        with work.writing(IMAGES) as path, path.open("wb") as file:
            np.save(file, images)
        with work.writing(MOMENTS) as path, path.open("wb") as file:
            np.save(file, moments)
        with work.writing("samples.npz") as path, path.open("wb") as file:
            np.savez(file, rows=np.arange(len(images)), targets=targets, units=np.array(units))
        work.progress("images", len(images), len(images))
        return facts

    def parts(self, units: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        test = np.flatnonzero(units == OFFICIAL_TEST)
        own = np.flatnonzero(units != OFFICIAL_TEST)
        train, validation, _ = split_units(units[own], seed, shares=(7 / 8, 1 / 8, 0.0))
        return own[train], own[validation], test


@register("mnist")
class Mnist(ArraySource):
    """LeCun et al., "Gradient-based learning applied to document recognition", Proceedings of the IEEE, 1998."""

    task = Task.MULTICLASS
    summary = "MNIST handwritten digits, 28×28"
    licence = "CC BY-SA 3.0"
    origin = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    layout = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (or .gz)"
    class_names = tuple("0123456789")
    channels = 1

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
        for place in (folder, folder / "raw", folder / "MNIST" / "raw"):
            for name in names:
                if (place / name).is_file():
                    return place / name
        raise DataError(f"{folder / stem} does not exist; expected: {self.layout}; get it from {self.origin}")

    def arrays(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        found = {}
        for name, part in (("train", "train"), ("test", "t10k")):
            images = read_idx(self._file(folder, part, "images-idx3"), dimensions=3)
            labels = read_idx(self._file(folder, part, "labels-idx1"), dimensions=1)
            if len(images) != len(labels):
                raise DataError(f"{folder}: {len(images)} {part} images, but {len(labels)} labels")
            found[name] = images[:, None], labels
        return found


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


@register("cifar10")
class Cifar10(ArraySource):
    """Krizhevsky, "Learning multiple layers of features from tiny images", 2009."""

    task = Task.MULTICLASS
    summary = "CIFAR-10 photographs, 32×32 in colour"
    licence = "free use with citation"
    origin = "https://www.cs.toronto.edu/~kriz/cifar.html (python version)"
    layout = "data_batch_1 … data_batch_5 and test_batch, or the folder cifar-10-batches-py that holds them"
    class_names = (
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    )  # fmt: skip
    augmentation = {"flips": (1,)}

    def raw_files(self, folder: Path | None) -> Iterable[Path]:
        assert folder is not None
        inner = folder / "cifar-10-batches-py"
        place = inner if inner.is_dir() else folder
        files = [place / f"data_batch_{i}" for i in range(1, 6)] + [place / "test_batch"]
        for path in files:
            if not path.is_file():
                raise DataError(f"{path} does not exist; expected: {self.layout}; get it from {self.origin}")
        return files

    def arrays(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        *train, test = [_read_batch(path) for path in self.raw_files(folder)]
        images, labels = zip(*train, strict=True)
        return {"train": (np.concatenate(images), np.concatenate(labels)), "test": test}


class _DataOnly(pickle.Unpickler):
    """Unpickles arrays, numbers and strings. Anything else that a pickle asks for is refused unexecuted."""

    ALLOWED = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not data")
        # numpy moved the module; its old name would warn.
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = _DataOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except Exception as error:  # whatever a damaged or hostile pickle stumbles over
        raise DataError(
            f"{path} is refused: {error or type(error).__name__}; expected a CIFAR-10 batch"
        ) from None
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= set(batch):
        raise DataError(f"{path} is not a CIFAR-10 batch: no b'data' and b'labels' in it")
    data, labels = batch[b"data"], np.asarray(batch[b"labels"])
    fits = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape == (len(labels), 3072)
    if not fits or labels.dtype.kind not in "iu" or labels.min(initial=0) < 0:
        raise DataError(f"{path} is not a CIFAR-10 batch: expected n × 3072 bytes and n labels")
    return data.reshape(-1, 3, 32, 32), labels
