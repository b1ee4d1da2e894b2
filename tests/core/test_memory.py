import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

MEASURE = """
import resource, torch
from eigenbatch import Contrast, gradient_band
torch.set_num_threads(1)
z1, z2 = torch.randn(2, 4096, 256)
contrast = Contrast.paired(z1, z2)
gradient_band(contrast, 0.1, method="{method}")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes only on Linux")
@pytest.mark.parametrize("method", ["certified", "theorem"])
def test_a_paired_batch_of_8192_rows_peaks_below_1500_megabytes(method):
    """The whole process, torch included; an (n, n) float32 matrix alone would add 268 MB."""
    result = subprocess.run(
        [sys.executable, "-c", MEASURE.format(method=method)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(result.stdout) < 1_500_000
