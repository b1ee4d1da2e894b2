"""The fewest departures that explain every value of a loss.

A form and at most two departures, one of them perhaps with a fitted number, must give the loss of
every probe on every process. Value alone never proves a factor or an offset: `check_gradient`
follows.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from torch import Tensor

from eigenbatch.monitor.check_departures import Departure, departures
from eigenbatch.monitor.check_forms import (
    Form,
    Probe,
    Terms,
    mean,
)

LEAST_LOSS = 1e-3
"""Tolerances are relative down to this loss; every form gives nearly 0 where logits are huge."""

SIDES = ("z1", "z2", "queue")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """One probe: the loss and its gradient with respect to the rows, of every process."""

    probe: Probe
    values: tuple[float, ...]  # (W,)
    gradients: tuple[tuple[Tensor, Tensor], ...]  # W times (n, d), (n, d)


@dataclass(frozen=True, slots=True)
class Match:
    """A form and the departures that explain every value."""

    form: Form
    changes: tuple[Departure, ...] = ()

    def terms(self, probe: Probe, process: int, tau: float) -> Terms:
        """The form's terms, changed."""
        terms = self.form.terms(probe, process, tau)
        for one in self.changes:
            terms = one.change(terms)
        return terms


@dataclass(slots=True)
class Search:
    """Looks for the form and departures whose values are the measured ones."""

    tau: float
    measured: Sequence[Measured]
    tolerance: float
    _terms: dict[tuple[object, ...], Terms] = field(default_factory=dict)
    _cosines: dict[tuple[object, int], Tensor] = field(default_factory=dict)

    @property
    def points(self) -> Iterator[tuple[int, int]]:
        """Every probe on every process, the last process first: rank 0 hides wrong offsets."""
        world = self.measured[0].probe.world
        return ((k, r) for k in range(len(self.measured)) for r in reversed(range(world)))

    def value(self, match: Match, k: int, process: int) -> float:
        """The loss that `match` gives for probe k."""
        probe = self.measured[k].probe
        terms = self._changed(match.form, match.changes, k, process)
        place = (terms.rows, k)
        if place not in self._cosines:
            rows = terms.rows(probe.rows, probe)
            self._cosines[place] = rows @ rows.T
        cosines = self._cosines[place]
        return float(terms.value(cosines, cosines))

    def _changed(self, form: Form, changes: tuple[Departure, ...], k: int, process: int) -> Terms:
        """The terms on probe k; those of at most one departure are kept, pairs build on them."""
        key = (form, changes, k, process)
        if key in self._terms:
            return self._terms[key]
        if not changes:
            terms = form.terms(self.measured[k].probe, process, self.tau)
        else:
            terms = changes[-1].change(self._changed(form, changes[:-1], k, process))
        if len(changes) < 2:
            self._terms[key] = terms
        return terms

    def close(self, value: float, k: int, process: int) -> bool:
        """Whether a value is the measured one, up to rounding."""
        told = self.measured[k].values[process]
        return abs(value - told) <= self.tolerance * max(LEAST_LOSS, abs(told))

    def explains(self, match: Match) -> bool:
        """Whether `match` gives every measured value."""
        return all(self.close(self.value(match, k, r), k, r) for k, r in self.points)

    def best(self, known: Sequence[Form], dim: int) -> list[Match]:
        """The matches with the fewest departures; more than one if they cannot be told apart."""
        world = self.measured[0].probe.world
        if exact := self.exact(known):
            return exact
        options = {form: departures(form, self.tau, dim, world) for form in known}
        for form in known:
            matches = [Match(form, (one,)) for one in options[form]]
            if form.pairwise:  # the bias must be found with every departure
                knobs = ("scale", "factor", "reduction")
                fits = (self._fitted(m, BIAS) for m in matches if m.changes[0].part in knobs)
                singles = list(islice(filter(None, fits), 1))
            else:
                singles = [one for one in matches if self.explains(one)]
            if singles:
                return singles
        for form in [one for one in known if not one.pairwise]:
            for change in (*FITTED, *([SELF_LOGIT] if form.negatives == "all" else [])):
                if found := self._fitted(Match(form), change):
                    return [found]
        common = [one for one in known if one.negatives != "all" or len(one.sides) == 2]
        for form in [one for one in common if not one.pairwise]:
            if pairs := list(islice(self._pairs(form, options[form]), 2)):
                return pairs
        return []

    def exact(self, known: Sequence[Form]) -> list[Match]:
        """The first form that has the values without a departure; of a sigmoid loss the bias."""
        for form in known:
            found = self._fitted(Match(form), BIAS) if form.pairwise else Match(form)
            if found and (form.pairwise or self.explains(found)):
                return [found]
        return []

    def _pairs(self, form: Form, options: list[Departure]) -> Iterator[Match]:
        whole = [one for one in options if "(anchors of" not in one.text]
        factors = [one for one in whole if one.factor is not None]
        whole = [one for one in whole if one.factor is None]
        k, process = next(self.points)
        for i, one in enumerate(whole):
            single = Match(form, (one,))
            if found := self._fitted(single, FACTOR):
                yield found
            value = self.value(single, k, process)
            others = [
                other
                for other in factors
                if other.factor
                and self.close(value * other.factor(self.measured[k].probe), k, process)
            ]
            for other in (*others, *whole[i + 1 :]):
                alike = one.part == other.part != "candidates"
                if not alike and self.explains(Match(form, (one, other))):
                    yield Match(form, (one, other))

    def _fitted(self, match: Match, change: "Fitted") -> Match | None:
        """`match` with one number fitted at one point, if it explains all others.

        Where the loss has its minimum in that number, two roots are too close to be told apart:
        another point has it elsewhere.
        """
        for k, r in list(self.points)[:: max(1, len(self.measured) - 1)]:
            told = self.measured[k].values[r]

            def error(x: float, k: int = k, r: int = r, told: float = told) -> float:
                one = change.at(x)
                return self.value(Match(match.form, (*match.changes, one)), k, r) - told

            for x in change.solve(error):
                found = Match(match.form, (*match.changes, change.at(x)))
                if self.explains(found):
                    return found
            if match.changes:
                break
        return None


