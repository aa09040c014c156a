"""Hospitals' figures combined: medians, reasons, and what a stranger may put into a reply."""

import math

from wardround.flower.messages import Note
from wardround.flower.server.evaluations import combine_evaluations


def reply(auroc=0.8, n=30, group_auroc=0.8, **head):
    groups = {"sex": {"female": {"n": n, "auroc": group_auroc, "accuracy": 0.7}}}
    bins = [[0.0, 0.1, n, 0.05, 0.1]]
    return Note(
        {"groups": groups, "calibration": bins, **head}, {"num-examples": 50, "auroc": auroc, "brier": 0.2}
    )


def test_groups_and_bins_are_medians_and_their_rows_are_added():
    replies = {
        "a": reply(n=30, group_auroc=0.7),
        "b": reply(n=20, group_auroc=0.9),
        "c": reply(n=10, group_auroc=0.8),
    }
    evaluation = combine_evaluations(replies)
    female = evaluation.details.groups["sex"]["female"]
    assert female["n"] == 60
    assert female["hospitals"] == 3
    assert female["auroc"] == 0.8
    assert female["f1"] is None
    assert "f1" in female["reason"]
    (one,) = evaluation.details.calibration
    assert (one.low, one.high, one.n, one.predicted, one.observed) == (0.0, 0.1, 60, 0.05, 0.1)
    assert evaluation.metrics["brier"] == 0.2


def test_one_liar_does_not_move_a_group_far():
    honest = {str(i): reply(group_auroc=0.7) for i in range(4)}
    evaluation = combine_evaluations({**honest, "liar": reply(group_auroc=1.0)})
    assert evaluation.details.groups["sex"]["female"]["auroc"] == 0.7


def test_nonsense_is_not_read():
    strange = [
        {"groups": [1]}, {"groups": {"sex": 3}}, {"groups": {"sex": {"x": {"n": -1, "auroc": 0.5}}}},
        {"groups": {"sex": {"y" * 999: {"n": 5, "auroc": 0.5}}}}, {"groups": {"sex": {"z": {"n": 5, "auroc": 7}}}},
        {"calibration": "curve"}, {"calibration": [[0, 1]]}, {"calibration": [[0, 1, 5, "p", 0.1]]},
        {"calibration": [[0, 1, 5, math.nan, 0.1]]}, {"reasons": {"auroc": "because"}}, {"reasons": 4},
    ]  # fmt: skip
    replies = {str(i): Note(head, {"num-examples": 50, "brier": 1.5}) for i, head in enumerate(strange)}
    evaluation = combine_evaluations(replies)
    assert evaluation.details.groups == {
        "sex": {"z": {"n": 5, "hospitals": 1, **dict.fromkeys(("auroc", "accuracy", "f1", "sensitivity", "specificity",
                                                              "brier")),
                      "reason": "auroc, accuracy, f1, sensitivity, specificity, brier: no hospital reports it"}}
    }  # fmt: skip
    assert evaluation.details.calibration == ()
    assert evaluation.details.per_client_reasons == {}
    assert evaluation.metrics["brier"] == 1.5, "a Brier score of several classes goes up to 2"


def test_where_nobody_has_an_auroc_it_is_null_and_says_why():
    one_class = Note({"reasons": {"auroc": "one-class"}}, {"num-examples": 30, "accuracy": 0.9})
    silent = Note({}, {"num-examples": 0})
    evaluation = combine_evaluations({"a": one_class, "b": silent})
    assert evaluation.metrics["auroc"] is None
    assert evaluation.details.reasons["auroc"].kind == "one-class"
    assert "no hospital reports one" in evaluation.details.reasons["auroc"].text
    reasons = evaluation.details.per_client_reasons
    assert reasons["a"]["auroc"].text == "the hospital's test rows are of one class"
    assert reasons["b"]["accuracy"].kind == "few-rows"
    assert evaluation.per_client["b"]["auroc"] is None
    assert combine_evaluations({}).metrics is None
