"""Image datasets: labels and units as distributed, pixels in the cache, corrupt files, augmentation."""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from raw_files import ISIC, write_brains, write_chexpert, write_ham, write_isic, write_nih

from wardround import datasets
from wardround.datasets import decoding
from wardround.datasets.augmentation import Augmentation, turn
from wardround.datasets.base import Task
from wardround.datasets.images import IMAGENET, Normalise, training_shades
from wardround.datasets.patient_groups import bands
from wardround.datasets.prepared_cache import info, prepare
from wardround.errors import DataError, MissingExtra

pytest.importorskip("PIL")


@pytest.fixture
def isic(tmp_path) -> Path:
    return write_isic(tmp_path / "isic")


@pytest.fixture
def ham(tmp_path) -> Path:
    return write_ham(tmp_path / "ham")


@pytest.fixture
def nih(tmp_path) -> Path:
    return write_nih(tmp_path / "nih")


@pytest.fixture
def chexpert(tmp_path) -> Path:
    return write_chexpert(tmp_path / "CheXpert-v1.0-small")


@pytest.fixture
def brains(tmp_path) -> Path:
    return write_brains(tmp_path / "mri")


def load(name: str, folder: Path, **params):
    source = datasets.create(name, **params)
    prepare(source, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a read-only map would warn
        return source.load(0)


def test_isic_is_melanoma_against_the_rest(isic):
    data = load("isic2019", isic, size=16)
    assert data.task is Task.BINARY
    assert data.outputs == 1
    assert data.input_shape == (3, 16, 16)
    targets = torch.cat([part.targets for part in (data.train, data.validation, data.test)])
    assert int(targets.sum()) == 6
    assert data.facts["labels"] == dict.fromkeys(ISIC, 6)
    assert set(data.train.groups) == {"HAM", "unknown"}


def test_melanoma_against_the_rest_needs_no_other_diagnosis(isic):
    """The HAM part of ISIC 2019 has no squamous cell carcinoma; only the task of eight diagnoses misses it."""
    truth = isic / "ISIC_2019_Training_GroundTruth.csv"
    edit(truth, ",1.0,0.0\n", ",0.0,0.0\n")  # SCC is the last diagnosis but for UNK
    lines = truth.read_text().splitlines()
    kept = [line for line in lines if ",1.0" in line or line.startswith("image")]
    truth.write_text("\n".join(kept) + "\n")
    data = load("isic2019", isic, size=16)
    assert data.facts["labels"]["SCC"] == 0
    assert data.class_names == ("other", "melanoma")
    with pytest.raises(DataError, match="no training sample of 'SCC'"):
        load("isic2019", isic, size=16, task="multiclass")


def test_both_tasks_of_isic_share_a_cache(isic, cache):
    load("isic2019", isic, size=16)
    data = load("isic2019", isic, size=16, task="multiclass")
    assert data.task is Task.MULTICLASS
    assert data.outputs == 8
    assert len(list(cache.iterdir())) == 1


def test_images_of_a_lesion_stay_together(ham):
    data = load("ham10000", ham, size=16)
    # The pictures were numbered in pairs: pixels tell which lesion each cached image is of.
    originals = [
        decoding.decode(ham / f"HAM10000_images_part_{1 + i % 2}" / f"ISIC_{i}.jpg", 16, 3) for i in range(70)
    ]
    lesion = {pixels.tobytes(): i // 2 for i, pixels in enumerate(originals)}
    parts = [
        {lesion[image.numpy().tobytes()] for image in part.inputs[:]}
        for part in (data.train, data.validation, data.test)
    ]
    assert len(set.union(*parts)) == 35
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]
    assert set(data.train.groups) == {"vidir", "rosendahl"}


def test_images_may_be_drawn_one_by_one_as_the_dos_paper_does(ham, cache):
    by_lesion = load("ham10000", ham, size=16)
    data = load("ham10000", ham, size=16, split="image")
    assert len(list(cache.iterdir())) == 1, "the split is drawn from the same cache"
    # 8,910 and 1,105 of 10,015 images; of these 70: 62 and 8.
    assert (len(data.train), len(data.validation), len(data.test)) == (62, 0, 8)
    assert len(by_lesion.validation)

    def pixels(split):
        return {image.numpy().tobytes() for image in split.inputs[:]}

    assert not pixels(data.train) & pixels(data.test)
    originals = [
        decoding.decode(ham / f"HAM10000_images_part_{1 + i % 2}" / f"ISIC_{i}.jpg", 16, 3).tobytes()
        for i in range(70)
    ]
    lesions = [
        {i // 2 for i, image in enumerate(originals) if image in pixels(part)}
        for part in (data.train, data.test)
    ]
    assert lesions[0] & lesions[1], "two images of a lesion may be on both sides"


@pytest.mark.parametrize("name", ["chestxray8", "chexpert"])
def test_x_rays_as_torchxrayvision_has_them(name, nih, chexpert, cache):
    folder = nih if name == "chestxray8" else chexpert
    usual = load(name, folder, size=16)
    data = load(name, folder, size=16, normalise="torchxrayvision")
    assert len(list(cache.iterdir())) == 1
    stored = data.train.inputs[:3]
    assert torch.allclose(data.prepare(stored), (2 * (stored.float() / 255) - 1) * 1024, atol=1e-3)
    assert float(data.prepare(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).min()) == -1024
    assert not torch.allclose(usual.prepare(stored), data.prepare(stored))


def test_nih_findings_are_many_and_patients_stay_together(nih):
    data = load("chestxray8", nih, size=16)
    assert data.task is Task.MULTILABEL
    assert data.input_shape == (1, 16, 16)
    labels = {name: count for name, count in data.facts["labels"].items() if count}
    assert labels == {"Cardiomegaly": 10, "Emphysema": 10, "Hernia": 10}
    assert data.facts["units"] == 10
    # Each patient has one image of each kind, so every split has as many of each.
    for part in (data.train, data.validation, data.test):
        assert part.targets[:, 7].sum() == part.targets[:, 1].sum() == len(part) / 3


def test_chexpert_counts_uncertain_as_absent(chexpert):
    data = load("chexpert", chexpert, size=16)
    assert len(data.class_names) == 13
    labels = list(data.facts["labels"].values())
    assert labels == [24, 0, 0, 0, *[12] * 9]
    assert data.facts["images"] == 24
    assert load("chexpert", chexpert, size=16, view="all").facts["images"] == 48


def test_every_image_keeps_its_patient_groups(isic, ham, nih, chexpert):
    """The tables were written so that the diagnosis says sex and age."""
    skin = load("isic2019", isic, size=16, task="multiclass")
    moles = load("ham10000", ham, size=16)
    chests, others = load("chestxray8", nih, size=16), load("chexpert", chexpert, size=16)
    for name in ("train", "validation", "test"):
        split = getattr(skin, name)
        kinds = split.targets.tolist()
        assert list(split.patient_groups["sex"]) == ["female" if kind < 4 else "unknown" for kind in kinds]
        assert list(split.patient_groups["age"]) == bands([10 * kind + 5 for kind in kinds])
        assert split.patient_groups["site"] == split.groups
        split = getattr(moles, name)
        kinds = split.targets.tolist()
        assert list(split.patient_groups["sex"]) == ["female" if kind < 3 else "male" for kind in kinds]
        assert list(split.patient_groups["age"]) == bands([20 + 10 * kind for kind in kinds])
        assert split.patient_groups["site"] == split.groups
        split = getattr(chests, name)
        found = ["well" if not row.any() else "hernia" if row[7] else "heart" for row in split.targets]
        assert list(split.patient_groups["sex"]) == ["male" if one == "well" else "female" for one in found]
        by_finding = {"well": "<40", "heart": "40-59", "hernia": "unknown"}  # nobody is 414 years old
        assert list(split.patient_groups["age"]) == [by_finding[one] for one in found]
        split = getattr(others, name)
        assert list(split.patient_groups["sex"]) == ["female" if row[-1] else "male" for row in split.targets]
        assert list(split.patient_groups["age"]) == ["60-79" if row[-1] else "<40" for row in split.targets]


def test_alzheimer_is_normalised_by_its_training_images(brains):
    data = load("alzheimer-mri", brains, size=16)
    assert data.class_names[0] == "NonDemented"
    assert data.facts["labels"] == dict.fromkeys(data.class_names, 10)
    train = data.prepare(data.train.inputs[:])
    assert float(train.mean()) == pytest.approx(0, abs=1e-4)
    assert float(train.std(unbiased=False)) == pytest.approx(1, abs=1e-3)


def test_pixels_are_the_files(isic):
    from PIL import Image

    data = load("isic2019", isic, size=16)
    with Image.open(isic / "ISIC_2019_Training_Input" / "ISIC_0000.jpg") as image:
        expected = np.asarray(image.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)).transpose(
            2, 0, 1
        )
    stored = torch.cat([part.inputs[:] for part in (data.train, data.validation, data.test)]).numpy()
    assert any(np.array_equal(expected, image) for image in stored)


def test_normalisation_on_the_fly():
    stored = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    got = Normalise(IMAGENET)(stored).view(-1).tolist()
    expected = [(0 - 0.485) / 0.229, (0.2 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    assert got == pytest.approx(expected, abs=1e-5)
    assert stored.view(-1).tolist() == [0, 51, 255]


def test_training_shades_are_exact():
    images = np.random.default_rng(0).random((5, 2, 7, 7))
    moments = np.stack([images.mean((2, 3)), (images**2).mean((2, 3))], 1)
    mean, deviation = training_shades(moments)
    assert mean == pytest.approx(images.mean((0, 2, 3)))
    assert deviation == pytest.approx(images.std((0, 2, 3)))


def test_the_cache_never_changes(isic, cache):
    data = load("isic2019", isic, size=16)
    before = next(cache.rglob("images.npy")).read_bytes()
    data.train.inputs.stored[0] = 7  # copy on write: this is memory of ours alone
    assert next(cache.rglob("images.npy")).read_bytes() == before


def test_runs_share_the_pixels_of_the_cache(isic, cache):
    """Pixels are mapped, not read: of all runs that use a cache there is one copy in memory, that of its file."""
    first, second = (load("isic2019", isic, size=16) for _ in range(2))
    [folder] = cache.glob("isic2019-*")
    pixels = np.load(folder / decoding.IMAGES, mmap_mode="r+")
    pixels[:] = 77  # through another map of the same file: whoever has a copy of its own does not see it
    pixels.flush()
    for dataset in (first, second):
        for split in (dataset.train, dataset.validation, dataset.test):
            assert (split.inputs[:] == 77).all()


def corrupt(folder: Path) -> None:
    (folder / "ISIC_2019_Training_Input" / "ISIC_0003.jpg").write_bytes(b"no picture")
    whole = (folder / "ISIC_2019_Training_Input" / "ISIC_0005.jpg").read_bytes()
    (folder / "ISIC_2019_Training_Input" / "ISIC_0005.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "ISIC_2019_Training_Input" / "ISIC_0007.jpg").unlink()


def test_corrupt_images_are_listed_and_stop(isic, left_behind):
    corrupt(isic)
    with pytest.raises(
        DataError,
        match=r"3 unreadable images.*ISIC_0003.jpg.*ISIC_0005.jpg.*ISIC_0007.jpg .no such file.*--skip-corrupt",
    ):
        prepare(datasets.create("isic2019", size=16), isic)
    assert left_behind() == []


def test_corrupt_images_can_be_left_out(isic):
    corrupt(isic)
    source = datasets.create("isic2019", size=16)
    prepare(source, isic, skip_corrupt=True)
    data = source.load(0)
    assert len(data.train) + len(data.validation) + len(data.test) == 45
    assert len(info(source)["facts"]["unreadable"]) == 3
    assert all(image.any() for part in (data.train, data.validation, data.test) for image in part.inputs[:])
    with pytest.raises(DataError, match="3 unreadable"):  # not asked to skip: what was skipped before counts
        prepare(source, isic)


@pytest.mark.slow
def test_processes_and_one_process_write_the_same(tmp_path, picture):
    paths = [tmp_path / "in" / f"{i}.png" for i in range(5 * decoding.BLOCK)]
    for i, path in enumerate(paths):
        picture(path, i)
    paths[70].write_bytes(b"no picture")
    written = []
    for workers in (1, 2):
        folder = tmp_path / f"out{workers}"
        folder.mkdir()
        unreadable: dict[int, str] = {}
        counts = []
        for done, found in decoding.decode_all(paths, decoding.Job(folder, 12, 3), workers):
            unreadable |= found
            counts.append(done)
        assert counts[-1] == len(paths)
        assert list(unreadable) == [70]
        assert sorted(path.name for path in folder.iterdir()) == ["images.npy", "moments.npy"]
        written.append(((folder / "images.npy").read_bytes(), (folder / "moments.npy").read_bytes()))
    assert written[0] == written[1]


def test_decoding_goes_on_where_it_was(tmp_path, picture, monkeypatch):
    paths = [tmp_path / "in" / f"{i}.png" for i in range(10)]
    for i, path in enumerate(paths):
        picture(path, i)
    monkeypatch.setattr(decoding, "BLOCK", 4)
    job = decoding.Job(tmp_path, 12, 3)
    stopped = decoding.decode_all(paths, job, 1)
    assert next(stopped)[0] == 4
    stopped.close()
    for path in paths[:4]:
        path.unlink()  # what is done is not read again
    assert [done for done, found in decoding.decode_all(paths, job, 1) if not found] == [4, 8, 10]
    assert np.load(tmp_path / "images.npy").reshape(10, -1).any(1).all()


def test_an_interruption_keeps_decoded_blocks_and_no_empty_file(isic, left_behind, monkeypatch):
    """Stopped before anything was decoded nothing stays; stopped later, the same command resumes."""
    monkeypatch.setattr(decoding, "BLOCK", 8)
    decode, decoded = decoding.decode, []

    def stop_at(limit: int):
        def counting(path, size, channels):
            if len(decoded) >= limit:
                raise KeyboardInterrupt
            decoded.append(path)
            return decode(path, size, channels)

        return counting

    source = datasets.create("isic2019", size=16)
    for limit, stays in ((0, False), (20, True)):
        monkeypatch.setattr(decoding, "decode", stop_at(limit))
        with pytest.raises(KeyboardInterrupt):
            prepare(source, isic)
        assert any(path.endswith("images.npy") for path in left_behind()) is stays
    decoded.clear()
    monkeypatch.setattr(decoding, "decode", stop_at(10_000))
    prepare(source, isic)
    assert len(decoded) == 48 - 16  # two blocks of eight were finished
    data = source.load(0)
    assert all(image.any() for part in (data.train, data.validation, data.test) for image in part.inputs[:])


def test_without_pillow_no_image_is_blamed(isic, left_behind, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtra, match=r"pip install 'wardround\[imaging\]'"):
        prepare(datasets.create("isic2019", size=16), isic)
    assert left_behind() == []


def test_sixteen_bits_keep_their_upper_eight(tmp_path):
    from PIL import Image

    Image.fromarray(np.full((8, 8), 40_000, dtype=np.uint16)).save(tmp_path / "deep.png")
    assert (decoding.decode(tmp_path / "deep.png", 8, 1) == 40_000 // 256).all()


@pytest.mark.parametrize(
    ("name", "fixture", "spoil", "says"),
    [
        (
            "isic2019",
            "isic",
            lambda f: (f / "ISIC_2019_Training_GroundTruth.csv").unlink(),
            "GroundTruth.csv does not exist; get it from",
        ),
        (
            "isic2019",
            "isic",
            lambda f: edit(f / "ISIC_2019_Training_GroundTruth.csv", "MEL", "MELA"),
            "no column 'MEL'",
        ),
        (
            "isic2019",
            "isic",
            lambda f: edit(f / "ISIC_2019_Training_GroundTruth.csv", "1.0", "0.0"),
            "not exactly one of the diagnoses",
        ),
        (
            "isic2019",
            "isic",
            lambda f: (f / "ISIC_2019_Training_Input").rename(f / "elsewhere"),
            "none of the images",
        ),
        (
            "ham10000",
            "ham",
            lambda f: edit(f / "HAM10000_metadata.csv", "vasc", "nv"),
            "no image of class 'vasc'",
        ),
        (
            "ham10000",
            "ham",
            lambda f: edit(f / "HAM10000_metadata.csv", "vasc", "wart"),
            "unknown diagnosis 'wart'",
        ),
        (
            "chestxray8",
            "nih",
            lambda f: edit(f / "Data_Entry_2017.csv", "Hernia", "Hiccups"),
            "unknown finding 'Hiccups'",
        ),
        (
            "chestxray8",
            "nih",
            lambda f: edit(f / "Data_Entry_2017.csv", "Patient ID", "Who"),
            "no column 'Patient ID'",
        ),
        (
            "chexpert",
            "chexpert",
            lambda f: edit(f / "train.csv", "-1.0", "maybe"),
            "holds 'maybe'; expected 1, 0, -1 or nothing",
        ),
        ("chexpert", "chexpert", lambda f: edit(f / "valid.csv", "patient", "person"), "no patient number"),
        (
            "alzheimer-mri",
            "brains",
            lambda f: [p.unlink() for p in f.rglob("MildDemented/*")],
            "no image in a folder MildDemented",
        ),
        ("alzheimer-mri", "isic", lambda f: None, "no image in a folder NonDemented or"),
    ],
)
def test_bad_input(name, fixture, spoil, says, request, left_behind):
    folder = request.getfixturevalue(fixture)
    spoil(folder)
    with pytest.raises(DataError, match=says):
        prepare(datasets.create(name, size=16), folder)
    assert left_behind() == []


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


class TestAugmentation:
    def test_the_generator_alone_decides(self):
        images = torch.randn(6, 3, 16, 16)
        change = Augmentation(degrees=15, flips=(0, 1), noise=0.02, deviation=IMAGENET[1])
        first = change(images, torch.Generator().manual_seed(1))
        torch.manual_seed(99)
        np.random.seed(99)  # the global state must not matter
        assert torch.equal(first, change(images, torch.Generator().manual_seed(1)))
        assert not torch.equal(first, change(images, torch.Generator().manual_seed(2)))
        assert type(first) is torch.Tensor

    def test_images_of_a_batch_are_changed_each_in_its_way(self):
        images = torch.randn(1, 1, 16, 16).repeat(8, 1, 1, 1)
        changed = Augmentation(degrees=15)(images, torch.Generator().manual_seed(0))
        assert len({image.numpy().tobytes() for image in changed}) == 8

    def test_flips_mirror_half_of_the_images(self):
        images = torch.randn(200, 1, 4, 6)
        changed = Augmentation(flips=(1,))(images, torch.Generator().manual_seed(0))
        same = [torch.equal(a, b) for a, b in zip(images, changed, strict=True)]
        mirrored = [torch.equal(a.flip(-1), b) for a, b in zip(images, changed, strict=True)]
        assert all(a != b for a, b in zip(same, mirrored, strict=True))
        assert 70 < sum(mirrored) < 130

    def test_noise_has_the_deviation_that_shades_have(self):
        images = torch.zeros(50, 1, 32, 32)
        changed = Augmentation(noise=0.02, deviation=(0.25,))(images, torch.Generator().manual_seed(0))
        assert float(changed.std()) == pytest.approx(0.02 / 0.25, rel=0.02)

    def test_rotation_stays_within_its_angle(self):
        """A bright spot off the centre moves on a circle, by 15 degrees at most."""
        images = torch.zeros(100, 1, 65, 65)
        images[:, :, 31:34, 54:57] = 1
        changed = Augmentation(degrees=15)(images, torch.Generator().manual_seed(0))
        rows, columns = torch.meshgrid(torch.arange(65.0), torch.arange(65.0), indexing="ij")
        mass = changed[:, 0].clamp(min=0)
        y = (mass * rows).sum((1, 2)) / mass.sum((1, 2)) - 32
        x = (mass * columns).sum((1, 2)) / mass.sum((1, 2)) - 32
        angles = torch.rad2deg(torch.atan2(y, x))
        assert float(angles.abs().max()) < 16
        assert float(angles.max()) > 10
        assert float(angles.min()) < -10

    @pytest.mark.slow
    @pytest.mark.parametrize("shape", [(33, 33), (24, 41)])
    @pytest.mark.parametrize("degrees", [-15, 4, 90])
    def test_a_turn_is_monais(self, shape, degrees):
        """An independent implementation of the same turn, pixel by pixel."""
        monai = pytest.importorskip("monai.transforms")
        images = torch.randn(2, 3, *shape)
        angle = math.radians(degrees)
        turned = turn(images, torch.full((2,), angle), torch.zeros(2, 2, dtype=torch.bool))
        reference = monai.Rotate(angle=-angle, keep_size=True, padding_mode="border")
        for image, ours in zip(images, turned, strict=True):
            assert torch.allclose(ours, reference(image).as_tensor(), atol=1e-4)

    @pytest.mark.parametrize("both", [(False, False), (True, False), (False, True), (True, True)])
    def test_an_image_is_mirrored_and_then_turned(self, both):
        images = torch.randn(70, 2, 9, 12)
        axes = [axis for axis, mirrored in zip((-2, -1), both, strict=True) if mirrored]
        angles = torch.linspace(-1, 1, 70)
        never = torch.zeros(70, 2, dtype=torch.bool)
        expected = turn(images.flip(axes), angles, never)
        assert torch.allclose(turn(images, angles, never | torch.tensor(both)), expected, atol=1e-4)
        assert torch.allclose(turn(images, 0 * angles, never), images, atol=1e-5)

    def test_a_batch_of_one_is_changed_like_the_first_of_many(self):
        """A piece of the batch is resampled like any other: 130 images are more than two pieces."""
        images = torch.randn(130, 1, 8, 8)
        angles, never = torch.linspace(-0.3, 0.3, 130), torch.zeros(130, 2, dtype=torch.bool)
        alone = torch.cat([turn(images[i : i + 1], angles[i : i + 1], never[i : i + 1]) for i in range(130)])
        assert torch.allclose(turn(images, angles, never), alone, atol=1e-4)

    def test_only_training_is_changed(self, brains):
        data = load("alzheimer-mri", brains, size=16)
        assert data.augment is not None
        assert torch.equal(data.prepare(data.test.inputs[:4]), data.prepare(data.test.inputs[:4]))
        assert load("alzheimer-mri", brains, size=16, augment=False).augment is None


@pytest.mark.parametrize(
    ("name", "folder", "images"),
    [
        ("isic2019", "isic2019-sample", 140),
        ("ham10000", "ham10000-sample", 168),
        ("chestxray8", "chestxray8-sample", 160),
        ("alzheimer-mri", "alzheimer-mri-sample", 128),
    ],
)
def test_real_samples(real, name, folder, images):
    data = load(name, real(folder), size=32)
    assert data.facts["images"] == images == len(data.train) + len(data.validation) + len(data.test)
    assert data.facts["unreadable"] == {}
    batch = data.prepare(data.train.inputs[:16])
    assert batch.isfinite().all()
    assert 0.2 < float(batch.std()) < 3
