"""One member, explained on the terminal."""

import pytest

from wardround.cli.explanation import parameter_meanings
from wardround.cli.listing import registries


def test_krum_is_explained_in_plain_text(here):
    result = here("list", "aggregators", "krum")
    assert result.returncode == 0
    for words in (
        "krum\n",
        "least sum of squared distances",
        "‖Uᵢ - Uⱼ‖²",
        "Needs N ≥ 2f+3",
        "  f = –",
        "Byzantine clients",
    ):
        assert words in result.stdout
    assert "\\" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["attacks", "alie"], "Standard deviations to shift by"),
        (["datasets", "mimic3"], "Needs: pip install 'wardround[mimic3]'"),
        (["datasets", "ham10000"], "Needs: pip install 'wardround[imaging]'"),
        (["models", "resnet18"], "Needs: pip install 'wardround[imaging]'"),
        (["partitions", "dirichlet"], "alpha = "),
        (["presets", "demo"], "wardround preset show demo prints it"),
        (["scenarios", "dos-noise-40"], "dos-noise-40"),
    ],
)
def test_every_kind_has_explanations(here, arguments, words):
    result = here("list", *arguments)
    assert result.returncode == 0
    assert words in result.stdout


def test_an_unknown_member_is_an_error_with_the_nearest_one(here):
    result = here("list", "aggregators", "krumm")
    assert result.returncode == 2
    assert "no 'krumm' among the aggregators; did you mean 'krum'?" in result.stderr


def test_one_member_as_json(here):
    result = here("list", "aggregators", "krum", "--json")
    assert result.stdout.count('"name"') == 1


def test_inherited_parameters_have_their_meaning():
    assert "f" in parameter_meanings(registries()["aggregators"].get("krum"))
    assert parameter_meanings(int) == {}


def test_data_that_needs_an_extra_names_it():
    """MIMIC-III is tables: whoever uses it does not need the packages for images."""
    extras = {name: registries()["datasets"].get(name).extra for name in registries()["datasets"].available()}
    assert extras["mimic3"] == "mimic3"
    assert {name for name, extra in extras.items() if extra == "imaging"} == {
        "alzheimer-mri", "chestxray8", "chexpert", "ham10000", "isic2019",
    }  # fmt: skip
    assert extras["icu"] is extras["csv"] is extras["synthetic"] is None
