"""Detection rates and latency, each against counts made by hand."""

import pytest

from wardround.runs.summary import detection, detection_latency, summarize, suppression


def line(round, client, flag, byzantine=False, attacking=False, weight=0.25):
    return {
        "round": round, "client": client, "flag": flag, "weight": weight,
        "byzantine": byzantine, "attacking": attacking,
    }  # fmt: skip


def played(attack_flags, benign_flags=(False, False)):
    """One attacker `b` (from round 2 on) and honest clients; a flag a round for each."""
    lines = []
    for number, flag in enumerate(attack_flags, start=1):
        lines.append(line(number, "b", flag, byzantine=True, attacking=number >= 2))
        lines += [line(number, f"h{i}", benign) for i, benign in enumerate(benign_flags)]
    return lines


def test_rates_by_hand():
    # Round 1 is before the attack: the attacker's flag there counts for nothing.
    rates = detection(played([True, True, False, True, True], benign_flags=(True, False)), "flag")
    assert rates["tpr"] == 3 / 4
    assert rates["fnr"] == 1 / 4
    assert rates["recall"] == rates["tpr"]
    assert rates["fpr"] == 5 / 10
    assert rates["precision"] == 3 / 8
    assert rates["f1"] == pytest.approx(2 * (3 / 8) * (3 / 4) / (3 / 8 + 3 / 4))


def test_latency_is_counted_from_the_onset_and_needs_three_rounds_in_a_row():
    assert detection_latency(played([False, True, True, True])) == 0
    assert detection_latency(played([False, True, True, False, True, True, True])) == 3
    assert detection_latency(played([False, True, True, False, True, True])) is None


def test_a_clean_run_has_false_alarms_but_nothing_to_find():
    rates = detection([line(1, "a", True), line(1, "b", False)], "flag")
    assert rates["fpr"] == 0.5
    assert rates["tpr"] is rates["precision"] is rates["f1"] is rates["latency"] is None


def test_a_rule_without_flags_has_no_detection_but_suppression():
    lines = [line(1, c, None, weight=w) for c, w in (("a", 0.4), ("b", 0.4), ("c", 0.18), ("d", 0.02))]
    lines[3] |= {"byzantine": True, "attacking": True}
    assert detection(lines, "flag") is None
    assert suppression(lines) == {"tpr": 1.0, "fpr": 0.0}
    lines[3]["weight"] = 0.026  # a tenth of 1/4 is 0.025
    assert suppression(lines) == {"tpr": 0.0, "fpr": 0.0}


def test_best_is_chosen_on_validation():
    def judged(number, test, validation):
        return {
            "round": number, "seconds": {"train": 1.0, "aggregate": 0.1},
            "metrics": {"auroc": test}, "validation": {"auroc": validation},
        }  # fmt: skip

    told = summarize([judged(1, 0.70, 0.6), judged(2, 0.80, 0.9), judged(3, 0.85, 0.8)], [])
    assert told["best"] == {"round": 2, "auroc": 0.80}
    assert told["final"] == {"round": 3, "auroc": 0.85}
    assert told["rounds_to_90"] == 2


def test_nothing_done_yet():
    told = summarize([], [])
    assert told["final"] is told["best"] is told["detection"] is told["suppression"] is None
