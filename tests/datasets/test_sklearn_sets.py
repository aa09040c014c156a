"""The two sets of scikit-learn, and that every dataset says what it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wardround import datasets


def test_breast_cancer_predicts_the_malignant():
    data = datasets.create("breast-cancer").load(0)
    targets = torch.cat([data.train.targets, data.validation.targets, data.test.targets])
    assert int(targets.sum()) == 212
    assert data.class_names[1] == "malignant"


def test_digits_are_shades_between_0_and_1():
    data = datasets.create("digits").load(0)
    inputs = data.prepare(data.train.inputs)
    assert (float(inputs.min()), float(inputs.max())) == (0, 1)
    assert np.bincount(data.train.targets).min() > 90


@pytest.mark.parametrize("name", datasets.available())
def test_every_dataset_says_what_it_is(name):
    member = datasets.registry.get(name)
    assert member.summary
    assert member.licence
    assert member.origin
    assert member.task in tuple(datasets.Task)
