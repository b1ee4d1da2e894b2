import pickle

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
        ("z.npy", lambda p: np.save(p, np.array([["a", "b"]])), "z.npy"),
        ("z.npy", lambda p: np.save(p, np.zeros((2, 2), dtype="M8[s]")), "z.npy"),
    ],
)
def test_unusable_files_raise_and_say_why(tmp_path, name, write, message):
    if write is not None:
        write(tmp_path / name)
    with pytest.raises(FileFormatError, match=message):
        load_embeddings(tmp_path / name)
