"""Entry point of the `eigenbatch` command: says what to install when the command line is absent."""

import sys

from eigenbatch.missing import remedy


def main() -> None:
    """Run the command line."""
    try:
        from eigenbatch.cli import app
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as missing:
        sys.exit(
            f"the eigenbatch command needs {missing.name}: {remedy(missing.name)} "
            "(the library itself works without)"
        )
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
