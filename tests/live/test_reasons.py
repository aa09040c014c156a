"""Why a client was flagged."""

import json

import pytest

from wardround import aggregators
from wardround.live.feed import Feed

pytestmark = pytest.mark.usefixtures("always_searching")


def test_reasons_are_the_rules_own_words(read, tmp_path, growing):
    for rule in ("caac-guard", "of-a-plug-in-that-is-not-here"):
        run = growing(rule, aggregator={"name": rule})
        run.append(
            "clients.jsonl", *({**run.client_line(1, name), "flag": True, "why": 4.0} for name in run.clients)
        )
        run.append("rounds.jsonl", run.round_line(1))
    feed = read(Feed([tmp_path]))
    for found in list(feed.runs.values()):
        feed.read_details(found.id)
    read(feed)
    said = {found.path.name: json.loads(found.log.rows[0].text)["why"] for found in feed.runs.values()}
    reasons = aggregators.registry.get("caac-guard").reasons
    assert said["caac-guard"].startswith(f"{reasons[4]}; score 0.5")
    assert said["of-a-plug-in-that-is-not-here"].startswith("reason 4 of the rule; score 0.5")
