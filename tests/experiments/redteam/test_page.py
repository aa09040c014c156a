"""The red team's page, picture and leaderboard."""

import xml.etree.ElementTree as ElementTree

import pytest

from wardround.errors import ConfigError
from wardround.experiments.redteam import Findings, Plan, Tried
from wardround.experiments.redteam.page import leaderboard, page, words, worst_table, write
from wardround.experiments.redteam.results import Outcome


def findings(rule="krum", worst=0.3, verdict="weights", **changes):
    def outcomes(loss, count=2):
        return tuple(
            Outcome(seed=200 + i, value=0.85 - loss, loss=loss, tpr=0.25, fpr=0.05, verdict=verdict)
            for i in range(count)
        )

    mixture = [{"name": "noise", "share": 0.25, "scale": 2.0}, {"name": "ipm", "share": 0.75, "eps": 0.5}]
    return Findings(
        plan=Plan(**{"aggregator": rule, "base": {"rounds": 5}, "seeds": (200, 201), **changes}),
        clean={200: 0.85, 201: 0.85},
        trials=(
            Tried(number=0, attack={"name": "alie", "fraction": 0.4, "start": 1, "k": 2.5},
                  outcomes=outcomes(worst / 2), state="complete"),
            Tried(number=1, attack={"name": "mix", "fraction": 0.35, "start": 3, "parts": mixture},
                  outcomes=outcomes(worst), state="complete"),
            Tried(number=2, attack={"name": "noise", "fraction": 0.4, "start": 1, "scale": 1.0},
                  outcomes=outcomes(-0.01, 1), state="halved"),
            Tried(number=3, attack={"name": "mimic", "fraction": 0.4, "start": 1}, state="failed",
                  reason="mimic: no such client"),
        ),
    )  # fmt: skip


def test_the_page_has_the_worst_first_and_says_how_to_replay():
    text = page(findings())
    lines = [line for line in text.splitlines() if line.startswith(("| 1 |", "| 2 |", "| 3 |"))]
    assert len(lines) == 2
    assert lines[0].startswith(
        "| 1 | 25 % noise scale 2 and 75 % ipm eps 0.5 | 0.35 | 3 | 0.550 | 0.300 | 25 %* / 5 %*"
    )
    assert "`worst/01-mix.yaml`" in lines[0]
    assert "2 on every seed, 1 given up early for doing less harm, 1 impossible" in text
    assert "1 × mimic: no such client" in text
    assert worst_table(findings()).row_count == 2


def test_all_files_are_written(tmp_path):
    write(findings(), tmp_path)
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {
        "harmful.yaml",
        "redteam.json",
        "redteam.md",
        "redteam.svg",
        "worst/01-mix.yaml",
        "worst/02-alie.yaml",
    }


def test_the_picture_has_a_dot_a_trial_and_panel_and_needs_nothing_else(tmp_path):
    write(findings("caac-mag+dir"), tmp_path)
    text = (tmp_path / "redteam.svg").read_text()
    root = ElementTree.fromstring(text)
    dots = [element for element in root.iter() if element.tag.endswith("circle")]
    assert len(dots) == 2 * 3
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_picture_of_a_search_that_found_nothing():
    from wardround.experiments.redteam.picture import picture

    empty = findings().model_copy(update={"trials": ()})
    ElementTree.fromstring(picture(empty))
    assert "0 attacks tried" in page(empty)


def test_the_best_worst_case_leads():
    text = leaderboard([findings("krum", 0.4), findings("median", 0.05, "flags")])
    lines = [line for line in text.splitlines() if line.startswith(("| 1 |", "| 2 |"))]
    assert lines[0].startswith("| 1 | `median` | 0.850 | 0.050 | 0.800; ")
    assert lines[1].startswith(
        "| 2 | `krum` | 0.850 | 0.400 | 0.450; 25 % noise scale 2 and 75 % ipm eps 0.5; 35 % "
    )
    assert lines[1].endswith("from round 3; 25 %* / 5 %* | 0.450, noise + ipm | – | 2 | 4 |")


def test_a_backdoor_is_shown_beside_the_attack_that_costs_most_of_the_metric():
    plain = findings("krum", 0.3)
    gains = tuple(Outcome(seed=200 + i, value=0.84, loss=0.7, backdoor=0.7) for i in range(2))
    backdoor = {"name": "ipm", "fraction": 0.4, "start": 1, "keep": "residual"}
    both = plain.model_copy(
        update={"trials": (*plain.trials, Tried(number=4, attack=backdoor, outcomes=gains, state="complete"))}
    )
    (line,) = [line for line in leaderboard([both]).splitlines() if line.startswith("| 1 |")]
    assert line.startswith("| 1 | `krum` | 0.850 | 0.700 (backdoor) | 0.550; 25 % noise")
    assert line.endswith("| 0.550, noise + ipm | 0.700, ipm (keeps its residual) | 3 | 5 |")


def test_a_rule_with_parameters_of_its_own_is_told_apart():
    tuned = findings("krum", 0.1, base={"rounds": 5, "aggregator": {"name": "krum", "f": 2}})
    text = leaderboard([findings("krum", 0.4), tuned])
    assert "| 1 | `krum (f 2)` |" in text
    assert "| 2 | `krum` |" in text


def test_settings_that_differ_are_not_compared():
    with pytest.raises(
        ConfigError, match="red team of median cannot be compared with that of krum: another max_"
    ):
        leaderboard([findings("krum"), findings("median", max_fraction=0.2)])


def test_switches_and_words_of_an_attack():
    section = {
        "name": "ipm",
        "fraction": 0.4,
        "start": 1,
        "eps": 0.123,
        "match_norm": False,
        "knowledge": "colluders",
    }
    assert words(section) == "ipm eps 0.123, colluders"


def test_settings_are_named_beside_the_attack():
    settings = ({"training.optimizer": "adam"}, {"training.optimizer": "sgd"})
    plain = findings(settings=settings)
    first, second, *rest = plain.trials
    elsewhere = plain.model_copy(
        update={
            "trials": (first, second.model_copy(update={"setting": 1}), *rest),
            "clean_elsewhere": ({200: 0.95, 201: 0.95},),
        }
    )
    text = page(elsewhere)
    assert "75 % ipm eps 0.5; in training.optimizer sgd |" in text
    assert "is 0.850 (training.optimizer adam), 0.950 (training.optimizer sgd)." in text
    assert "| 0.950 | 0.300 | 0.550; " in leaderboard([elsewhere]), "clean is that of the worst setting"
