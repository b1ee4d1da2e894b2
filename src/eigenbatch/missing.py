"""What to install when an optional package is absent: the extra that brings it."""

from importlib.util import find_spec

EXTRAS = {
    "jinja2": "report",
    "kornia": "train",
    "lightning": "train",
    "matplotlib": "train",
    "PIL": "train",
    "plotly": "report",
    "rich": "cli",
    "safetensors": "cli",
    "scipy": "report",
    "sentence_transformers": "integrations",
    "sklearn": "train",
    "tensorboard": "logging",
    "typer": "cli",
}


def remedy(module: str | None) -> str:
    """The command that installs what `import module` did not find; advice if no extra has it."""
    package = (module or "a package").partition(".")[0]
    if package not in EXTRAS:
        return f"{package} is not installed"
    return f"pip install 'eigenbatch[{EXTRAS[package]}]'"


def explained(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The same error with the command that installs what is missing."""
    return ModuleNotFoundError(f"{error.name} is missing: {remedy(error.name)}", name=error.name)


def require(*packages: str) -> None:
    """Raise, with the command that installs it, if a package is absent; imports none of them."""
    for package in packages:
        if not _found(package):
            raise ModuleNotFoundError(f"{package} is missing: {remedy(package)}", name=package)


def _found(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):  # hidden on purpose
        return False


def missing(package: str) -> ImportError:
    """The error to raise when an adapter cannot import its `package`."""
    return ImportError(
        f"this adapter needs {package}: pip install 'eigenbatch[integrations]' "
        "(the monitor itself works without)"
    )
