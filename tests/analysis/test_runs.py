"""Labels of runs: they hold the parameters in which runs differ, and nothing else."""

from wardround.analysis import load_runs


def test_parameters_that_differ_stand_in_the_label(make_run):
    make_run("fedmed", aggregator__clip="none")
    make_run("fedmed", aggregator__clip="mad")
    make_run("caac", aggregator__t_boot=10)
    assert {run.method for run in load_runs([make_run.root])} == {
        "fedmed (clip none)",
        "fedmed (clip mad)",
        "caac",
    }


def test_pre_aggregations_stand_before_the_rule(make_run):
    make_run("median")
    make_run("median", aggregator__pre=[{"name": "arc", "f": 2}, {"name": "nnm", "f": 2}])
    make_run("median", aggregator__pre=[{"name": "nnm", "f": 2}])
    make_run("median", aggregator__pre=[{"name": "nnm", "f": 4}])
    assert {run.method for run in load_runs([make_run.root])} == {
        "median",
        "arc + nnm + median",
        "nnm + median (nnm f 2)",
        "nnm + median (nnm f 4)",
    }


def test_an_f_that_follows_the_attackers_is_no_other_rule(make_run):
    held = {f"hospital-{i}": [10, 10] for i in range(10)}
    make_run("krum", held=held, aggregator__f=0)
    make_run("krum", "noise", held=held, share=0.3, aggregator__f=3)
    assert {run.method for run in load_runs([make_run.root])} == {"krum"}
    make_run("krum", "noise", held=held, share=0.3, aggregator__f=1)
    assert {run.method for run in load_runs([make_run.root])} == {"krum (f 0)", "krum (f 1)", "krum (f 3)"}


def test_settings_that_differ_are_not_averaged(make_run):
    make_run(rounds=10)
    make_run(rounds=20)
    assert {run.setting for run in load_runs([make_run.root])} == {
        "synthetic · dirichlet α 0.1 · 4 clients · rounds 10",
        "synthetic · dirichlet α 0.1 · 4 clients · rounds 20",
    }


def test_attacks_are_told_apart_by_parameters_parts_share_and_onset(make_run):
    make_run(attack="score-lie", attack__collude=True, start=1)
    make_run(attack="score-lie", attack__collude=False, start=1)
    make_run(attack="mix", attack__parts=[{"name": "noise"}, {"name": "scaling"}], share=0.5)
    assert {run.attack for run in load_runs([make_run.root])} == {
        "score-lie (collude yes) 25 %",
        "score-lie (collude no) 25 %",
        "mix (noise + scaling) 50 % from round 5",
    }


def test_a_run_given_twice_is_loaded_once(make_run):
    folder = make_run()
    assert len(load_runs([make_run.root, folder.path])) == 1


def test_copies_that_trackers_keep_are_no_runs(make_run):
    folder = make_run()
    copy = make_run.root / "mlflow-artefacts" / "1" / "artifacts"
    copy.mkdir(parents=True)
    (copy / "config.yaml").write_text(folder.config_path.read_text())
    assert [run.folder.path for run in load_runs([make_run.root])] == [folder.path]


def test_headings_leave_out_what_all_runs_have_in_common(make_run):
    for attack, alpha in (("none", 0.1), ("alie", 0.1), ("sign-flip", 1.0)):
        make_run("krum", attack=attack, alpha=alpha)
    runs = load_runs([make_run.root])
    assert {run.attack for run in runs} == {"clean", "alie 25 % from round 5", "sign-flip 25 % from round 5"}
    assert {run.attack_label for run in runs} == {"clean", "alie", "sign-flip"}
    assert {run.setting_label for run in runs} == {"dirichlet α 0.1", "dirichlet α 1"}
    assert runs[0].common == {"synthetic", "4 clients", "25 %", "from round 5"}


def test_headings_keep_what_differs(make_run):
    make_run("krum", attack="alie", start=5)
    make_run("krum", attack="alie", start=9)
    runs = load_runs([make_run.root])
    assert {run.attack_label for run in runs} == {"alie from round 5", "alie from round 9"}
    assert {run.setting_label for run in runs} == {""}


def test_faults_have_labels_beside_attacks(make_run):
    make_run(fault="unit-error", broken=["hospital-3"], fault__factor=2, start=1)
    make_run(fault="unit-error", broken=["hospital-3"], fault__factor=3, start=1)
    make_run(fault="stuck-sensor", broken=["hospital-2", "hospital-3"])
    make_run(fault="stuck-sensor", broken=["hospital-2"], attack="alie", start=1)
    make_run()
    runs = load_runs([make_run.root])
    assert {run.attack for run in runs} == {
        "fault unit-error (factor 2) 25 %",
        "fault unit-error (factor 3) 25 %",
        "fault stuck-sensor 50 % from round 5",
        "alie 25 % with fault stuck-sensor 25 %",
        "clean",
    }
