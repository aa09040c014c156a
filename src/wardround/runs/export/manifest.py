"""The manifest of an exported model: what it is, and the SHA-256 of every file beside it.

Whoever reads a model folder checks the hashes first. A signature (see `signature`) is over the manifest, and so over
all files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from wardround.errors import DataError

__all__ = [
    "CARD",
    "FILES",
    "FORMAT",
    "MANIFEST",
    "ONNX",
    "PREPROCESSING",
    "SCHEMA",
    "SIGNATURE",
    "WEIGHTS",
    "Manifest",
    "check_files",
    "weights_hash",
]

FORMAT = 1
"""Of the folder. A newer one is refused."""
MANIFEST, SIGNATURE, CARD = "manifest.json", "signature.json", "MODEL_CARD.md"
WEIGHTS, ONNX, PREPROCESSING, SCHEMA = "model.safetensors", "model.onnx", "preprocessing.json", "schema.json"
FILES = (WEIGHTS, ONNX, PREPROCESSING, SCHEMA, CARD)
"""What a manifest may list; nothing else belongs to a model folder but manifest and signature."""


@dataclass(frozen=True)
class Manifest:
    """What an exported model is."""

    run: str
    """The name of the run's folder."""
    round: int
    """The round after which the weights were like this."""
    chosen: str
    """Why this round: `best` on validation, or `last`."""
    model: Mapping[str, Any]
    """The section `model:` of the run's configuration."""
    group_norm: bool
    """BatchNorm layers were replaced by GroupNorm, for DP-SGD."""
    task: str
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    feature_names: tuple[str, ...]
    thresholds: Mapping[str, float]
    """Class (of a binary task the positive one) or finding → the probability above which a sample is called so. None
    for a multi-class task: the most probable class is said."""
    parameters: int
    weights: str
    """SHA-256 of all weights laid end to end: the same as in the orders of a federation."""
    files: Mapping[str, str]
    """File name → SHA-256."""
    wardround: str = ""
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """The content of manifest.json."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes, where: object = MANIFEST) -> Manifest:
        """Read manifest.json; whatever is wrong with it is one line of error."""
        try:
            values = json.loads(content)
            if not isinstance(values, dict):
                raise ValueError("no JSON object")
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not the manifest of a model ({error})") from None
        version = values.get("format")
        if not isinstance(version, int) or version > FORMAT:
            raise DataError(
                f"{where}: written in format {version!r}; this version reads up to {FORMAT}: upgrade wardround"
            )
        try:
            manifest = cls(**{one.name: values[one.name] for one in fields(cls)})
            manifest._check()
        except KeyError as error:
            raise DataError(f"{where}: not the manifest of a model (no {error})") from None
        except (TypeError, ValueError) as error:
            raise DataError(f"{where}: not the manifest of a model ({error})") from None
        lists = ("class_names", "input_shape", "feature_names")
        return cls(**{**asdict(manifest), **{name: tuple(getattr(manifest, name)) for name in lists}})

    def _check(self) -> None:
        kinds: dict[str, tuple[type, ...]] = {
            "run": (str,), "round": (int,), "chosen": (str,), "model": (dict,), "group_norm": (bool,), "task": (str,),
            "class_names": (list,), "input_shape": (list,), "feature_names": (list,),
            "thresholds": (dict,), "parameters": (int,), "weights": (str,), "files": (dict,),
        }  # fmt: skip
        for name, allowed in kinds.items():
            if not isinstance(getattr(self, name), allowed):
                raise ValueError(f"{name} is {getattr(self, name)!r:.60}")
        if not all(isinstance(value, int | float) for value in self.thresholds.values()):
            raise ValueError("a threshold is no number")
        if not isinstance(self.model.get("name"), str):
            raise ValueError("the model has no name")
        for file in self.files:
            if file not in FILES:
                raise ValueError(f"{file!r:.60} is no file of a model")
        for file in (WEIGHTS, PREPROCESSING, SCHEMA):
            if file not in self.files:
                raise ValueError(f"no {file}")


def check_files(manifest: Manifest, contents: Mapping[str, bytes], where: object) -> None:
    """Compare files with their hashes in the manifest.

    Args:
        manifest: what the files should be.
        contents: file name → content, of all files that there are.
        where: the folder, for messages.

    Raises:
        DataError: a file is missing, or is not the one that was exported.
    """
    for name, expected in manifest.files.items():
        if name not in contents:
            raise DataError(f"{where}: {name} is missing; the manifest lists it")
        if hashlib.sha256(contents[name]).hexdigest() != expected:
            raise DataError(
                f"{where}: {name} is not the file that was exported (its SHA-256 differs from the manifest's)"
            )


def weights_hash(weights: Tensor) -> str:
    """SHA-256 of the flat weights.

    >>> import torch
    >>> weights_hash(torch.zeros(2))[:8]
    'af5570f5'
    """
    return hashlib.sha256(weights.detach().contiguous().numpy().tobytes()).hexdigest()
