"""What to install when an adapter's package is absent."""


def missing(package: str) -> ImportError:
    """The error to raise when `package` cannot be imported."""
    return ImportError(
        f"this adapter needs {package}: pip install 'eigenbatch[integrations]' "
        "(the monitor itself works without)"
    )