@dataclass(frozen=True, slots=True)
class Fitted:
    """A departure with a number in it: its text has a place for the number."""

    text: str
    change: Callable[[Terms, float], Terms]
    grid: Sequence[float]
    part: str = "fitted"
    mistake: bool = True
    neutral: float = 0.0  # the number that changes nothing
    signed: bool = False  # below 0 it is a mistake
    least: float = 1e-4  # nearer to it is rounding

    def at(self, x: float) -> Departure:
        """The departure with this number."""
        wrong = self.signed and x < 0
        return Departure(
            part=self.part, text=wrong * "wrong sign: " + self.text.format(x, 1 / x if x else 0),
            change=partial(self._changed, x=x), mistake=self.mistake or wrong,
        )  # fmt: skip

    def _changed(self, terms: Terms, x: float) -> Terms:
        return self.change(terms, x)

    def solve(self, error: Callable[[float], float]) -> Iterator[float]:
        """Roots of `error` that are no rounding of the neutral number."""
        return (x for x in self._roots(error) if abs(x - self.neutral) > self.least)

    def _roots(self, error: Callable[[float], float]) -> Iterator[float]:
        """By a line through two points where it is one, else by bisection on the grid."""
        errors = [error(x) for x in self.grid]
        if len(self.grid) == 2:
            (a, b), (at_a, at_b) = self.grid, errors
            if at_a != at_b:
                yield a - at_a * (b - a) / (at_b - at_a)
            return
        for i in range(len(self.grid) - 1):
            low, high, at_low, at_high = *self.grid[i : i + 2], *errors[i : i + 2]
            if (at_low < 0) == (at_high < 0) or not math.isfinite(at_low + at_high):
                continue
            for _ in range(48):
                middle = (low + high) / 2
                if (error(middle) < 0) == (at_low < 0):
                    low = middle
                else:
                    high = middle
            yield (low + high) / 2


def _smoothed(terms: Terms, x: float) -> Terms:
    def reduce(num: Tensor, den: Tensor, t: Terms) -> Tensor:
        """(1 - x) InfoNCE + x times the mean of -log p over all candidates."""
        count = t.candidates.sum(1)
        average = den.masked_fill(~t.candidates, 0.0).sum(1) / count
        uniform = (t.weight * (den.logsumexp(1) - average)).sum()
        return (1 - x) * mean(num, den, t) + x * uniform

    return terms.but(reduce=reduce)


def _with_epsilon(terms: Terms, x: float) -> Terms:
    def reduce(num: Tensor, den: Tensor, t: Terms) -> Tensor:
        """-log(p + x)."""
        return -(t.weight * ((num - den.logsumexp(1)).exp() + x).log()).sum()

    return terms.but(reduce=reduce)


def _with_bias(terms: Terms, x: float) -> Terms:
    return terms.but(similarity=lambda cos, s: cos * s + x)


FACTOR = Fitted(
    "times {:.6g}: a constant factor, right only if meant (it acts like a learning rate; two "
    "directions added up give 2, tau / base_temperature is another)",
    lambda t, x: t.but(outer=lambda v, p, f=t.outer: x * f(v, p)), (0.0, 1.0), "factor", False,
    neutral=1.0, signed=True,
)  # fmt: skip
SELF_LOGIT = Fitted(
    "self-mask of {:.4g}: the anchor's own logit is finite, fill the diagonal with -inf",
    lambda t, x: t.but(candidates=t.candidates | t.itself, self_logit=x),
    (-300, -100, -30, -10, -3, 0, 3, 10, 30, 100, 300), "candidates", least=-1.0,
)  # fmt: skip
BIAS = Fitted(
    "a bias of {:.3f} (a learned one is usual; without, negatives outweigh positives at first)",
    _with_bias,
    tuple(range(-40, 21)),
    "bias",
    False,
    least=-1.0,
)
FITTED = (
    FACTOR,
    Fitted(
        "offset of {:.6g}: a constant is added; the gradient is not changed",
        lambda t, x: t.but(outer=lambda v, p, f=t.outer: f(v, p) + x), (0.0, 1.0), "offset",
        False,
    ),
    Fitted(
        "label smoothing {:.3g}: right only if meant", _smoothed, (0.0, 1.0), "reduction", False
    ),
    Fitted(
        "margin of {:.3g} on the positive's cosine: right only if meant",
        lambda t, x: t.but(margin=x, shared=True),
        (-1.5, -0.7, -0.2, -0.05, 0.05, 0.2, 0.7, 1.5), "similarity", False, signed=True,
    ),
    Fitted(
        "another temperature: the loss has tau = {1:.4g} (logits times {0:.4g})",
        lambda t, x: t.but(scale=x, positive_scale=x),
        tuple(sign * 10 ** (e / 8) for sign, exponents in
              ((-1, range(24, -25, -1)), (1, range(-24, 25))) for e in exponents), "scale",
    ),
    Fitted(
        "epsilon of {:.2g} inside the logarithm: it caps the loss of hard positives, use "
        "log_softmax", _with_epsilon, (0.0, 1e-7, 1e-5, 1e-3, 0.1, 1.0), "reduction", False,
        least=1e-8,
    ),
)  # fmt: skip
