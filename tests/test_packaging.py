"""The wheel is whole, and an environment with few extras works or says what to install."""

import importlib.util
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from eigenbatch.missing import EXTRAS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Only packages that pip would have installed can be found, by import and by find_spec alike.
EMPTY = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
class Installed:
    @staticmethod
    def find_distributions(*context):
        for one in PathFinder.find_distributions(*context):
            if one.name.lower().replace("_", "-").replace(".", "-") in DISTRIBUTIONS:
                yield one

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Installed]
"""


def needed(requirement: str, found: set[tuple[str, str]]) -> None:
    """Add what pip would install for the requirement, as (distribution, extra), to `found`."""
    wanted = Requirement(requirement)
    name = canonicalize_name(wanted.name)
    for extra in ("", *wanted.extras):
        if (name, extra) in found:
            continue
        found.add((name, extra))
        if name == "eigenbatch":
            lines = (PROJECT["optional-dependencies"] if extra else PROJECT)[
                extra or "dependencies"
            ]
        else:
            lines = _required(name)
        for line in lines:
            marker = Requirement(line).marker
            if marker is None or marker.evaluate({"extra": extra}):
                needed(line, found)


def _required(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:  # for another platform, or optional after all
        return []


def python(code: str, *extras: str, hide: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run code as if `pip install eigenbatch[extras]` were all that is here, less `hide`."""
    found: set[tuple[str, str]] = set()
    needed(f"eigenbatch[{','.join(extras)}]" if extras else "eigenbatch", found)
    names = {name for name, _ in found}
    hidden = [
        module
        for module, owners in packages_distributions().items()
        if module in hide or not names & {canonicalize_name(owner) for owner in owners}
    ]
    environment = f"HIDDEN = frozenset({hidden})\nDISTRIBUTIONS = frozenset({sorted(names)})\n"
    return subprocess.run(
        [sys.executable, "-c", f"{environment}{EMPTY}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )


def command(
    arguments: list[str], *extras: str, hide: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    code = f"sys.argv = {['eigenbatch', *arguments]!r}\n"
    return python(code + "from eigenbatch.__main__ import main; main()", *extras, hide=hide)


def test_the_library_works_with_torch_and_numpy_alone() -> None:
    done = python(
        "import torch, eigenbatch as e\n"
        "for name in e.__all__: getattr(e, name)\n"
        "z1, z2 = torch.eye(8), torch.eye(8).roll(1, 0)\n"
        "band = e.gradient_band(e.Contrast.paired(z1, z2), 0.1).mean\n"
        "assert band.lower <= band.measured <= band.upper\n"
        "assert e.SpectralMonitor(0.1, strict=True)(z1, z2).scalars()\n"
        "cache = e.EmbeddingCache(64, dim=8)\n"
        "cache.update(torch.arange(64), torch.randn(64, 8))\n"
        "assert len(list(e.SpectralBatchSampler(cache, 16, e.Greedy()))) == 4\n"
        "import eigenbatch.integrations.sinks\n"
        "assert 'scipy' not in sys.modules and 'sklearn' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_the_command_without_its_packages_says_what_to_install(package: str) -> None:
    done = command(["--help"], "cli", hide=(package,))
    assert done.returncode == 1
    assert f"needs {package}: pip install 'eigenbatch[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "hide", "extra"),
    [
        (["report", "runs"], ("jinja2",), "report"),
        (["report", "runs"], ("plotly",), "report"),
        (["report", "runs"], ("plotly", "jinja2", "scipy", "sklearn"), "report"),
        (["train", "--out", "runs"], (), "train"),
        (["train", "--out", "runs"], ("kornia",), "train"),
        (["demo", "--out", "runs"], ("matplotlib",), "train"),
        (["demo", "--out", "runs"], ("PIL",), "train"),
        (["diagnose", "rows.safetensors"], ("safetensors",), "cli"),
    ],
)
def test_a_command_without_its_extra_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments, hide, extra
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.safetensors").touch()
    present = ("cli", "train", "report") if hide else ("cli",)
    done = command(arguments, *present, hide=hide)
    assert done.returncode == 2, done.stderr
    assert f"pip install 'eigenbatch[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("extra", "code"),
    [("report", "import eigenbatch.report"), ("train", "from eigenbatch.train import train")],
)
def test_a_package_without_its_extra_names_it(extra: str, code: str) -> None:
    done = python(code)
    assert done.returncode == 1
    assert f"pip install 'eigenbatch[{extra}]'" in done.stderr


@pytest.mark.parametrize("package", ["lightning", "transformers", "torchmetrics"])
def test_an_adapter_without_its_package_names_the_extra(package: str) -> None:
    done = python(f"import eigenbatch.integrations.{package}")
    assert done.returncode == 1
    assert f"needs {package}: pip install 'eigenbatch[integrations]'" in done.stderr


@pytest.mark.parametrize(
    ("extras", "code"),
    [
        (("cli",), "import eigenbatch.cli, eigenbatch.diagnose"),
        (("report",), "import eigenbatch.report.build, eigenbatch.report.serve"),
        (("train",), "import eigenbatch.train.trainer, eigenbatch.train.comparing"),
        (("cli", "train"), "import eigenbatch.cli, eigenbatch.train.comparing"),
        (("integrations",), "import eigenbatch.integrations.lightning"),
        (("integrations",), "import eigenbatch.integrations.transformers"),
        (("integrations",), "import eigenbatch.integrations.torchmetrics"),
    ],
)
def test_an_extra_is_enough_for_what_it_promises(extras: tuple[str, ...], code: str) -> None:
    done = python(code, *extras)
    assert done.returncode == 0, done.stderr


def test_every_extra_that_a_message_names_brings_the_package() -> None:
    owners = packages_distributions()
    for module, extra in EXTRAS.items():
        brought = {
            canonicalize_name(Requirement(line).name)
            for line in PROJECT["optional-dependencies"][extra]
        }
        assert brought & {canonicalize_name(owner) for owner in owners[module]}, module


def test_help_and_version_load_no_torch() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from eigenbatch.cli import app\n"
        "for words in (['--help'], ['--version'], ['train', '--help'], ['report', '--help']):\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0\n"
        "heavy = {'torch', 'numpy', 'scipy', 'plotly', 'lightning'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None,
    reason="hatchling is not installed: pip install -e '.[dev]' brings it",
)
def test_the_wheel_holds_the_package_with_page_and_types(tmp_path: Path) -> None:
    built = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    done = subprocess.run(
        [*built, "-w", str(tmp_path), str(ROOT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("eigenbatch-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for package in ("eigenbatch", "eigenbatch_paper")
        for path in (source / package).rglob("*")
        if path.is_file() and path.suffix in (".py", ".pyi", ".typed", ".html", ".css", ".js")
    }
    assert expected <= held
    assert {"eigenbatch/py.typed", "eigenbatch/report/page/page.html"} <= held
    assert all(
        name.startswith(("eigenbatch/", "eigenbatch_paper/", "eigenbatch-")) for name in held
    )
