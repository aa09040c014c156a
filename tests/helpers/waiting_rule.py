"""A rule that holds a run in a round for as long as a test wants."""

import time
from pathlib import Path

CODE = '''
import time
from pathlib import Path
from wardround.aggregators.base import Aggregator, register
from wardround.updates import Aggregation


@register("waiting")
class Waiting(Aggregator):
    """The mean; one round does not end before there is a file."""

    def combine(self, updates, context):
        has_begun = any(Path({out!r}).rglob("rounds.jsonl"))  # it is not being warmed up
        if context.round == {round} and has_begun:
            Path({folder!r}, "is-waiting").touch()
            while not Path({folder!r}, "go-on").exists():
                time.sleep(0.01)
        return Aggregation(updates.matrix.mean(0))
'''


class WaitingRule:
    """The rule's file, and what the test and the rule tell each other."""

    def __init__(self, folder: Path, out: Path, round: int):
        self.folder = folder
        self.file = folder / "waiting.py"
        self.file.write_text(CODE.format(folder=str(folder), out=str(out), round=round))

    def changes(self):
        """What a configuration says to use it."""
        return {"plugins": [str(self.file)], "aggregator": {"name": "waiting"}}

    def wait_for_round(self, still_running):
        """Return when the round has begun; `still_running` raises where that will never be."""
        deadline = time.monotonic() + 300
        while not (self.folder / "is-waiting").exists():
            still_running()
            assert time.monotonic() < deadline, "the round did not begin"
            time.sleep(0.01)

    def go_on(self):
        (self.folder / "go-on").touch()
