"""Paired comparisons over seeds: scipy's t-test, interval and bootstrap."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eigenbatch.errors import ParameterError

ROUNDING = 1e-12
"""Differences of scores below it are rounding."""

ENOUGH_PAIRS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Mean of treated - baseline over seeds, with its 95 % interval and paired t-test.

    Args:
        mean: mean difference.
        low: lower end of the interval.
        high: upper end of the interval.
        p_value: of the paired t-test.
        pairs: number of seeds.

    Examples:
        >>> from eigenbatch.runs import PairedDifference
        >>> gain = PairedDifference(mean=0.03, low=0.01, high=0.05, p_value=0.02, pairs=3)
        >>> gain.significant, gain.enough
        (True, True)
    """

    mean: float
    low: float
    high: float
    p_value: float
    pairs: int

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval."""
        return (self.high - self.low) / 2

    @property
    def standard_error(self) -> float:
        """Standard error of the mean."""
        from scipy import stats

        return self.half_width / float(stats.t.ppf(0.975, self.pairs - 1))

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero, and there are enough pairs for one."""
        return self.enough and (self.low > 0 or self.high < 0)

    @property
    def enough(self) -> bool:
        """Whether there are enough pairs for an interval; two may agree by chance."""
        return self.pairs >= ENOUGH_PAIRS


def paired_difference(treated: Sequence[float], baseline: Sequence[float]) -> PairedDifference:
    """Difference of two series measured with the same seeds.

    Args:
        treated: one value per seed.
        baseline: one value per seed, in the same order.

    Returns:
        The mean difference; its interval and p-value are NaN with a single pair or when a value is
        not finite.

    Examples:
        >>> from eigenbatch.runs import paired_difference
        >>> gain = paired_difference([0.62, 0.64, 0.69], [0.60, 0.61, 0.65])
        >>> round(gain.mean, 3), round(gain.low, 3), round(gain.high, 3), gain.significant
        (0.03, 0.005, 0.055, True)
    """
    if len(treated) != len(baseline) or len(treated) == 0:
        raise ParameterError(
            f"a paired comparison needs as many values on both sides, "
            f"got {len(treated)} and {len(baseline)}"
        )
    difference = np.asarray(treated, dtype=float) - np.asarray(baseline, dtype=float)
    count, mean = len(difference), float(difference.mean())
    if count == 1 or not np.isfinite(difference).all():
        low = high = p_value = math.nan
    elif np.ptp(difference) <= ROUNDING * max(1.0, abs(mean)):  # equal: no spread for a t-test
        mean = 0.0 if abs(mean) <= ROUNDING else mean
        low = high = mean
        p_value = float(mean == 0)
    else:
        from scipy import stats

        test = stats.ttest_1samp(difference, 0.0)
        low, high = (float(end) for end in test.confidence_interval(0.95))
        p_value = float(test.pvalue)
    return PairedDifference(mean=mean, low=low, high=high, p_value=p_value, pairs=count)


def bootstrap_interval(
    statistic: Callable[..., Any], *samples: Sequence[Any], resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile interval of `statistic(*samples)` with seeds drawn in pairs.

    Args:
        statistic: from as many lists as there are samples to a number.
        *samples: one value per seed in each.
        resamples: how often seeds are drawn.
        seed: of the draws.

    Returns:
        Lower and upper end; NaN for fewer than two seeds.

    Examples:
        >>> from statistics import fmean
        >>> from eigenbatch.runs import bootstrap_interval
        >>> low, high = bootstrap_interval(fmean, [1.0, 2.0, 3.0, 4.0])
        >>> 1 <= low < 2.5 < high <= 4
        True
    """
    from scipy import stats

    indices = np.arange(len(samples[0]))
    if len(indices) < 2:
        return math.nan, math.nan

    def of(drawn: Any) -> Any:
        return statistic(*([sample[int(i)] for i in drawn] for sample in samples))

    with np.errstate(invalid="ignore"), warnings.catch_warnings():  # resamples may be infinite
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = stats.bootstrap(
            (indices,), of, n_resamples=resamples, vectorized=False, method="percentile",
            rng=np.random.default_rng(seed),
        )  # fmt: skip
    low, high = np.quantile(result.bootstrap_distribution, (0.025, 0.975), method="nearest")
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFit:
    """Least-squares line.

    Args:
        slope: of the line.
        half_width: half of the slope's 95 % interval.
        r_squared: share of the variance that the line explains.

    Examples:
        >>> from eigenbatch.runs import line_fit
        >>> fit = line_fit([0, 1, 2, 3], [0, 2, 4, 6])
        >>> round(fit.slope, 6), round(fit.r_squared, 6)
        (2.0, 1.0)
    """

    slope: float
    half_width: float
    r_squared: float


def line_fit(x: Sequence[float], y: Sequence[float]) -> LineFit:
    """Ordinary least squares of y on x.

    Args:
        x: three numbers or more.
        y: as many.

    Returns:
        Slope, its interval and R^2.

    Examples:
        >>> from eigenbatch.runs import line_fit
        >>> round(line_fit([0, 1, 2], [1, 2, 3]).slope, 6)
        1.0
    """
    if len(x) != len(y) or len(x) < 3:
        raise ParameterError(
            f"a line with an interval needs 3 points or more, got {len(x)}, {len(y)}"
        )
    from scipy import stats

    fit = stats.linregress(x, y)
    half = float(stats.t.ppf(0.975, len(x) - 2)) * float(fit.stderr)
    return LineFit(slope=float(fit.slope), half_width=half, r_squared=float(fit.rvalue) ** 2)
