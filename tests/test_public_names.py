"""What `import eigenbatch` gives, and what it does not load."""

import subprocess
import sys

import pytest

import eigenbatch


def test_every_public_name_exists_and_is_listed():
    for name in eigenbatch.__all__:
        assert getattr(eigenbatch, name) is not None
        assert name in dir(eigenbatch)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = eigenbatch.no_such_name


def test_about_thirty_five_names_are_public():
    assert 25 <= len(eigenbatch.__all__) <= 40


def test_importing_loads_no_torch():
    code = "import sys, eigenbatch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
