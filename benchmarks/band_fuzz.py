"""Is the certified band ever wrong? A million anchors of hostile batches, against numpy.

python -m benchmarks band_fuzz
"""

from collections import Counter

import numpy as np
from tests.band_cases import DTYPES, GEOMETRIES, LAYOUTS, Case, draw, outside

ANCHORS = 1_000_000
REPORT_EVERY = 50_000


def main() -> str:
    anchors: Counter[str] = Counter()
    violations: Counter[str] = Counter()
    ranges: dict[str, list[float]] = {}
    number, next_report = 0, REPORT_EVERY
    while anchors["all"] < ANCHORS:
        case = draw(number)
        found = outside(case)  # (n,)
        for key in ("all", case.layout, case.dtype, f"{case.geometry} {case.dtype}"):
            anchors[key] += len(found)
            violations[key] += int(np.count_nonzero(found))
        _extend(ranges, case)
        if found.any():
            print(f"batch {number}: {np.count_nonzero(found)} of {len(found)} outside: {case}")
        if anchors["all"] >= next_report:
            print(f"{anchors['all']:,} anchors, {violations['all']} outside", flush=True)
            next_report += REPORT_EVERY
        number += 1
    return _section(number, anchors, violations, ranges)


def _extend(ranges: dict[str, list[float]], case: Case) -> None:
    """Note the smallest and largest value of each setting."""
    n, d = case.first.shape
    candidates = len(case.contrast.candidates)
    for name, value in {"n": n, "M": candidates, "d": d, "tau": case.tau}.items():
        low, high = ranges.get(name, [value, value])
        ranges[name] = [min(low, value), max(high, value)]


def _section(
    batches: int, anchors: Counter[str], violations: Counter[str], ranges: dict[str, list[float]]
) -> str:
    reached = ", ".join(
        f"{name} {low:,.3g} ... {high:,.6g}" for name, (low, high) in ranges.items()
    )
    layouts = ", ".join(f"{name} {anchors[name]:,}" for name in LAYOUTS)
    rows = [
        "**The certified band against an independent reference** (numpy, from the rows as given; "
        "float64 for float16, bfloat16 and float32 input, long double for float64; the band of "
        "each anchor, of the batch mean, and what the monitor reads)\n",
        f"**{violations['all']} violations** among {anchors['all']:,} anchors of {batches:,} "
        f"batches: {reached}; 0 to 4 directions; {layouts}. n counts rows of one view, M candidate "
        "negatives. Anchors by geometry and dtype, violations in brackets:\n",
        "| geometry | " + " | ".join(DTYPES) + " |",
        "| --- |" + " --- |" * len(DTYPES),
    ]
    for geometry in GEOMETRIES:
        keys = [f"{geometry} {dtype}" for dtype in DTYPES]
        cells = " | ".join(f"{anchors[key]:,} ({violations[key]})" for key in keys)
        rows.append(f"| {geometry.replace('_', ' ')} | {cells} |")
    totals = " | ".join(f"{anchors[dtype]:,} ({violations[dtype]})" for dtype in DTYPES)
    return "\n".join([*rows, f"| all | {totals} |"])


if __name__ == "__main__":
    print(main())
