import os
import pickle
import resource
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from eigenbatch.files import FileFormatError, load_embeddings


@pytest.fixture(name="z")
def _z():
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["z.npy", "z.npz", "z.safetensors", "z.pt", "named.pt", "Z.NPY"])
def test_every_format_gives_back_the_matrix(tmp_path, z, name):
    path = tmp_path / name
    match name:
        case "z.npy" | "Z.NPY":
            with path.open("wb") as file:
                np.save(file, z.numpy())
        case "z.npz":
            np.savez(path, embeddings=z.numpy())
        case "z.safetensors":
            save_file({"embeddings": z}, path)
        case "z.pt":
            torch.save(z, path)
        case "named.pt":
            torch.save({"embeddings": z}, path)
    assert torch.equal(load_embeddings(path), z)


def test_integers_become_floats(tmp_path):
    np.save(tmp_path / "z.npy", np.arange(6).reshape(3, 2))
    assert load_embeddings(tmp_path / "z.npy").dtype == torch.float64


def test_numbers_of_another_machine_are_read(tmp_path, z):
    np.save(tmp_path / "z.npy", z.numpy().astype(">f4"))
    assert torch.equal(load_embeddings(tmp_path / "z.npy"), z.float())


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def test_pickled_code_is_never_run(tmp_path):
    np.save(tmp_path / "bomb.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    (tmp_path / "bomb.pt").write_bytes(pickle.dumps(Bomb(), protocol=2))
    for name in ("bomb.npy", "bomb.pt"):
        with pytest.raises(FileFormatError, match=f"{name}: damaged, or holds Python objects"):
            load_embeddings(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("absent.npy", None, "no such file"),
        ("folder.npy", lambda p: p.mkdir(), "a folder, not a file"),
        ("z.csv", lambda p: p.write_text("1,2"), "unknown ending '.csv'"),
        ("z.npy", lambda p: p.write_bytes(b""), "z.npy"),
        ("z.npy", lambda p: p.write_bytes(b"\x93NUMPY garbage"), "z.npy"),
        ("z.npz", lambda p: p.write_bytes(b"not a zip"), "z.npz"),
        ("z.safetensors", lambda p: p.write_bytes(b"short"), "z.safetensors"),
        ("z.pt", lambda p: p.write_bytes(b"garbage"), "z.pt"),
        ("z.npy", lambda p: np.save(p, np.zeros(3)), r"shape \(3,\), expected \(rows, d\)"),
        ("z.npy", lambda p: np.save(p, np.zeros((2, 2), dtype=bool)), "torch.bool"),
        ("z.npz", lambda p: np.savez(p, a=np.zeros(1), b=np.zeros(1)), r"2 arrays \(a, b\)"),
        ("z.pt", lambda p: torch.save([1, 2], p), "holds a list"),
        ("z.pt", lambda p: p.write_bytes(b"hello"), "z.pt"),
        ("z.pt", lambda p: p.write_bytes(b""), "z.pt: .+"),
        ("z.pt", lambda p: torch.save(torch.eye(3).to_sparse(), p), "dense matrix"),
        ("z.npy", lambda p: np.save(p, np.array([["a", "b"]])), "entries of type <U1, expected"),
        ("z.npy", lambda p: np.save(p, np.zeros((2, 2), dtype=np.longdouble)), "entries of type"),
        ("z.npy", lambda p: np.save(p, np.zeros((2, 2), dtype="M8[s]")), "z.npy"),
    ],
)
def test_unusable_files_raise_and_say_why(tmp_path, name, write, message):
    if write is not None:
        write(tmp_path / name)
    with pytest.raises(FileFormatError, match=message):
        load_embeddings(tmp_path / name)


def _npz_bomb(path, members):
    """Arrays of zeros that compress a thousand times: 512 MB each."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in members:
            with archive.open(f"{name}.npy", "w") as file:
                header = {"descr": "<f4", "fortran_order": False, "shape": (2**20, 128)}
                np.lib.format.write_array_header_1_0(file, header)
                for _ in range(512):
                    file.write(bytes(2**20))


@pytest.mark.slow
@pytest.mark.parametrize(("members", "message"), [("a", "would become"), ("ab", "holds 2 arrays")])
def test_a_zip_bomb_is_refused_before_it_is_decompressed(tmp_path, members, message):
    _npz_bomb(tmp_path / "z.npz", members)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kilobytes
    with pytest.raises(FileFormatError, match=message):
        load_embeddings(tmp_path / "z.npz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_collapsed_embeddings_that_compress_well_are_still_read(tmp_path):
    np.savez_compressed(tmp_path / "z.npz", np.ones((4096, 64), dtype=np.float32))
    assert load_embeddings(tmp_path / "z.npz").eq(1).all()


@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_a_header_that_promises_more_than_the_file_has_is_refused(tmp_path, ending):
    path = tmp_path / "z.npy"
    with path.open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (2**40, 2**20)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(64))
    if ending == "npz":
        with zipfile.ZipFile(tmp_path / "z.npz", "w") as archive:
            archive.write(path, "z.npy")
    with pytest.raises(FileFormatError, match="damaged or cut off"):
        load_embeddings(path.with_suffix(f".{ending}"))


def _quantised():
    return torch._make_per_tensor_quantized_tensor(torch.ones(3, 4, dtype=torch.int8), 0.1, 0)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.empty(3, 4, device="meta"), "a meta tensor"),
        (_quantised, "a quantised tensor"),
        (lambda: torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)]), "a nested"),
        (lambda: torch.eye(3).to_sparse_csr(), "dense matrix"),
        (lambda: torch.zeros(1).expand(10**9, 100), "repeats fewer stored numbers"),
    ],
)
def test_tensors_without_plain_numbers_are_refused(tmp_path, make, message):
    torch.save(make(), tmp_path / "z.pt")
    with pytest.raises(FileFormatError, match=message):
        load_embeddings(tmp_path / "z.pt")


@pytest.mark.parametrize("ending", ["npy", "npz", "safetensors", "pt"])
def test_a_pipe_is_refused_and_never_opened(tmp_path, ending):
    os.mkfifo(tmp_path / f"z.{ending}")
    with pytest.raises(FileFormatError, match="not a regular file"):
        load_embeddings(tmp_path / f"z.{ending}")


def test_a_device_is_refused(tmp_path):
    (tmp_path / "z.npy").symlink_to("/dev/zero")
    with pytest.raises(FileFormatError, match="not a regular file"):
        load_embeddings(tmp_path / "z.npy")
