"""MedMNIST files: both label shapes, grey and colour, small and large, damaged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from raw_files import write_medmnist as write

from wardround import datasets
from wardround.datasets import medmnist
from wardround.datasets.base import Task
from wardround.datasets.prepared_cache import prepare
from wardround.errors import ConfigError, DataError


@pytest.mark.parametrize("columns", [(), (1,)])
def test_both_label_shapes(tmp_path, columns):
    path = write(tmp_path / "m.npz", lambda n: (np.arange(n) % 2).reshape(n, *columns))
    data = datasets.create("medmnist", file=path).load(0)
    assert data.task is Task.BINARY
    assert data.outputs == 1
    assert data.input_shape == (1, 28, 28)
    assert data.train.targets.tolist() == [i % 2 for i in range(30)]
    assert [len(part) for part in (data.train, data.validation, data.test)] == [30, 6, 9]


def test_more_classes_and_findings(tmp_path):
    data = datasets.create("medmnist", file=write(tmp_path / "c.npz", lambda n: np.arange(n) % 5)).load(0)
    assert data.task is Task.MULTICLASS
    assert data.outputs == 5
    path = write(tmp_path / "f.npz", lambda n: np.eye(3)[np.arange(n) % 3])
    data = datasets.create("medmnist", file=path).load(0)
    assert data.task is Task.MULTILABEL
    assert data.train.targets.dtype == torch.float32
    assert data.outputs == 3


def test_colour_goes_first(tmp_path):
    path = write(tmp_path / "m.npz", shape=(64, 64, 3))
    data = datasets.create("medmnist", file=path).load(0)
    assert data.input_shape == (3, 64, 64)
    stored = np.load(path)["train_images"] / 255
    mean, deviation = stored.mean((0, 1, 2)), stored.std((0, 1, 2))
    expected = ((stored[4] - mean) / deviation).transpose(2, 0, 1)
    assert data.prepare(data.train.inputs[4:5])[0].numpy() == pytest.approx(expected, abs=1e-4)


def test_a_large_file_is_unpacked_once(tmp_path, monkeypatch):
    source = datasets.create("medmnist", file=write(tmp_path / "m.npz", shape=(28, 28, 3)))
    small = source.load(0)
    monkeypatch.setattr(medmnist, "LARGE", 100)
    with pytest.raises(DataError, match=r"run: wardround data prepare medmnist file=.*m\.npz"):
        source.load(0)
    prepare(source, None)
    large = source.load(0)
    for part in ("train", "validation", "test"):
        a, b = getattr(small, part), getattr(large, part)
        assert torch.allclose(small.prepare(a.inputs[:]), large.prepare(b.inputs[:]))
        assert torch.equal(a.targets, b.targets)


def test_it_takes_a_file_not_a_folder(tmp_path):
    with pytest.raises(ConfigError, match="takes no --source"):
        prepare(datasets.create("medmnist", file=write(tmp_path / "m.npz")), tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"val_images": None}, "no array 'val_images'; a MedMNIST file holds train_images"),
        ({"train_images": np.zeros((30, 28, 28, 28), np.uint8)}, "2-D MedMNIST files"),
        ({"train_images": np.zeros((30, 28, 28))}, "kind float64"),
        ({"test_labels": np.zeros(8, np.uint8)}, "9 test images, but 8 labels"),
        ({"test_labels": np.zeros((9, 2), np.uint8)}, "alike in all splits"),
        ({"test_labels": np.zeros(9)}, "whole numbers"),
        ({"train_labels": np.zeros(30, np.uint8)}, "no training sample of 'class 1'"),
        ({"train_images": np.array([{"a": 1}] * 30, dtype=object)}, "kind object"),
    ],
)
def test_wrong_contents(tmp_path, changes, says):
    with pytest.raises(DataError, match=says):
        datasets.create("medmnist", file=write(tmp_path / "m.npz", **changes)).load(0)


def test_damaged_files(tmp_path, left_behind, monkeypatch):
    whole = write(tmp_path / "m.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut\.npz is damaged or no \.npz file"):
        datasets.create("medmnist", file=tmp_path / "cut.npz").load(0)
    with pytest.raises(DataError, match=r"nowhere\.npz does not exist.*medmnist\.com"):
        datasets.create("medmnist", file=tmp_path / "nowhere.npz").load(0)
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 0xFF  # inside the pixels: their checksum tells
    (tmp_path / "flipped.npz").write_bytes(flipped)
    with pytest.raises(DataError, match="damaged"):
        datasets.create("medmnist", file=tmp_path / "flipped.npz").load(0)
    with pytest.raises(DataError, match="damaged"):
        prepare(datasets.create("medmnist", file=tmp_path / "flipped.npz"), None)
    assert left_behind() == []


@pytest.mark.parametrize(
    ("name", "counts", "positives"),
    [("pneumoniamnist", (4708, 524, 624), 390), ("breastmnist", (546, 78, 156), 114)],
)
def test_real_files(real, name, counts, positives):
    data = datasets.create("medmnist", file=real("medmnist") / f"{name}.npz").load(0)
    assert data.task is Task.BINARY
    assert (len(data.train), len(data.validation), len(data.test)) == counts
    assert int(data.test.targets.sum()) == positives
