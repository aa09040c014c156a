"""Detection rates and latency, each against counts made by hand."""

import pytest

from wardround.records import ClientRecord, RoundRecord
from wardround.runs.summary import (
    detection,
    detection_latency,
    flagged,
    summarize,
    suppression,
    why_no_auroc,
)


def record(round, client, flag, byzantine=False, attacking=False, weight=0.25):
    return ClientRecord(round, client, byzantine=byzantine, attacking=attacking, weight=weight, flag=flag)


def rates_of(clients):
    return detection(clients, flagged(clients))


def latency_of(clients):
    return detection_latency(clients, flagged(clients))


def played(attack_flags, benign_flags=(False, False)):
    """One attacker `b` (from round 2 on) and honest clients; a flag a round for each."""
    clients = []
    for number, flag in enumerate(attack_flags, start=1):
        clients.append(record(number, "b", flag, byzantine=True, attacking=number >= 2))
        clients += [record(number, f"h{i}", benign) for i, benign in enumerate(benign_flags)]
    return clients


def test_rates_by_hand():
    # Round 1 is before the attack: the attacker's flag there counts for nothing.
    rates = rates_of(played([True, True, False, True, True], benign_flags=(True, False)))
    assert rates["tpr"] == 3 / 4
    assert rates["fnr"] == 1 / 4
    assert rates["recall"] == rates["tpr"]
    assert rates["fpr"] == 5 / 10
    assert rates["precision"] == 3 / 8
    assert rates["f1"] == pytest.approx(2 * (3 / 8) * (3 / 4) / (3 / 8 + 3 / 4))


def test_latency_is_counted_from_the_onset_and_needs_three_rounds_in_a_row():
    assert latency_of(played([False, True, True, True])) == 0
    assert latency_of(played([False, True, True, False, True, True, True])) == 3
    assert latency_of(played([False, True, True, False, True, True])) is None


def test_a_clean_run_has_false_alarms_but_nothing_to_find():
    rates = rates_of([record(1, "a", True), record(1, "b", False)])
    assert rates["fpr"] == 0.5
    assert rates["tpr"] is rates["precision"] is rates["f1"] is rates["latency"] is None


def test_a_rule_without_flags_has_no_detection_but_suppression():
    def clients(weight):
        honest = [record(1, c, None, weight=w) for c, w in (("a", 0.4), ("b", 0.4), ("c", 0.18))]
        return [*honest, record(1, "d", None, byzantine=True, attacking=True, weight=weight)]

    assert rates_of(clients(0.02)) is None
    assert suppression(clients(0.02)) == {"tpr": 1.0, "fpr": 0.0}
    assert suppression(clients(0.026)) == {"tpr": 0.0, "fpr": 0.0}, "a tenth of 1/4 is 0.025"


def test_best_is_chosen_on_validation():
    def evaluated(number, test, validation):
        seconds = {"train": 1.0, "aggregate": 0.1}
        return RoundRecord(number, seconds, metrics={"auroc": test}, validation={"auroc": validation})

    rounds = [evaluated(1, 0.70, 0.6), evaluated(2, 0.80, 0.9), evaluated(3, 0.85, 0.8)]
    summary = summarize(rounds, [], "finished")
    assert summary.best == {"round": 2, "auroc": 0.80}
    assert summary.final == {"round": 3, "auroc": 0.85}
    assert summary.rounds_to_90 == 2


def test_a_run_that_ends_without_a_model_has_diverged():
    def ended(*reasons, status="finished"):
        rounds = [
            RoundRecord(
                number,
                metrics=None if reason == "-" else {"auroc": 0.5},
                diverged=None if reason == "-" else reason,
            )
            for number, reason in enumerate(reasons, start=1)
        ]
        return summarize(rounds, [], status)

    summary = ended(None, "not finite", "-", "not finite")
    assert (summary.status, summary.reason) == ("diverged", "not finite, since round 2")
    assert summary.finished, "all rounds took place: it is not run again"
    assert summary.diverged
    recovered = ended(None, "not finite", None)
    assert (recovered.status, recovered.reason) == ("finished", None)
    assert ended(None, "not finite", status="stopped").status == "stopped"


def test_nothing_done_yet():
    summary = summarize([], [], "failed", "interrupted")
    assert (summary.status, summary.reason) == ("failed", "interrupted")
    assert summary.final is summary.best is summary.detection is summary.suppression is None


@pytest.mark.parametrize(
    ("final", "record", "says"),
    [
        (None, {}, "no round was evaluated"),
        ({"auroc": 0.5}, {}, None),
        ({"accuracy": 0.5}, {}, "it was not measured"),
        ({"auroc": None, "loss": None}, {}, "output is not finite"),
        ({"auroc": None, "loss": 0.1}, {}, "all of one class"),
        (
            {"auroc": None, "loss": 0.1},
            {"class_names": ["alive", "dead"], "test_classes": [9, 0]},
            "all 9 test rows are 'alive'",
        ),
    ],
)
def test_an_auroc_that_cannot_be_computed_says_why(final, record, says):
    why = why_no_auroc(final, record)
    assert why is None if says is None else says in why


def test_without_validation_no_round_is_best():
    rounds = [RoundRecord(number, metrics={"auroc": 0.5}) for number in (1, 2)]
    assert summarize(rounds, [], "finished").best is None


def test_broken_clients_are_neither_attackers_nor_false_alarms():
    told = [
        ClientRecord(1, "x", byzantine=True, attacking=True, flag=True, weight=0.0),
        ClientRecord(1, "a", flag=False, weight=0.5),
        ClientRecord(1, "b", flag=True, weight=0.5),
        ClientRecord(1, "broken", faulty=True, failing=True, flag=True, weight=0.0),
        ClientRecord(2, "broken", faulty=True, failing=True, flag=False, weight=0.5),
        ClientRecord(3, "broken", faulty=True, failing=False, flag=True, weight=0.0),
    ]
    rates = rates_of(told)
    assert rates["tpr"] == 1.0
    assert rates["fpr"] == 1 / 2
    assert rates["precision"] == 1 / 2
    assert rates["fault_tpr"] == 1 / 2, "before the fault a broken client counts for nothing"
    assert suppression(told) == {"tpr": 1.0, "fpr": 0.0, "fault_tpr": 0.5}


def test_without_faults_there_is_no_rate_of_theirs():
    assert "fault_tpr" not in rates_of(played([True, True, True]))
