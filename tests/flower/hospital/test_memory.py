"""A hospital's own memory and log."""

import json

import pytest

from wardround.errors import ConfigError
from wardround.flower.hospital.memory import LOG_FILE, HospitalMemory, last_answered, read_log
from wardround.flower.hospital.policy import DpFloor, HospitalPolicy, OrderRefused

RUN, OTHER = "run:one", "run:two"
RELEASE = (2.0, 1.0, 1)


def memory_of(folder=None, clock=None, **policy):
    options = {} if clock is None else {"clock": clock}
    return HospitalMemory(HospitalPolicy(**policy), folder, **options)


def restarted(memory):
    later = HospitalMemory(memory.policy, memory.folder, memory.clock)
    later.load_state_dict(memory.state_dict())
    return later


@pytest.fixture(params=[False, True], ids=["running", "restarted"])
def later(request):
    """The memory as it is, and after a restart."""
    return restarted if request.param else lambda memory: memory


class TestRounds:
    def test_only_go_forward(self, later):
        memory = memory_of()
        assert memory.repeated(RUN, 5, "a") is None
        memory.remember(RUN, 5, "a", b"reply", None)
        memory = later(memory)
        for round, order in ((4, "a"), (1, "b"), (5, "b")):
            with pytest.raises(OrderRefused, match="round 5 is answered already"):
                memory.repeated(RUN, round, order)
        assert memory.repeated(RUN, 6, "a") is None

    def test_the_same_order_gets_the_same_reply(self, later):
        memory = memory_of()
        memory.remember(RUN, 1, "a", b"first", None)
        memory = later(memory)
        assert memory.repeated(RUN, 1, "a") == b"first"
        memory.remember(RUN, 2, "b", b"second", None)
        memory = later(memory)
        assert memory.repeated(RUN, 2, "b") == b"second"
        with pytest.raises(OrderRefused):
            memory.repeated(RUN, 1, "a")

    def test_that_have_begun_are_for_one_order_even_if_nothing_came_of_them(self, later):
        memory = memory_of()
        memory.begin(RUN, 3, "a")
        memory = later(memory)
        assert memory.repeated(RUN, 3, "a") is None  # the same work may be tried again
        for round, order in ((3, "b"), (2, "a")):
            with pytest.raises(OrderRefused, match="round 3 is answered already"):
                memory.repeated(RUN, round, order)
        memory.remember(RUN, 3, "a", b"reply", None)
        assert later(memory).repeated(RUN, 3, "a") == b"reply"

    def test_of_another_run_are_its_own(self, later):
        memory = memory_of()
        memory.remember(RUN, 9, "a", b"reply", None)
        memory = later(memory)
        assert memory.repeated(OTHER, 1, "b") is None
        memory.remember(OTHER, 1, "b", b"other", None)
        with pytest.raises(OrderRefused):  # its reply is not kept any more: better none than another
            later(memory).repeated(RUN, 9, "a")

    def test_no_more_runs_are_kept_than_fit(self):
        memory = memory_of()
        for run in range(1100):
            memory.remember(f"run:{run}", 1, "a", b"", None)
        assert len(memory.answered) == 1000
        assert "run:1099" in memory.answered


class TestEvaluations:
    def test_have_one_model_per_round(self, later):
        memory = memory_of()
        memory.check_evaluation(RUN, 3, "a")
        memory = later(memory)
        memory.check_evaluation(RUN, 3, "a")
        for round, order in ((3, "b"), (2, "a"), (1, "c")):
            with pytest.raises(OrderRefused, match="round 3 is evaluated already"):
                memory.check_evaluation(RUN, round, order)
        memory.check_evaluation(RUN, 4, "b")
        memory.check_evaluation(OTHER, 1, "a")


class TestMaskedSums:
    def test_have_one_start(self, later):
        memory = memory_of()
        memory.check_start("model")
        memory.check_start("model")  # asked again before its sum was opened
        memory.close_start("model")
        memory = later(memory)
        with pytest.raises(OrderRefused, match="could be subtracted"):
            memory.check_start("model")
        memory.check_start("another")


class TestOrdersPerDay:
    def test_have_a_limit_that_a_restart_does_not_lift(self, later):
        now = [1_700_000_000.0]
        memory = memory_of(clock=lambda: now[0], max_orders_per_day=3)
        for _ in range(3):
            memory.count_order()
        memory = later(memory)
        for _ in range(2):
            with pytest.raises(OrderRefused, match=r"policy\.max_orders_per_day is 3"):
                memory.count_order()
        now[0] += 86_400
        for _ in range(3):
            memory.count_order()
        with pytest.raises(OrderRefused):
            memory.count_order()

    def test_one_line_is_logged_of_a_day_that_is_full(self, tmp_path):
        memory = memory_of(tmp_path, max_orders_per_day=2)
        for number in range(10):
            try:
                memory.count_order()
            except OrderRefused as refusal:
                memory.log("hello", None, refused=str(refusal))
            else:
                memory.log("hello", b"reply", round=number)
            memory.write_log()
        assert ["refused" in line for line in read_log(tmp_path)] == [False, False, True]


