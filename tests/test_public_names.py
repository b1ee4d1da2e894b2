"""What `import eigenbatch` gives, and what it does not load."""

import inspect
import subprocess
import sys

import pytest
import torch

import eigenbatch
from eigenbatch.select.selector import select


def test_every_public_name_exists_and_is_listed():
    for name in eigenbatch.__all__:
        assert getattr(eigenbatch, name) is not None
        assert name in dir(eigenbatch)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = eigenbatch.no_such_name


def test_select_is_a_function_and_a_package_at_once():
    import eigenbatch.select.greedy as greedy

    pool = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    called, imported = (
        function(pool, 10, greedy.Greedy(), generator=torch.Generator().manual_seed(1))
        for function in (eigenbatch.select, select)
    )
    assert torch.equal(called, imported)
    names = list(inspect.signature(eigenbatch.select).parameters)
    assert names == list(inspect.signature(select).parameters)


@pytest.mark.parametrize("module", ["eigenbatch", "eigenbatch.select"])
def test_importing_loads_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
