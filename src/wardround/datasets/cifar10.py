"""CIFAR-10 from its original files."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from wardround.datasets.base import Task, register
from wardround.datasets.image_arrays import ArraySource
from wardround.errors import DataError


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
