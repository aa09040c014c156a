import numpy as np

from wardround import datasets


def test_digits_are_shades_between_0_and_1():
    data = datasets.create("digits").load(0)
    inputs = data.prepare(data.train.inputs)
    assert (float(inputs.min()), float(inputs.max())) == (0, 1)
    assert np.bincount(data.train.targets).min() > 90
