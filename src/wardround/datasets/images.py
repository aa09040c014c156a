"""What all image datasets share: files in, a memory-mapped cache of pixels, normalised batches out."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from wardround.datasets.augmentation import Augmentation
from wardround.datasets.base import Dataset, MappedRows, Parameters, Split, Task, check_classes, split_units
from wardround.datasets.decoding import IMAGES, MOMENTS, Job, decode_all
from wardround.datasets.patient_groups import PatientGroups, groups_of_rows
from wardround.datasets.prepared_cache import Cache, PreparedSource, Workspace
from wardround.errors import DataError

__all__ = [
    "GREY_IMAGENET", "IMAGENET", "AugmentParams", "ImageFileSource", "ImageParams", "ImageSource",
    "Normalise", "Samples", "Shades", "find_images", "mapped", "moments_of", "training_shades",
]  # fmt: skip

Shades = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel, of shades between 0 and 1."""
IMAGENET: Shades = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
GREY_IMAGENET: Shades = ((0.449,), (0.226,))
PATIENT_GROUP = "patient_group_"
"""Before the names of attributes in the cache."""
LISTED = 10
"""Unreadable images that an error names; the rest is counted."""


@dataclass(frozen=True)
class Samples:
    """What the raw folder says about its images; one entry an image in every sequence."""

    paths: Sequence[Path]
    targets: np.ndarray
    """Class indices, or n × findings zeros and ones."""
    units: Sequence[str]
    """The patient or lesion of each image."""
    groups: Sequence[str] | None = None
    patient_groups: PatientGroups = field(default_factory=dict)
    """Attribute (sex, age, site) → the group of each image."""


class Normalise:
    """uint8 pixels → float32 shades with mean 0 and deviation 1, batch by batch."""

    def __init__(self, shades: Shades) -> None:
        mean, deviation = (torch.tensor(values).view(-1, 1, 1) for values in shades)
        self.scale, self.shift = 1 / (255 * deviation), mean / deviation

    def __call__(self, stored: Tensor) -> Tensor:
        scale, shift = self.scale.to(stored.device), self.shift.to(stored.device)
        return stored.to(torch.float32).mul_(scale).sub_(shift)


class AugmentParams(Parameters):
    """What every image dataset has."""

    augment: bool = True
    """Whether training sees randomly changed images."""


class ImageParams(AugmentParams):
    """What every dataset of image files has."""

    size: int = Field(224, ge=8, le=1024)
    """Height and width that images are scaled to."""


