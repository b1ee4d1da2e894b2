"""Oxford Pets as it is distributed, and random crops of whole pictures."""

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from eigenbatch.errors import DataError, ParameterError
from eigenbatch.train.augment import Views
from eigenbatch.train.data.crops import TwoCrops, random_box
from eigenbatch.train.data.images import in_memory
from eigenbatch.train.data.sets.folder import FolderConfig, image_folder
from eigenbatch.train.data.sets.pets import PetsConfig
from eigenbatch.train.views import ViewsConfig

BREEDS = ("Abyssinian", "great_pyrenees")


@pytest.fixture(name="pets")
def _pets(tmp_path):
    """Two breeds with three pictures each, trimaps included, in the published layout."""
    (tmp_path / "images").mkdir()
    (tmp_path / "annotations" / "trimaps").mkdir(parents=True)
    lines = []
    for label, breed in enumerate(BREEDS):
        for i in range(3):
            name = f"{breed}_{i}"
            Image.new("RGB", (40, 30), (100 * label, 40 * i, 7)).save(
                tmp_path / "images" / f"{name}.jpg"
            )
            Image.new("L", (40, 30)).save(tmp_path / "annotations" / "trimaps" / f"{name}.png")
            lines.append(f"{name} {label + 1} 1 1")
    annotations = tmp_path / "annotations"
    (annotations / "trainval.txt").write_text("\n".join(lines[:2] + lines[3:5]) + "\n")
    (annotations / "test.txt").write_text("# Image CLASS-ID\n" + "\n".join([lines[2], lines[5]]))
    return tmp_path


def test_classes_and_splits_come_from_the_lists(pets):
    config = PetsConfig(directory=pets, size=16)
    train, test = config.images("train"), config.images("test")
    assert train.classes == test.classes == BREEDS
    assert train.names == ["Abyssinian_0.jpg", "Abyssinian_1.jpg",
                           "great_pyrenees_0.jpg", "great_pyrenees_1.jpg"]  # fmt: skip
    assert train.labels.tolist() == [0, 0, 1, 1]
    image, label = test[1]
    assert (image.shape, label) == ((3, 16, 16), 1)
    assert abs(int(image[0, 8, 8]) - 100) < 5


def test_pets_read_as_a_folder_of_classes_is_an_error(pets):
    with pytest.raises(DataError, match="--data pets"):
        image_folder(pets, "train")
    with pytest.raises(DataError, match=r"holds no pictures|only one class"):
        image_folder(pets / "images", "train")


def test_a_missing_list_picture_or_class_is_named(pets):
    (pets / "images" / "Abyssinian_0.jpg").unlink()
    with pytest.raises(DataError, match=r"Abyssinian_0.jpg is missing"):
        PetsConfig(directory=pets).images("train")
    (pets / "annotations" / "test.txt").write_text("Abyssinian_1 one 1 1\n")
    with pytest.raises(DataError, match="PICTURE CLASS SPECIES BREED"):
        PetsConfig(directory=pets).images("test")
    (pets / "annotations" / "test.txt").write_text("Abyssinian_1 1 1 1\n")
    with pytest.raises(DataError, match="names 1 classes"):
        PetsConfig(directory=pets).images("test")
    (pets / "annotations" / "trainval.txt").unlink()
    with pytest.raises(DataError, match=r"trainval.txt is missing"):
        PetsConfig(directory=pets).images("train")


@pytest.fixture(name="folder")
def _folder(tmp_path):
    """Wide pictures whose left half is red: a central square never shows the left edge."""
    for split in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            picture = Image.new("RGB", (120, 40))
            picture.paste((255, 0, 0), (0, 0, 30, 40))
            picture.save(tmp_path / split / name / "1.png")
    return tmp_path


