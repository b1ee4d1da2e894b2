"""Entry point of the `eigenbatch` command: says what to install when the command line is absent."""

import os
import sys

from eigenbatch.missing import remedy


def main() -> None:
    """Run the command line.

    Threads of torch that wait for each other sleep instead of spinning: on cores that are shared
    with other programs, spinning makes a command ten times slower.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
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
