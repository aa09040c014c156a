"""MedMNIST files: how most people will bring images."""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wardround.datasets.base import Dataset, Parameters, Split, Task, check_classes, register
from wardround.datasets.images import Normalise, mapped, moments_of, training_shades
from wardround.datasets.prepared_cache import Cache, PreparedSource, Workspace, open_cache
from wardround.errors import DataError

PARTS = ("train", "val", "test")
LARGE = 256_000_000
"""Bytes of pixels from which on a file is unpacked into a cache rather than at every load."""


@register("medmnist")
class MedMnist(PreparedSource):
    """Any 2-D MedMNIST file (28 to 224 pixels, grey or colour), with the splits that it comes with.

    Labels of one column make a binary or multi-class task, of several a multi-label one. Small files load as
    they are; large ones are unpacked once by `wardround data prepare medmnist file=…`.

    Yang et al., "MedMNIST v2", Scientific Data 10, 2023.
    """

    task = Task.MULTICLASS
    summary = "any MedMNIST .npz file (file=…): binary, multi-class or multi-label"
    licence = "CC BY 4.0 (DermaMNIST: CC BY-NC 4.0)"
    origin = "https://medmnist.com"
    layout = "one .npz file, named by the option `file`"
    takes_folder = False

    class Params(Parameters):
        file: Path

    params: Params

    def raw_files(self, folder: Path | None) -> Iterable[Path]:
        _headers(self.params.file)
        return [self.params.file]

    def load(self, seed: int) -> Dataset:
        shapes = _headers(self.params.file)
        if sum(int(np.prod(shapes[f"{part}_images"])) for part in PARTS) > LARGE:
            return self.read(open_cache(self), seed)
        with _readable(self.params.file), np.load(self.params.file, allow_pickle=False) as file:
            images = {part: torch.from_numpy(file[f"{part}_images"]) for part in PARTS}
            labels = {part: file[f"{part}_labels"] for part in PARTS}
        return self._dataset(images, labels, moments_of(_channels_first(images["train"])))

    def build(self, folder: Path | None, work: Workspace) -> dict[str, Any]:
        path = self.params.file
        for done, part in enumerate(PARTS):
            with (
                _readable(path),
                zipfile.ZipFile(path) as archive,
                work.writing(f"{part}.npy") as target,
                archive.open(f"{part}_images.npy") as packed,
                target.open("wb") as pixels,
            ):
                # An .npz is a zip of .npy files: copied out as they are, piece by piece.
                shutil.copyfileobj(packed, pixels, 1 << 24)
            work.progress("images", done + 1, len(PARTS))
        with _readable(path), np.load(path, allow_pickle=False) as file:
            labels = {part: file[f"{part}_labels"] for part in PARTS}
        moments = moments_of(_channels_first(mapped(work / "train.npy")))
        with work.writing("samples.npz") as target, target.open("wb") as out:
            np.savez(out, moments=moments, **labels)
        return {"images": {part: len(labels[part]) for part in PARTS}}

    def read(self, cache: Cache, seed: int) -> Dataset:
        images = {part: mapped(cache / f"{part}.npy") for part in PARTS}
        with np.load(cache / "samples.npz") as stored:
            labels, moments = {part: stored[part] for part in PARTS}, stored["moments"]
        return self._dataset(images, labels, moments)

    def _dataset(
        self, images: dict[str, Tensor], labels: dict[str, np.ndarray], moments: np.ndarray
    ) -> Dataset:
        task, names, targets = _targets(labels, self.params.file)
        for part in PARTS:
            if len(images[part]) != len(targets[part]):
                raise DataError(
                    f"{self.params.file}: {len(images[part])} {part} images, but {len(targets[part])} labels"
                )
        train, validation, test = (
            Split(_channels_first(images[part]), torch.from_numpy(targets[part])) for part in PARTS
        )
        normalise = Normalise(training_shades(moments))
        facts = {"images": {part: len(targets[part]) for part in PARTS}}
        dataset = Dataset(self.name, task, names, train, validation, test, normalise, facts=facts)
        return check_classes(dataset)


def _channels_first(stored: Tensor) -> Tensor:
    """n × height × width (× channels) as n × channels × height × width: a view, nothing is read."""
    return stored.unsqueeze(1) if stored.dim() == 3 else stored.permute(0, 3, 1, 2)


def _targets(
    labels: dict[str, np.ndarray], path: Path
) -> tuple[Task, tuple[str, ...], dict[str, np.ndarray]]:
    columns = {values.shape[1] if values.ndim == 2 else 1 for values in labels.values()}
    if len(columns) > 1 or any(
        values.ndim > 2 or values.dtype.kind not in "iu" for values in labels.values()
    ):
        raise DataError(
            f"{path}: labels must be whole numbers, n, n × 1 or n × findings, alike in all splits"
        )
    if columns == {1}:
        flat = {part: values.reshape(-1).astype(np.int64) for part, values in labels.items()}
        if min(values.min(initial=0) for values in flat.values()) < 0:
            raise DataError(f"{path}: labels must not be negative")
        classes = 1 + max(int(values.max(initial=0)) for values in flat.values())
        task = Task.BINARY if classes <= 2 else Task.MULTICLASS
        return task, tuple(f"class {i}" for i in range(max(classes, 2))), flat
    if any(not np.isin(values, (0, 1)).all() for values in labels.values()):
        raise DataError(f"{path}: labels of several findings must be 0 or 1")
    names = tuple(f"finding {i}" for i in range(columns.pop()))
    return Task.MULTILABEL, names, {part: values.astype(np.float32) for part, values in labels.items()}


def _headers(path: Path) -> dict[str, tuple[int, ...]]:
    """Array name → shape, from the headers alone, checked to be what a MedMNIST file holds."""
    wanted = [f"{part}_{what}" for part in PARTS for what in ("images", "labels")]
    if not path.is_file():
        raise DataError(
            f"{path} does not exist; expected a MedMNIST .npz file; get it from {MedMnist.origin}"
        )
    shapes: dict[str, tuple[int, ...]] = {}
    with _readable(path), zipfile.ZipFile(path) as archive:
        keys = [name.removesuffix(".npy") for name in archive.namelist()]
        missing = [name for name in wanted if name not in keys]
        if missing:
            raise DataError(
                f"{path} has no array '{missing[0]}'; a MedMNIST file holds {', '.join(wanted)}; this one holds "
                f"{', '.join(sorted(keys)) or 'nothing'}"
            )
        for name in wanted:
            with archive.open(f"{name}.npy") as file:
                version = np.lib.format.read_magic(file)
                head = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape, in_columns, kind = head(file)
            shapes[name] = shape
            if name.endswith("images") and (kind != np.uint8 or in_columns or not _is_pictures(shape)):
                raise DataError(
                    f"{path}: '{name}' has shape {shape} and kind {kind}; expected n × height × width (× 3) bytes: "
                    "the 2-D MedMNIST files"
                )
    return shapes


def _is_pictures(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3))


class _readable:  # noqa: N801 - used as a context manager
    """Whatever a damaged file makes zipfile and numpy raise, as one clear error."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, zipfile.BadZipFile | zlib.error | EOFError | ValueError | KeyError):
            raise DataError(
                f"{self.path} is damaged or no .npz file ({error}); get it from {MedMnist.origin}"
            ) from None