def test_crops_reach_beyond_the_central_square(folder):
    config = FolderConfig(directory=folder, size=8, whole_pictures=True)
    known = config.images("train")
    assert not known[0][0][0].any()  # the central square holds no red
    crops = config.training(known, ViewsConfig(crop=0.08))
    batches = [crops.__getitems__([0] * n) for n in range(1, 9)]
    seen = torch.stack([crop for batch in batches for crop, _ in batch])  # (36, 2, 3, 8, 8)
    assert seen.shape == (36, 2, 3, 8, 8)
    assert seen[:, :, 0].any()
    assert not torch.equal(seen[:, 0], seen[:, 1])
    assert crops.labels.tolist() == [0, 1]


def test_crops_depend_on_the_batch_and_not_on_the_reader(folder):
    known = FolderConfig(directory=folder, size=8).images("train")
    crops = TwoCrops(known, least=0.08)
    loaders = [DataLoader(crops, batch_sampler=[[0, 1], [1, 0]], num_workers=w) for w in (0, 2)]
    for (a, _), (b, _) in zip(*loaders, strict=True):
        assert torch.equal(a, b)
    torch.manual_seed(1)
    assert torch.equal(crops[1][0], TwoCrops(known, least=0.08)[1][0])


def test_boxes_have_the_shares_and_ratios_asked_for():
    generator = torch.Generator().manual_seed(0)
    boxes = [random_box(400, 300, 0.08, generator) for _ in range(2000)]
    sides = [(right - left, bottom - top) for left, top, right, bottom in boxes]
    shares = torch.tensor([w * h / (400 * 300) for w, h in sides])
    assert shares.min() > 0.075
    assert 0.40 < shares.mean() < 0.54  # uniform, without the largest that do not fit
    assert all(0.72 < w / h < 1.38 for w, h in sides)
    assert all(0 <= b[0] < b[2] <= 400 and 0 <= b[1] < b[3] <= 300 for b in boxes)
    assert random_box(10_000, 10, 1.0, generator) == (4995, 0, 5005, 10)  # nothing fits


def test_views_of_crops_are_not_cropped_again():
    torch.manual_seed(0)
    views = Views(8, strength=0.0, jitter=0.0)
    crops = torch.randint(0, 256, (5, 2, 3, 8, 8), dtype=torch.uint8)
    first, second = views(crops)
    plain = [views.undistorted(crops[:, i]) for i in range(2)]
    for view, same in zip((first, second), plain, strict=True):
        kept = [any(torch.allclose(v, o, atol=1e-5) for o in (s, s.flip(2))) for v, s in
                zip(view, same, strict=True)]  # fmt: skip
        grey = [torch.allclose(v[0], v[1], atol=1e-5) for v in view]
        assert all(a or b for a, b in zip(kept, grey, strict=True))


def test_jitter_and_crop_of_imagenet_are_stronger_than_the_defaults():
    """Grey pictures show the jitter of light alone, a ramp how much of it a crop holds."""
    grey = torch.full((400, 3, 4, 4), 100, dtype=torch.uint8)
    ramp = torch.arange(0, 256, 8, dtype=torch.uint8).expand(400, 3, 32, 32)

    def spread(views):
        torch.manual_seed(0)
        light = views(grey)[0].std()
        held = views.crop(ramp.float()).flatten(1)
        return light, (held.amax(1) - held.amin(1)).min()

    light, held = spread(ViewsConfig().build(32, 3))
    more_light, less_held = spread(ViewsConfig(jitter=1.0, crop=0.08).build(32, 3))
    assert more_light > 1.5 * light
    assert less_held < 0.8 * held


def test_pictures_in_memory_are_those_on_disk(folder):
    lazy = FolderConfig(directory=folder, size=8).images("train")
    kept = FolderConfig(directory=folder, size=8, in_memory=True).images("train")
    assert torch.equal(kept.images, torch.stack([image for image, _ in lazy]))
    assert kept.labels.tolist() == lazy.labels.tolist()
    assert kept.classes == lazy.classes
    assert torch.equal(in_memory(lazy, workers=1).images, kept.images)
    with pytest.raises(ParameterError, match="in_memory=false"):
        FolderConfig(directory=folder, in_memory=True, whole_pictures=True)
    assert isinstance(FolderConfig(directory=folder, whole_pictures=True).training(
        lazy, ViewsConfig()), TwoCrops)  # fmt: skip
