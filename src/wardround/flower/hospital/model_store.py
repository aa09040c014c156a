"""Finished models that a hospital was brought: checked, and stored in its own folder.

A model is data, never code: weights, JSON and text, whose hashes the manifest has; ONNX is stored and not opened. It
must be what the hospital's policy allows, fit its data, be signed by the server that it trusts (where it has the
authority's certificate), and be the model that the server showed in its orders.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from wardround.datasets.base import Dataset
from wardround.errors import WardroundError
from wardround.flower.hospital.policy import HospitalPolicy, OrderRefused
from wardround.flower.hospital.setup import count_parameters
from wardround.flower.messages import Note
from wardround.flower.orders import PREPROCESSING
from wardround.runs.export.exported import ExportedModel, parse_model
from wardround.runs.export.manifest import FILES, MANIFEST, SIGNATURE, Manifest, check_files
from wardround.runs.export.signature import verify
from wardround.runs.export.writer import write_model_folder

__all__ = ["ModelStore", "StoredModel"]

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
BYTES_PER_PARAMETER, SMALL_FILES = 16, 64 * 2**20
"""A model folder holds every parameter twice, in at most eight bytes, and little else."""


@dataclass(frozen=True)
class StoredModel:
    """What a hospital notes of a model that it was brought."""

    manifest: str
    """SHA-256 of manifest.json."""
    signed_by: str | None
    """Whom the server's certificate names; None: nobody signed it, or there is nothing to check it by."""
    folder: Path | None
    """Where it is; None: this hospital keeps no files."""


class ModelStore:
    """The models of one hospital."""

    def __init__(self, folder: Path | None, dataset: Dataset, authority: Path | None = None) -> None:
        """`folder`: None stores nothing; `authority`: the certificate that signatures are checked by."""
        self.folder, self.dataset, self.authority = folder, dataset, authority

    def keep(self, order: Note, shown: str | None, policy: HospitalPolicy) -> StoredModel:
        """Check a model and store it.

        Args:
            order: what the server sent.
            shown: how the hash of this round's weights begins by an earlier order; None where no order had them.
            policy: what this hospital accepts.

        Raises:
            OrderRefused: it is not stored; says why, for the hospital's own log.
        """
        policy.check_delivery(sum(array.nbytes for array in order.arrays.values()), _largest(policy))
        files = files_of(order)
        try:
            manifest = Manifest.from_bytes(files.get(MANIFEST, b""))
            check_files(manifest, files, "the model")
            signed_by = self._signer(files)
            self._check_fit(manifest, policy)
            model = parse_model(files, "the model")
        except OrderRefused:
            raise
        except WardroundError as error:
            raise OrderRefused(f"the delivered model: {error}") from None
        _check_order(order, model, shown)
        if order.head.get(PREPROCESSING) != model.inputs.preprocessing and PREPROCESSING in order.head:
            raise OrderRefused("the delivered model scales its inputs otherwise than the orders did")
        policy.check_model(Note({"model": dict(manifest.model)}, {}, {"weights": model.weights.numpy()}))
        digest = hashlib.sha256(files[MANIFEST]).hexdigest()
        return StoredModel(digest, signed_by, self._store(manifest, files))

    def _signer(self, files: dict[str, bytes]) -> str | None:
        if self.authority is None:
            return None
        return verify(files[MANIFEST], files.get(SIGNATURE), self.authority, dt.datetime.now(dt.UTC))

    def _check_fit(self, manifest: Manifest, policy: HospitalPolicy) -> None:
        dataset = self.dataset
        own = {
            "task": dataset.task.value,
            "class_names": tuple(dataset.class_names),
            "input_shape": tuple(dataset.input_shape),
            "feature_names": tuple(dataset.feature_names),
        }
        for name, expected in own.items():
            if getattr(manifest, name) != expected:
                raise OrderRefused(
                    f"the delivered model is for other {name.replace('_', ' ')} than this hospital's data"
                )
        policy.check_model_name(manifest.model.get("name"))
        policy.check_parameters(count_parameters(dataset, manifest.model))

    def _store(self, manifest: Manifest, files: dict[str, bytes]) -> Path | None:
        if self.folder is None:
            return None
        place = self.folder / f"{manifest.run}-round-{manifest.round}"
        former = place / MANIFEST
        if former.exists():
            if former.read_bytes() != files[MANIFEST]:
                raise OrderRefused(
                    f"another model of this run and round is in {place}; a round has one model"
                )
            return place
        write_model_folder(place, files, private=True)
        return place


def files_of(order: Note) -> dict[str, bytes]:
    """The files that an order brings; one that does not belong to a model refuses them all."""
    known = (MANIFEST, SIGNATURE, *FILES)
    for name, array in order.arrays.items():
        if name not in known or array.ndim != 1 or str(array.dtype) != "uint8":
            raise OrderRefused(f"{name[:40]!r} is no file of a model")
    return {name: array.tobytes() for name, array in order.arrays.items()}


def _check_order(order: Note, model: ExportedModel, shown: str | None) -> None:
    manifest = model.manifest
    if manifest.run != order.head.get("run") or not RUN_NAME.fullmatch(manifest.run):
        raise OrderRefused("the delivered model is of another run than the order")
    if manifest.round != order.head.get("round") or manifest.round < 1:
        raise OrderRefused("the delivered model is of another round than the order")
    if shown is not None and not manifest.weights.startswith(shown):
        raise OrderRefused(
            f"the delivered model is not the one that the server's orders showed after round {manifest.round}"
        )


def _largest(policy: HospitalPolicy) -> int:
    return BYTES_PER_PARAMETER * policy.max_parameters + SMALL_FILES
