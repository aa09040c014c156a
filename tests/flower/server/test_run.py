"""A federation's run folder, as the server keeps it."""


def test_a_federations_run_folder_is_its_owners_alone(open_umask, mode_of, town):
    folder = town(rounds=1).run()
    assert mode_of(folder.path) == 0o700
