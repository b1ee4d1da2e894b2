"""What to install when an optional package is absent: the extra that brings it."""

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


def missing(package: str) -> ImportError:
    """The error to raise when an adapter cannot import its `package`."""
    return ImportError(
        f"this adapter needs {package}: pip install 'eigenbatch[integrations]' "
        "(the monitor itself works without)"
    )
