"""Why a client was flagged."""

from wardround import aggregators
from wardround.records import ClientRecord
from wardround.runs.reasons import Peers, explain, rule_reasons


def test_a_rule_says_what_its_codes_mean():
    reasons = rule_reasons({"aggregator": {"name": "caac-guard"}})
    assert reasons == aggregators.registry.get("caac-guard").reasons
    assert rule_reasons({"aggregator": {"name": "of-a-plug-in-that-is-not-here"}}) == {}
    flagged = ClientRecord(1, "a", flag=True, score=0.5, columns={"why": 2.0})
    assert explain(flagged, Peers([]), reasons) == f"{reasons[2]}; score 0.5"
    assert explain(ClientRecord(1, "a", flag=False), Peers([]), reasons) == ""
