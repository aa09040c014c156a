"""Which of two labels is positive: known words in several languages, else a guess that is said."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardround import datasets
from wardround.datasets.label_words import NO, YES, choose_positive
from wardround.datasets.schema_inference import infer_schema
from wardround.errors import WardroundWarning

KNOWN = [
    ("nein", "ja"), ("no", "yes"), ("nee", "ja"), ("nej", "ja"), ("non", "oui"), ("no", "sí"), ("não", "sim"),
    ("nie", "tak"), ("ne", "ano"), ("nem", "igen"), ("ei", "kyllä"), ("hayır", "evet"), ("нет", "да"), ("όχι", "ναι"),
    ("いいえ", "はい"), ("否", "是"), ("아니오", "예"), ("لا", "نعم"), ("לא", "כן"), ("नहीं", "हाँ"),
    ("0", "1"), ("-1", "1"), ("false", "true"), ("n", "y"), ("N", "J"), ("f", "t"), ("B", "M"),
    ("negative", "positive"), ("-", "+"), ("control", "case"), ("healthy", "sick"), ("gesund", "krank"),
    ("alive", "dead"), ("survived", "died"), ("lebend", "verstorben"), ("überlebt", "gestorben"), ("vivant", "décédé"),
    ("benign", "malignant"), ("gutartig", "bösartig"), ("normal", "abnormal"), ("absent", "present"),
    ("no event", "event"), ("not readmitted", "readmitted"), ("non-smoker", "smoker"), ("kein Rezidiv", "Rezidiv"),
]  # fmt: skip


@pytest.mark.parametrize(("no", "yes"), KNOWN)
def test_words_for_yes_and_no_are_understood_in_any_order_and_case(no, yes):
    for names in ([no, yes], [yes, no], [no.upper(), yes.capitalize()], [f" {yes} ", no]):
        chosen = choose_positive(names)
        assert chosen.is_known
        assert chosen.name.strip().casefold() == yes.casefold()


@pytest.mark.parametrize(
    ("names", "positive"),
    [
        (("1", "2"), "2"),
        (("2", "10"), "10"),
        (("north", "south"), "south"),
        (("CKD", "healthy"), "CKD"),
        (("yes", "unknown"), "yes"),
    ],
)
def test_what_no_word_tells_is_a_guess(names, positive):
    for given_names in (names, names[::-1]):
        assert choose_positive(given_names).name == positive
        assert not choose_positive(given_names).is_known


@pytest.mark.slow
@given(st.lists(st.text(min_size=1, max_size=6).filter(str.strip), min_size=2, max_size=2, unique=True))
def test_the_choice_does_not_depend_on_the_order(names):
    assert choose_positive(names) == choose_positive(names[::-1])
    assert choose_positive(names).name in names


def test_no_word_says_both():
    assert not YES & NO


def table(path, no, yes):
    lines = [f"{40 + i},{i % 3},{yes if i % 4 == 0 else no}" for i in range(60)]
    path.write_text("\n".join(["age,score,outcome", *lines]), encoding="utf-8")
    return path


def test_a_german_table_predicts_ja_without_a_warning(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = datasets.create("csv", file=table(tmp_path / "t.csv", "nein", "ja"), label="outcome").load(
            seed=0
        )
    assert data.class_names == ("nein", "ja")
    assert 0 < int(data.train.targets.sum()) < len(data.train.targets) / 2, "ja is the rare one"
    schema = infer_schema([tmp_path / "t.csv"], "outcome").schema
    assert schema.label.positive == "ja"


def test_a_guess_is_said_and_positive_ends_it(tmp_path):
    file = table(tmp_path / "t.csv", "zentral", "ambulant")
    match = (
        r"label 'outcome' is 'ambulant' or 'zentral', and 'zentral' is taken.*say dataset\.positive=ambulant"
    )
    with pytest.warns(WardroundWarning, match=match):
        assert datasets.create("csv", file=file, label="outcome").load(0).class_names == (
            "ambulant",
            "zentral",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = datasets.create("csv", file=file, label="outcome", positive="ambulant").load(0)
    assert data.class_names == ("zentral", "ambulant")
