import torch

from wardround import datasets


def test_breast_cancer_predicts_the_malignant():
    data = datasets.create("breast-cancer").load(0)
    targets = torch.cat([data.train.targets, data.validation.targets, data.test.targets])
    assert int(targets.sum()) == 212
    assert data.class_names[1] == "malignant"
