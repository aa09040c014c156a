"""`wardround redteam`: mistakes on its command line."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name the rule with --aggregator"),
        (["--aggregator", "krun"], "did you mean 'krum'"),
        (["--aggregator", "krum", "--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--aggregator", "krum", "--seeds", "1,x"], "--seeds: whole numbers with commas between"),
        (["--aggregator", "krum", "--seeds", "1,1"], "a seed occurs twice"),
        (["--aggregator", "krum", "--fraction", "2"], "max_fraction: must be less than or equal to 1"),
        (["--aggregator", "krum", "folder"], "folders go with --leaderboard"),
        (["--leaderboard"], "takes the folders of red teams"),
        (["--leaderboard", "nowhere"], "nowhere: no redteam.json in it"),
    ],
)
def test_a_red_team_that_cannot_begin(here, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = here("redteam", *arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing is written"
