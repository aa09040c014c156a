"""Columns, levels and classes that statistics have in common."""

import pytest

from wardround.datasets.agreement import agree_on_columns, agree_on_label
from wardround.datasets.schema import Label
from wardround.datasets.statistics import CategoryStatistics, NumberStatistics, TableStatistics
from wardround.errors import DataError

AGE = NumberStatistics(100, 0.0, 60.0, 10.0, {0.5: 60.0})
LABEL = Label(name="y", classes=("0", "1"))


def said(classes=("0", "1"), **columns):
    return TableStatistics(100, dict.fromkeys(classes, 50), columns)


def words(*levels, missing=0.0):
    return CategoryStatistics(100, missing, dict.fromkeys(levels, 20))


def test_levels_of_all_hospitals_are_used():
    clients = {"a": said(age=AGE, cp=words("1", "2")), "b": said(age=AGE, cp=words("2", "4", missing=0.1))}
    schema = agree_on_columns(clients, LABEL)
    assert schema.feature_names == ("age", "cp=1", "cp=2", "cp=4", "cp=missing")
    assert schema.column("cp").other  # a rare level that nobody may speak of is none of them
    assert schema.column("age").required


def test_one_hospital_of_three_cannot_add_a_column():
    clients = {name: said(age=AGE, cp=words("1")) for name in "ab"} | {"c": said(age=AGE, mine=AGE)}
    schema = agree_on_columns(clients, LABEL)
    assert {column.name for column in schema.columns} == {"age", "cp"}
    assert not schema.column("cp").required  # the third lacks it


def test_a_column_without_values_is_as_good_as_none():
    empty = NumberStatistics(0, 1.0)
    clients = {"a": said(age=AGE, ca=AGE), "b": said(age=AGE, ca=AGE), "c": said(age=AGE, ca=empty)}
    assert not agree_on_columns(clients, LABEL).column("ca").required


def test_the_type_is_what_most_say():
    clients = {"a": said(cp=words("1")), "b": said(cp=words("1")), "c": said(cp=AGE)}
    assert agree_on_columns(clients, LABEL).column("cp").type == "category"
    clients = {"a": said(cp=AGE), "b": said(cp=AGE), "c": said(cp=words("1"))}
    assert agree_on_columns(clients, LABEL).column("cp").type == "number"


def test_nothing_in_common():
    with pytest.raises(DataError, match="no column in common"):
        agree_on_columns({"a": said(x=AGE), "b": said(y2=AGE), "c": said(z=AGE)}, LABEL)


def test_a_hospital_without_sick_patients_and_one_with_a_class_of_its_own():
    clients = {"a": said(("0", "1")), "b": said(("0", "1")), "c": said(("0",)), "d": said(("0", "1", "7"))}
    label = agree_on_label(dict.fromkeys(clients, "num"), clients)
    assert label == Label(name="num", classes=("0", "1"))


def test_the_positive_class_is_the_one_that_most_have_last():
    clients = {"a": said(("yes", "no")), "b": said(("no", "yes")), "c": said(("no", "yes"))}
    assert agree_on_label(dict.fromkeys(clients, "y"), clients).classes == ("no", "yes")


def test_one_class_is_not_enough():
    clients = {"a": said(("0",)), "b": said(("0",))}
    with pytest.raises(DataError, match=r"1 classes of label 'y' in common \(0\)"):
        agree_on_label(dict.fromkeys(clients, "y"), clients)
