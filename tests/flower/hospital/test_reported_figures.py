"""What a hospital says of an evaluation, and what it keeps to itself."""

import json

import torch
from hypothesis import given
from hypothesis import strategies as st

from wardround.datasets.base import Task
from wardround.datasets.patient_groups import rows_of_groups
from wardround.federation.scoring import Measurement, choose_thresholds, measure, measure_groups
from wardround.flower.hospital.policy import HospitalPolicy
from wardround.flower.hospital.reported_figures import disclosed_groups, figures_note
from wardround.flower.messages import pack, unpack


def measured(rows=60, small=4):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, 1, generator=generator)
    targets = (torch.randn(rows, generator=generator) + logits[:, 0] > 0).long()
    thresholds = choose_thresholds(logits, targets, Task.BINARY)
    sexes = ["female"] * small + ["male"] * (rows - small)
    ages = ["<40"] * 3 + ["40-59"] * 17 + ["60-79"] * (rows - 20)
    groups = measure_groups(
        logits, targets, Task.BINARY, thresholds, rows_of_groups({"sex": sexes, "age": ages}), 10
    )
    own = measure(logits, targets, Task.BINARY, thresholds, ("well", "ill"))
    return Measurement(own.metrics, own.reasons, own.calibration, own.thresholds, groups)


def test_small_groups_and_bins_do_not_leave_the_hospital():
    test = measured()
    note = figures_note(test, test, 60, HospitalPolicy(min_group=10))
    assert "sex" not in note.head["groups"], "of two groups the large one would give the small one away"
    assert set(note.head["groups"]["age"]) == {"60-79"}, "three and seventeen hidden, not three alone"
    assert all(rows >= 10 for _, _, rows, _, _ in note.head["calibration"])
    assert any(one.n < 10 for one in test.calibration)
    everything = figures_note(test, test, 60, HospitalPolicy(min_group=1))
    assert set(everything.head["groups"]["sex"]) == {"female", "male"}
    assert len(everything.head["calibration"]) == len(test.calibration)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 30))
def test_what_is_hidden_is_nobody_or_many(sizes, least):
    groups = {"age": {str(i): {"n": n} for i, n in enumerate(sizes)}}
    kept = disclosed_groups(groups, least).get("age", {})
    assert all(figures["n"] >= least for figures in kept.values())
    hidden = sum(sizes) - sum(figures["n"] for figures in kept.values())
    assert hidden == 0 or hidden >= least or not kept


def test_figures_are_rounded_and_the_threshold_more_than_the_others():
    test = measured(small=20)
    note = figures_note(test, test, 60, HospitalPolicy(report_digits=3))
    assert note.metrics["threshold"] == float(f"{test.metrics['threshold']:.2g}") != test.metrics["threshold"]
    assert note.metrics["validation-threshold"] == note.metrics["threshold"]
    assert note.metrics["brier"] == float(f"{test.metrics['brier']:.3g}")
    male = note.head["groups"]["sex"]["male"]
    assert male["accuracy"] == float(f"{test.groups['sex']['male']['accuracy']:.3g}")
    for _, _, _, predicted, _ in note.head["calibration"]:
        assert predicted == float(f"{predicted:.3g}")


def test_a_reason_goes_without_the_name_of_a_class():
    one_class = measure(torch.randn(30, 1), torch.zeros(30).long(), Task.BINARY, None, ("well", "ill"))
    note = unpack(pack(figures_note(one_class, one_class, 30, HospitalPolicy())))
    assert note.head["reasons"]["auroc"] == "one-class"
    assert "auroc" not in note.metrics
    assert "well" not in json.dumps(note.head)