class TestBudget:
    def test_cannot_be_overspent_nor_reset(self, later):
        pytest.importorskip("opacus", reason="the extra 'privacy' is not installed")
        memory = memory_of(dp={"budget": 6.0})
        rounds = 0
        while memory.ledger.epsilon() < 5.0:
            rounds += 1
            memory.check_budget(rounds, RELEASE)
            memory.remember(f"run:{rounds}", 1, "a", b"", RELEASE)  # a new run each time: no new budget
            memory = later(memory)
        with pytest.raises(OrderRefused, match=r"policy\.dp\.budget"):
            memory.check_budget(1, (0.5, 1.0, 1))
        assert rounds > 1
        assert memory.ledger.epsilon() <= 6.0
        memory.check_budget(1, None)

    def test_is_spent_by_answers_and_not_by_questions(self):
        pytest.importorskip("opacus", reason="the extra 'privacy' is not installed")
        memory = memory_of(dp={"budget": 6.0})
        for _ in range(100):
            memory.check_budget(1, RELEASE)
        assert memory.ledger.epsilon() == 0
        memory.remember(RUN, 1, "a", b"reply", RELEASE)
        spent = memory.ledger.epsilon()
        assert memory.repeated(RUN, 1, "a") == b"reply"
        assert memory.ledger.epsilon() == spent > 0

    def test_without_a_budget_what_is_spent_is_booked(self):
        pytest.importorskip("opacus", reason="the extra 'privacy' is not installed")
        memory = memory_of(dp=DpFloor())
        memory.remember(RUN, 1, "a", b"", RELEASE)
        assert restarted(memory).ledger.epsilon() == memory.ledger.epsilon() > 0


class TestTheServersAuditLog:
    def test_only_grows(self, later):
        memory = memory_of()
        memory.follow_audit(RUN, [3, "a" * 64])
        memory = later(memory)
        memory.follow_audit(RUN, [3, "a" * 64])
        for head in ([2, "b" * 64], [3, "b" * 64]):
            with pytest.raises(OrderRefused, match="cut or written anew"):
                memory.follow_audit(RUN, head)
        memory.follow_audit(RUN, [4, "b" * 64])

    @pytest.mark.parametrize(
        "head",
        [None, [], "x", [1], ["1", "a" * 64], [1, "short"], [1, 7], [10**400, "a" * 64], [-1, "a" * 64]],
    )
    def test_must_be_told(self, head):
        with pytest.raises(OrderRefused, match="audit log"):
            memory_of().follow_audit(RUN, head)


class TestTheLog:
    def test_and_its_folder_are_the_hospitals_alone(self, open_umask, mode_of, tmp_path):
        memory = memory_of(tmp_path / "state")
        memory.log("train", b"reply", round=1)
        memory.write_log()
        assert mode_of(tmp_path / "state") == 0o700
        assert mode_of(tmp_path / "state" / LOG_FILE) == 0o600
        assert [line["bytes"] for line in read_log(tmp_path / "state")] == [5]

    def test_says_what_left_when_how_large_and_for_which_order(self, tmp_path):
        memory = memory_of(tmp_path, clock=lambda: 17.0)
        memory.log("train", b"reply", run=RUN, round=1, order="a")
        memory.log("train", None, run=RUN, round=2, refused="why")
        assert read_log(tmp_path) == []  # not before the memory is on disk
        memory.write_log()
        left, refused = read_log(tmp_path)
        assert (left["time"], left["kind"], left["run"], left["round"], left["order"]) == (
            17,
            "train",
            RUN,
            1,
            "a",
        )
        assert left["bytes"] == 5
        assert len(left["sha256"]) == 64
        assert refused["refused"] == "why"
        assert "sha256" not in refused
        memory.write_log()
        assert len(read_log(tmp_path)) == 2

    def test_without_a_folder_is_nowhere(self):
        memory = memory_of()
        memory.log("train", b"reply")
        memory.write_log()

    def test_goes_on_behind_a_line_that_was_cut_off(self, tmp_path):
        memory = memory_of(tmp_path)
        memory.log("train", b"reply", run=RUN, round=1)
        memory.write_log()
        path = tmp_path / LOG_FILE
        path.write_bytes(path.read_bytes() + b'{"time": 17.0, "ki')
        assert len(read_log(tmp_path)) == 1
        memory.log("train", b"reply", run=RUN, round=2)
        memory.write_log()
        assert [line["round"] for line in read_log(tmp_path)] == [1, 2]
        path.write_bytes(b"cut off in its first line")
        memory.log("train", b"reply", run=RUN, round=3)
        memory.write_log()
        assert [line["round"] for line in read_log(tmp_path)] == [3]

    def test_tells_the_last_answers(self, tmp_path):
        memory = memory_of(tmp_path)
        for run, round in ((RUN, 1), (OTHER, 4), (RUN, 2)):
            memory.log("train", b"reply", run=run, round=round)
        memory.log("train", None, run=RUN, round=9, refused="why")
        memory.log("evaluate", b"reply", run=RUN, round=8)
        memory.write_log()
        assert last_answered(tmp_path) == {RUN: 2, OTHER: 4}
        assert last_answered(tmp_path / "nowhere") == {}

    def test_the_last_answers_of_a_long_log_are_at_its_end(self, tmp_path):
        entry = {
            "time": 1.0,
            "kind": "train",
            "bytes": 1,
            "sha256": "",
            "run": RUN,
            "round": 7,
            "x": "y" * 900,
        }
        line = json.dumps(entry)
        (tmp_path / LOG_FILE).write_text(f"{line}\n" * 3000)
        assert last_answered(tmp_path) == {RUN: 7}

    def test_that_cannot_be_opened_is_an_error_of_one_line(self, tmp_path):
        (tmp_path / LOG_FILE).mkdir()
        with pytest.raises(ConfigError, match="cannot be read"):
            read_log(tmp_path)