class ImageSource(PreparedSource):
    """An image dataset: a cache of pixels, read as normalised batches. A member says how the cache is built."""

    channels: ClassVar[int] = 3
    class_names: ClassVar[tuple[str, ...]]
    shades: ClassVar[Shades | None] = IMAGENET
    """What images are normalised with; None: mean and deviation of the training images."""
    needs_every_class: ClassVar[bool] = True
    """Whether raw files without an image of some class are refused. A task that joins classes can do without one."""
    augmentation: ClassVar[dict[str, Any]] = {}
    """Of training images; see `Augmentation`."""
    load_only = frozenset({"augment"})

    class Params(AugmentParams):
        """What every image dataset has."""

    params: AugmentParams

    def labels(self, targets: np.ndarray) -> tuple[Task, tuple[str, ...], np.ndarray]:
        """Task, class names and targets as the options want them, from those stored."""
        return self.task, self.class_names, targets

    def normalisation(self) -> Shades | None:
        """What images are normalised with; None: mean and deviation of the training images."""
        return self.shades

    def label_counts(self, targets: np.ndarray) -> dict[str, int]:
        """Class or finding → number of images; a class without any is an error where all are needed."""
        counts = (
            targets.sum(0) if targets.ndim == 2 else np.bincount(targets, minlength=len(self.class_names))
        )
        result = {name: int(count) for name, count in zip(self.class_names, counts, strict=True)}
        empty = [name for name, count in result.items() if not count]
        if empty and targets.ndim == 1 and self.needs_every_class:
            raise DataError(
                f"dataset '{self.name}': no image of class {', '.join(map(repr, empty))}; expected: {self.layout}; "
                f"get it from {self.origin}"
            )
        return result

    def read(self, cache: Cache, seed: int) -> Dataset:
        images = mapped(cache / IMAGES)
        with np.load(cache / "samples.npz") as stored:
            rows, units, raw = stored["rows"], stored["units"], stored["targets"]
            groups = stored.get("groups", None)
            prefix = PATIENT_GROUP
            patient_groups = {
                name.removeprefix(prefix): stored[name] for name in stored.files if name.startswith(prefix)
            }
        task, names, labels = self.labels(raw)
        targets = torch.from_numpy(np.ascontiguousarray(labels))
        parts = self.parts(units, labels, seed)
        moments = np.load(cache / MOMENTS, mmap_mode="r")
        shades = self.normalisation() or training_shades(moments[rows[parts[0]]])
        train, validation, test = (
            Split(
                # Reads like a tensor without filling memory with the whole array.
                cast(Tensor, MappedRows(images, torch.from_numpy(rows[part]))),
                targets[part],
                None if groups is None else tuple(groups[part].tolist()),
                groups_of_rows(patient_groups, part),
            )
            for part in parts
        )
        change: Callable[[Tensor, torch.Generator], Tensor] | None = None
        if self.params.augment and self.augmentation:
            change = Augmentation(**self.augmentation, deviation=shades[1])
        dataset = Dataset(
            self.name, task, names, train, validation, test, Normalise(shades), change, facts=cache.facts
        )
        return check_classes(dataset)

    def parts(
        self, units: np.ndarray, labels: np.ndarray, seed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows of train, validation and test, given the unit and the class of each row."""
        return split_units(units, seed)


class ImageFileSource(ImageSource):
    """An image dataset of files in a folder: a member says which files there are and what is on them."""

    extra = "imaging"

    class Params(ImageParams):
        """What every dataset of image files has."""

    params: ImageParams

    @abstractmethod
    def samples(self, folder: Path) -> Samples:
        """The images of the raw folder, listed and labelled."""

    def raw_files(self, folder: Path | None) -> Iterable[Path]:
        assert folder is not None
        there = [path for path in self.samples(folder).paths if path.is_file()]
        if not there:
            raise DataError(
                f"none of the images listed in {folder} is there; expected: {self.layout}; get it from {self.origin}"
            )
        return there

    def build(self, folder: Path | None, work: Workspace) -> dict[str, Any]:
        assert folder is not None
        samples = self.samples(folder)
        unreadable: dict[int, str] = {}
        job = Job(work.folder, self.params.size, self.channels)
        for done, failures in decode_all(samples.paths, job, work.workers):
            unreadable |= failures
            work.progress("images", done, len(samples.paths))
        named = {str(samples.paths[row].relative_to(folder)): unreadable[row] for row in sorted(unreadable)}
        if named and not work.skip_corrupt:
            raise DataError(_complaint(named, folder))
        kept = np.array([row for row in range(len(samples.paths)) if row not in unreadable])
        if not len(kept):
            raise DataError(f"no image in {folder} can be read: {_complaint(named, folder)}")
        targets = samples.targets[kept]
        with work.writing("samples.npz") as path, path.open("wb") as file:
            np.savez(
                file,
                rows=kept,
                targets=targets,
                units=np.asarray(samples.units, dtype=str)[kept],
                **({} if samples.groups is None else {"groups": np.asarray(samples.groups, dtype=str)[kept]}),
                **{
                    f"{PATIENT_GROUP}{name}": np.asarray(of_image, dtype=str)[kept]
                    for name, of_image in samples.patient_groups.items()
                },
            )
        return {
            "images": len(kept),
            "units": len(set(np.asarray(samples.units, dtype=str)[kept])),
            "labels": self.label_counts(targets),
            "unreadable": named,
        }


def find_images(folder: Path, names: list[str], ending: str) -> list[Path]:
    """Where each named image lies below the folder; one that is nowhere keeps a path that does not exist."""
    there = {path.stem: path for path in sorted(folder.rglob(f"*{ending}"))}
    return [there.get(name, folder / f"{name}{ending}") for name in names]


def mapped(path: Path) -> Tensor:
    """A stored array as a tensor that is read from disk as it is used.

    Mapped copy-on-write: torch wants memory that may be written to, and the file must never change.
    """
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def moments_of(images: Tensor) -> np.ndarray:
    """Mean and mean square of the shades of each image and channel: n × 2 × channels."""
    moments = []
    for piece in images.split(500):  # never all of them in memory as floats
        shades = piece.to(torch.float32).div_(255)
        moments.append(torch.stack([shades.mean((2, 3)), shades.square().mean((2, 3))], 1).numpy())
    return np.concatenate(moments)


def training_shades(moments: np.ndarray) -> Shades:
    """Mean and deviation of a set of images from the moments of each (n × 2 × channels)."""
    mean, square = moments.astype(float).mean(0)
    deviation = [max(math.sqrt(max(s - m * m, 0.0)), 1 / 255) for m, s in zip(mean, square, strict=True)]
    return tuple(mean.tolist()), tuple(deviation)


def _complaint(named: dict[str, str], folder: Path) -> str:
    listed = "; ".join(f"{name} ({reason})" for name, reason in list(named.items())[:LISTED])
    more = f"; and {len(named) - LISTED} more" if len(named) > LISTED else ""
    return (
        f"{len(named)} unreadable image{'s' if len(named) > 1 else ''} in {folder}: {listed}{more}; fix or fetch "
        "them again, or leave them out with --skip-corrupt"
    )
