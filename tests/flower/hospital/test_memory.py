"""A hospital's own memory and log."""

from wardround.flower.hospital.memory import LOG_FILE, HospitalMemory, read_log
from wardround.flower.hospital.policy import HospitalPolicy


def test_the_log_and_its_folder_are_the_hospitals_alone(open_umask, mode_of, tmp_path):
    memory = HospitalMemory(HospitalPolicy(), tmp_path / "state")
    memory.log("train", b"reply", round=1)
    assert mode_of(tmp_path / "state") == 0o700
    assert mode_of(tmp_path / "state" / LOG_FILE) == 0o600
    assert [line["bytes"] for line in read_log(tmp_path / "state")] == [5]
