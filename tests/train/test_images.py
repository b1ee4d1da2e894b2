import hashlib
import os
import pickle
import re
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from eigenbatch.errors import DataError, ParameterError
from eigenbatch.train.data.images import balanced, long_tailed
from eigenbatch.train.data.pictures import Pictures
from eigenbatch.train.data.sets import cifar
from eigenbatch.train.data.sets.digits import DigitsConfig
from eigenbatch.train.data.sets.folder import FolderConfig, image_folder
from eigenbatch.train.views import ViewsConfig

digits = DigitsConfig().load


def cifar10(directory, split):
    return cifar.CIFAR10Config(directory=directory).load(split)


def test_digits_are_split_without_overlap_and_keep_their_pixels():
    train, test = digits("train"), digits("test")
    assert (len(train), len(test)) == (1437, 360)
    image, label = train[0]
    assert image.shape == (1, 8, 8)
    assert image.dtype == torch.uint8
    assert image.max() == 255 * 15 // 16
    assert label == 0
    assert len(train.labels.unique()) == len(test.labels.unique()) == 10


@pytest.fixture(name="fake_cifar")
def _fake_cifar(tmp_path, monkeypatch):
    """Batch files in CIFAR's format, with their md5 in the place of the published ones."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    sums = {}
    for i, name in enumerate(cifar._CIFAR10):
        if name == "batches.meta":
            content = {"label_names": [f"class{c}" for c in range(10)]}
        else:
            content = {"data": [[i] * 3072, [i + 100] * 3072], "labels": [i, 9]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    monkeypatch.setattr(cifar, "_CIFAR10", sums)
    return tmp_path


def test_cifar_batches_are_joined_in_order(fake_cifar):
    train = cifar10(fake_cifar, "train")
    assert train.images.shape == (10, 3, 32, 32)
    assert train.images[:, 0, 0, 0].tolist() == [0, 100, 1, 101, 2, 102, 3, 103, 4, 104]
    assert train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert train.classes[3] == "class3"
    assert len(cifar10(fake_cifar / "cifar-10-batches-py", "test")) == 2


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def test_a_file_that_is_not_the_published_one_is_never_unpickled(fake_cifar):
    (fake_cifar / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match="unknown pickles are never opened"):
        cifar10(fake_cifar, "test")


def test_missing_cifar_says_where_to_get_it_and_which_flag_points_to_it(tmp_path):
    with pytest.raises(DataError, match=r"cs\.toronto\.edu.*--data-dir"):
        cifar.CIFAR100Config(directory=tmp_path).load("train")


@pytest.mark.skipif("EIGENBATCH_CIFAR10" not in os.environ, reason="EIGENBATCH_CIFAR10 is not set")
def test_the_published_cifar10_is_read():
    train = cifar10(Path(os.environ["EIGENBATCH_CIFAR10"]), "train")
    assert train.images.shape == (50_000, 3, 32, 32)
    assert torch.bincount(train.labels).tolist() == [5000] * 10
    assert train.classes[0] == "airplane"


def write_pictures(root):
    """Two classes, two splits; sizes, modes and formats differ."""
    for i, name in enumerate(["train/cat/a.png", "train/cat/b.JPEG", "train/dog/c.png",
                              "val/cat/d.png", "val/dog/e.png"]):  # fmt: skip
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        mode, size = ("L", (40, 30)) if i == 1 else ("RGB", (20 + i, 50))
        Image.new(mode, size, 50 * i if mode == "L" else (50 * i, 0, 0)).save(path)
    (root / "train" / "cat" / "notes.txt").write_text("not a picture")


@pytest.mark.parametrize("names", [("Train", "Val"), ("training", "valid")])
def test_splits_of_other_names_are_not_taken_for_classes(tmp_path, names):
    write_pictures(tmp_path)
    for old, new in zip(("train", "val"), names, strict=True):
        (tmp_path / old).rename(tmp_path / new)
    with pytest.raises(DataError, match=f"rename {', '.join(sorted(names))}"):
        image_folder(tmp_path, "train")


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_folder_and_a_zip_of_it_are_the_same_data(tmp_path, kind):
    write_pictures(tmp_path / "pictures")
    root = tmp_path / "pictures"
    if kind == "zip":
        root = tmp_path / "pictures.zip"
        with zipfile.ZipFile(root, "w") as archive:
            for path in (tmp_path / "pictures").rglob("*"):
                archive.write(path, Path("set") / path.relative_to(tmp_path / "pictures"))
    train, test = image_folder(root, "train", size=16), image_folder(root, "test", size=16)
    assert train.classes == test.classes == ("cat", "dog")
    assert train.labels.tolist() == [0, 0, 1]
    assert test.labels.tolist() == [0, 1]
    image, _ = train[2]
    assert image.shape == (3, 16, 16)
    assert image[0].float().mean() == 100
    assert image[1:].max() == 0
    grey, _ = train[1]
    assert (grey[0] == grey[2]).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_zip_is_read_by_several_workers(tmp_path, workers):
    write_pictures(tmp_path / "pictures")
    root = tmp_path / "pictures.zip"
    with zipfile.ZipFile(root, "w") as archive:
        for path in (tmp_path / "pictures").rglob("*.png"):
            archive.write(path, path.relative_to(tmp_path / "pictures"))
    loader = DataLoader(image_folder(root, "train", size=8), batch_size=1, num_workers=workers)
    assert [int(label) for _, label in loader] == [0, 1]


def test_without_split_folders_every_fifth_picture_of_a_class_is_kept_for_tests(tmp_path):
    for name, count in (("cat", 12), ("dog", 5)):
        (tmp_path / name).mkdir()
        for i in range(count):
            Image.new("L", (8, 8)).save(tmp_path / name / f"{i:02}.png")
    train, test = (image_folder(tmp_path, split, size=8) for split in ("train", "test"))
    assert test.names == ["cat/04.png", "cat/09.png", "dog/04.png"]
    assert test.labels.tolist() == [0, 0, 1]
    assert len(train) == 14
    assert not set(train.names) & set(test.names)


@pytest.mark.parametrize(
    ("pictures", "classes"),
    [
        (["train/n01/images/0.png", "train/n02/images/1.png"], ("n01", "n02")),
        (["all/cat/0.png", "all/cat/more/1.png", "all/dog/2.png"], ("cat", "dog")),
        (["animals/big/0.png", "plants/big/1.png"], ("animals", "plants")),
    ],
)
def test_a_class_is_the_first_folder_in_which_pictures_differ(tmp_path, pictures, classes):
    for name in pictures:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    assert image_folder(tmp_path, "train", size=8).classes == classes


def test_pictures_of_sixteen_bits_keep_their_shades(tmp_path):
    shades = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    Image.fromarray(shades).save(tmp_path / "deep.png")
    assert (Pictures(tmp_path, size=8).pixels(0)[0].numpy() == shades >> 8).all()


def test_pictures_of_floating_point_numbers_are_refused(tmp_path):
    Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)).save(tmp_path / "a.tiff")
    with pytest.raises(DataError, match=r"a\.tiff in .*: a picture of floating-point numbers"):
        Pictures(tmp_path, size=8).pixels(0)


@pytest.mark.parametrize("ending", ["gif", "tif", "TIFF", "pgm"])
def test_further_formats_are_pictures(tmp_path, ending):
    write_pictures(tmp_path)
    Image.new("L", (20, 50), 200).save(tmp_path / "train" / "cat" / f"z.{ending}")
    image, label = image_folder(tmp_path, "train", size=16)[2]
    assert label == 0
    assert (image == 200).all()


def test_crops_of_whole_pictures_have_the_size_of_the_images(tmp_path):
    folder = FolderConfig(directory=tmp_path, size=16, whole_pictures=True)
    with pytest.raises(ParameterError, match=r"data\.size=16, got views\.size=32"):
        folder.training(None, ViewsConfig(size=32))


def test_labels_of_tests_are_those_of_training(tmp_path):
    write_pictures(tmp_path)
    (tmp_path / "val" / "cat" / "d.png").unlink()
    test = image_folder(tmp_path, "test", size=8)
    assert test.classes == ("cat", "dog")
    assert test.labels.tolist() == [1]
    (tmp_path / "val" / "dog").rename(tmp_path / "val" / "wolf")
    with pytest.raises(DataError, match="'wolf' has test pictures, but none to train on"):
        image_folder(tmp_path, "test", size=8)


def test_a_damaged_picture_is_named_and_hidden_files_are_no_pictures(tmp_path):
    write_pictures(tmp_path)
    (tmp_path / "train" / "cat" / "._a.png").write_bytes(b"a Mac's notes")
    (tmp_path / "__MACOSX" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "__MACOSX" / "train" / "cat" / "a.png").write_bytes(b"more of them")
    (tmp_path / "train" / "dog" / "c.png").write_bytes(b"\x89PNG")
    data = image_folder(tmp_path, "train", size=8)
    assert data.names == ["train/cat/a.png", "train/cat/b.JPEG", "train/dog/c.png"]
    with pytest.raises(DataError, match=r"train/dog/c\.png .* cannot be read as a picture"):
        data[2]


def test_linked_class_folders_and_linked_pictures_are_followed(tmp_path):
    write_pictures(tmp_path / "store")
    for split in ("train", "val"):
        (tmp_path / "set" / split / "dog").mkdir(parents=True)
        (tmp_path / "set" / split / "cat").symlink_to(tmp_path / "store" / split / "cat")
        for picture in (tmp_path / "store" / split / "dog").iterdir():
            (tmp_path / "set" / split / "dog" / picture.name).symlink_to(picture)
    for split in ("train", "test"):
        linked, stored = (image_folder(tmp_path / k, split, size=8) for k in ("set", "store"))
        assert linked.names == stored.names
        assert torch.equal(linked[0][0], stored[0][0])


@pytest.mark.parametrize("links", [["train/up"], ["train/up", "val/cat/up"], ["up"]])
def test_a_link_to_a_folder_that_contains_it_is_an_error(tmp_path, links):
    write_pictures(tmp_path)
    for link in links:
        (tmp_path / link).symlink_to(tmp_path)
    with pytest.raises(DataError, match=r"links back to .* remove the link"):
        image_folder(tmp_path, "train", size=8)


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("train/feline", "train/cat"),  # one class under two names
        ("val/bird", "train/cat"),  # training data in the test data
        ("val/cat/leak.png", "train/cat/a.png"),
        ("train/cat/again.png", "train/cat/a.png"),
    ],
)
def test_a_picture_with_two_names_is_an_error_that_tells_both(tmp_path, link, target):
    write_pictures(tmp_path)
    (tmp_path / link).symlink_to(tmp_path / target)
    for split in ("train", "test"):
        with pytest.raises(DataError, match="would be counted twice") as caught:
            image_folder(tmp_path, split, size=8)
        assert link in str(caught.value)
        assert target in str(caught.value)


def test_folders_without_pictures_may_be_linked_from_everywhere(tmp_path):
    write_pictures(tmp_path)
    (tmp_path / "notes").mkdir()
    for folder in ("train/cat", "train/dog", "val/cat"):
        (tmp_path / folder / "notes").symlink_to(tmp_path / "notes")
    assert len(image_folder(tmp_path, "train", size=8)) == 3


@pytest.mark.parametrize("where", ["picture", "root"])
def test_a_pipe_is_an_error_and_is_never_opened(tmp_path, where):
    write_pictures(tmp_path / "set")
    pipe = tmp_path / ("pipe.zip" if where == "root" else "set/train/cat/pipe.jpg")
    os.mkfifo(pipe)
    with pytest.raises(DataError, match=r"not a regular file|neither a folder nor a zip"):
        image_folder(pipe if where == "root" else tmp_path / "set", "train", size=8)


def test_a_picture_that_became_a_pipe_is_an_error(tmp_path):
    write_pictures(tmp_path)
    data = image_folder(tmp_path, "train", size=8)
    (tmp_path / data.names[0]).unlink()
    os.mkfifo(tmp_path / data.names[0])
    with pytest.raises(DataError, match="repair or remove it"):
        data[0]


def test_a_broken_link_is_named(tmp_path):
    write_pictures(tmp_path)
    (tmp_path / "train/dog/gone.png").symlink_to(tmp_path / "absent.png")
    with pytest.raises(DataError, match=r"gone\.png is a broken link"):
        image_folder(tmp_path, "train", size=8)


def test_a_single_class_is_an_error_that_names_it(tmp_path):
    write_pictures(tmp_path)
    for split in ("train", "val"):
        for picture in (tmp_path / split / "dog").iterdir():
            picture.rename(tmp_path / split / "cat" / picture.name)
    with pytest.raises(DataError, match="only one class, 'cat'"):
        image_folder(tmp_path, "train", size=8)


def _zip(path, names, *, encrypted=False):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")  # duplicate names
        for name in names:
            archive.writestr(name, b"pixels")
    if encrypted:  # the flag in each entry of the central directory
        content = bytearray(path.read_bytes())
        for start in (m.start() for m in re.finditer(b"PK\x01\x02", content)):
            content[start + 8] |= 1
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("names", "encrypted", "message"),
    [
        (["train/cat/a.png", "train/dog/b.png", "../train/dog/c.png"], False, "not a relative"),
        (["train/cat/a.png", "/train/dog/c.png"], False, "not a relative path"),
        (["train/cat/a.png", "train\\dog\\c.png"], False, "not a relative path"),
        (["train/cat/a.png", "train/dog/b.png", "train/dog/b.png"], False, "b.png is stored twice"),
        (["train/cat/a.png", "train/dog/b.png"], True, "a.png is encrypted"),
    ],
)
def test_zip_files_with_unusable_members_are_refused(tmp_path, names, encrypted, message):
    _zip(tmp_path / "set.zip", names, encrypted=encrypted)
    with pytest.raises(DataError, match=message):
        image_folder(tmp_path / "set.zip", "train")


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_a_place_without_pictures_says_what_was_expected(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="CLASS/PICTURE"):
        image_folder(tmp_path / name, "train")


def test_a_balanced_part_has_every_class_equally_often_and_is_always_the_same():
    part = balanced(digits("train"), 200)
    assert len(part) == 200
    assert torch.bincount(part.labels).tolist() == [20] * 10
    assert torch.equal(part.index, balanced(digits("train"), 200).index)
    assert len(part.index.unique()) == 200
    assert part[3][1] == part.labels[3]


def test_long_tailed_data_repeats_images_and_thins_out_classes():
    part = long_tailed(digits("train"), 400, copies=4)
    counts = torch.bincount(part.labels)
    assert abs(len(part) - 400) <= 40  # rounding, class by class
    assert (counts[:-1] >= counts[1:]).all()
    assert counts[0] / counts[4] == pytest.approx(5, rel=0.3)
    assert torch.bincount(part.index).unique().tolist() == [0, 4]


def test_more_images_than_there_are_say_so():
    with pytest.raises(DataError, match="ask for fewer"):
        balanced(digits("train"), 5000)
