"""What a hospital says of its table: to whom it fits, how often it may be asked, and what an order may not do to it."""

import numpy as np
import pytest

import wardround
from wardround.datasets.preprocessing import PreprocessingParams, fit_preprocessing
from wardround.datasets.schema import Schema
from wardround.errors import WardroundError
from wardround.flower.config import hospital_from
from wardround.flower.hospital.hospital import REFUSED, Hospital
from wardround.flower.hospital.memory import HospitalMemory, read_log
from wardround.flower.hospital.policy import HospitalPolicy
from wardround.flower.messages import HELLO, SCHEMA_KEY, TABLE_KEY, TRAIN, UNFIT_KEY, Note
from wardround.flower.orders import order_hash, work_key

SCHEMA = {"columns": [{"name": "age", "range": [0, 120]}], "label": {"name": "died", "classes": ["0", "1"]}}


@pytest.fixture
def hospital(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{int(rng.integers(30, 90))},{int(rng.integers(0, 2))}" for _ in range(60)]
    (tmp_path / "t.csv").write_text("age,died\n" + "\n".join(lines) + "\n")

    def make(**policy):
        config = hospital_from(
            {"name": "a", "dataset": {"name": "csv", "file": str(tmp_path / "t.csv")}, "policy": policy},
            "h",
            tmp_path,
        )
        return Hospital.from_config(config, tmp_path / "state")

    return make


def hello(schema=SCHEMA, **head):
    return Note({"kind": HELLO, SCHEMA_KEY: schema, **head})


def test_the_floor_is_the_hospitals_own(hospital):
    reply = hospital(min_reported=30).reply(hello(min_count=1))
    said = reply.head[TABLE_KEY]["statistics"]
    assert said["columns"]["age"]["quantiles"] == {}  # 42 rows: not 30 on either side of any
    assert all(count >= 30 for count in said["classes"].values())


def test_a_server_cannot_ask_with_one_schema_after_the_other(hospital, tmp_path):
    """Ranges that begin a little higher each time would find out the youngest patient."""
    own = hospital(max_schemas=3)
    for least in range(3):
        schema = {**SCHEMA, "columns": [{"name": "age", "range": [least, 120]}]}
        for _ in range(2):  # the same one again costs nothing
            assert own.reply(hello(schema)).head["samples"] == 42
    with pytest.raises(WardroundError, match=REFUSED):
        own.reply(hello({**SCHEMA, "columns": [{"name": "age", "range": [31, 120]}]}))
    assert "policy.max_schemas is 3" in read_log(tmp_path / "state")[-1]["refused"]
    assert own.reply(hello({**SCHEMA, "columns": [{"name": "age", "range": [0, 120]}]})).head["samples"] == 42


def test_schemas_are_remembered_across_restarts():
    memory = HospitalMemory(HospitalPolicy(max_schemas=1))
    memory.check_schema("one")
    again = HospitalMemory(HospitalPolicy(max_schemas=1))
    again.load_state_dict(memory.state_dict())
    again.check_schema("one")
    with pytest.raises(WardroundError, match="max_schemas"):
        again.check_schema("two")


def test_what_does_not_fit_is_said_and_not_only_refused(hospital):
    reply = hospital().reply(hello({**SCHEMA, "columns": [{"name": "agee"}]}))
    assert "column 'agee' is not there, expected a number; did you mean 'age'?" in reply.head[UNFIT_KEY]
    assert hospital().reply(hello({"columns": 3})).head[UNFIT_KEY] == "the schema cannot be read"


@pytest.mark.parametrize(
    "scaling",
    [
        {"age": {"fill": 0, "centre": 0, "scale": 0}},
        {"age": {"fill": 0, "centre": 0, "scale": 1e-40}},
        {"age": {"fill": float("nan"), "centre": 0, "scale": 1}},
        {"other": {"fill": 0, "centre": 0, "scale": 1}},
        {},
        7,
    ],
)
def test_an_order_cannot_scale_as_it_likes(hospital, scaling):
    fitted = fit_preprocessing(Schema.from_dict(SCHEMA), [], PreprocessingParams()).to_dict()
    order = Note({"kind": TRAIN, "preprocessing": {**fitted, "scaling": scaling}})
    with pytest.raises(WardroundError, match="the order's preprocessing cannot be read"):
        hospital().reply(order)


def test_the_schema_is_part_of_an_orders_hash():
    one = {"kind": TRAIN, "preprocessing": {"schema": SCHEMA}}
    other = {
        "kind": TRAIN,
        "preprocessing": {"schema": {**SCHEMA, "columns": [{"name": "age", "range": [0, 121]}]}},
    }
    assert order_hash(Note(one)) != order_hash(Note(other))
    assert work_key(one) != work_key(other)


def test_why_the_server_refuses_it_is_said_once(hospital, tmp_path, capsys):
    own = hospital()
    for reason in ("it says it is 'x'", "it says it is 'x'", "another\x1b[2J", "another"):
        own.reply(hello(refused=reason))
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "a: the server refuses it: it says it is 'x'; fix it: the server asks again",
        "a: the server refuses it: another; fix it: the server asks again",
    ]
    assert [line["refused"] for line in read_log(tmp_path / "state") if line.get("refused")] == [
        "by the server: it says it is 'x'",
        "by the server: another",
    ]


def test_another_version_of_the_server_is_said_once(hospital, capsys):
    own = hospital()
    for version in (wardround.__version__, "9.9.9", "9.9.9", "8.8\x1b[2J", ["9"]):
        own.reply(hello(versions={"wardround": version}))
    own.reply(hello(versions="nonsense"))
    own.reply(hello())
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "9.9.9" in line] == [
        f"a: WARNING: the server runs wardround 9.9.9, this hospital {wardround.__version__}; install the same "
        "everywhere"
    ]
    assert not any("\x1b" in line for line in said)


def test_a_hospital_says_which_versions_it_runs(hospital):
    assert set(hospital().reply(hello()).head["versions"]) == {"wardround", "flwr", "torch"}
