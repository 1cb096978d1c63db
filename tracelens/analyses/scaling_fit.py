"""Fits of the scaling model to measured steps: lambda at the largest TP size, then weighted least squares over all.

The model is linear in its unknowns, t(1) and lambda, so each fit is one small least-squares problem. Squared residuals
are weighted 1 / t^2 (timing noise grows with the time), intervals are Student's t at 95 %, and R^2 uses the same
weights. A fit only describes the curve: one lambda for all sizes is consistency, not proof of a cause.

`affine_fit` is for published tables of whole generations: t = a / p + c, ordinary least squares, in the table's own
unit. Its constant holds host cost and prefill as well as the all-reduces, which is why its lambda is only an
equivalent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # Student's t quantile; scipy.stats alone costs half a second to import

from tracelens.errors import NotIdentifiableError

CONFIDENCE = 0.95
SMALLEST_R2 = 0.9
_EXACT_FRAC = 1e-12

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """One fitted number.

    Attributes:
        value: the estimate, in us unless said otherwise.
        low: lower end of the 95 % interval; null where no degree of freedom is left, or where it was not fitted.
        high: upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class CurveFit:
    """The scaling model fitted to measured steps.

    Attributes:
        lambda_us: fixed cost of one all-reduce.
        t1_us: the step at p = 1; fitted when measured, else the given one without an interval.
        r2: share of the weighted variance explained; null with fewer than three points.
        t1_fitted: whether t(1) was free.
        sizes: how many distinct TP sizes carried the fit.
    """

    lambda_us: Estimate
    t1_us: Estimate
    r2: float | None
    t1_fitted: bool
    sizes: int

    @property
    def refusal(self) -> str:
        """Why nothing may be predicted from this fit; empty where it may."""
        if self.t1_us.value < 0:
            return f"t(1) comes out negative ({self.t1_us.value:,.1f} us)"
        if self.lambda_us.value < 0:
            return f"lambda comes out negative ({self.lambda_us.value:,.2f} us)"
        if self.r2 is not None and self.r2 < SMALLEST_R2:
            return f"R^2 is {self.r2:.3f}, below {SMALLEST_R2}: the points do not lie on the model's curve"
        return ""


@dataclass(frozen=True)
class AffineFit:
    """t = a / p + c over all sizes, in the unit of the input."""

    a: Estimate
    c: Estimate
    r2: float | None

    @property
    def refusal(self) -> str:
        """Why nothing may be predicted from this fit; empty where it may."""
        if self.a.value < 0:
            return f"a comes out negative ({self.a.value:,.1f}): the time does not fall with the TP size"
        if self.c.value < 0:
            return f"c comes out negative ({self.c.value:,.1f}): the time falls faster than 1 / p"
        if self.r2 is not None and self.r2 < SMALLEST_R2:
            return f"R^2 is {self.r2:.3f}, below {SMALLEST_R2}: the points do not lie on a / p + c"
        return ""


def lambda_at(tp: int, step_us: float, t1_us: float, all_reduces: int, bandwidth_us: float) -> float:
    """The lambda that puts the model exactly through one measured point at p > 1."""
    return (step_us - t1_us / tp - bandwidth_us) / all_reduces


def curve_fit(
    tps: Sequence[int],
    steps_us: Sequence[float],
    *,
    all_reduces: int,
    bandwidths_us: Sequence[float],
    known_t1_us: float | None = None,
) -> CurveFit:
    """Weighted least squares of the scaling model over all points.

    Args:
        tps: TP size of each point; several points may share one.
        steps_us: measured step of each point.
        all_reduces: 2L.
        bandwidths_us: the bandwidth term of each point, taken as known.
        known_t1_us: t(1) held fixed, from bytes over bandwidth; null fits it.

    Returns:
        The fit, refused or not: see `CurveFit.refusal`.

    Raises:
        NotIdentifiableError: fewer than two distinct TP sizes, no p above 1, or fewer than three sizes with t(1) free.
    """
    p = np.asarray(tps, dtype=np.float64)
    t = np.asarray(steps_us, dtype=np.float64)
    sizes = len(np.unique(p))
    _check_sizes(p, sizes, known_t1_us is None)
    inverse, fixed = 1.0 / p, np.where(p > 1, float(all_reduces), 0.0)
    known = np.asarray(bandwidths_us, dtype=np.float64)
    weights = 1.0 / t**2
    if known_t1_us is None:
        design, target = np.column_stack([inverse, fixed]), t - known
    else:
        # A point at p = 1 says nothing about lambda once t(1) is given: it must not buy a degree of freedom.
        above = p > 1
        design, target = fixed[above][:, None], (t - known - known_t1_us * inverse)[above]
        weights = weights[above]
    values, covariance, rss = weighted_least_squares(design, target, weights)
    interval = _intervals(values, covariance, rss, len(target))
    r2 = _r2(rss, (t if known_t1_us is None else t[p > 1]), weights)
    if known_t1_us is None:
        return CurveFit(interval[1], interval[0], r2, True, sizes)
    return CurveFit(interval[0], Estimate(known_t1_us), r2, False, sizes)


def _check_sizes(p: Floats, sizes: int, t1_free: bool) -> None:
    if sizes < 2 or p.max() <= 1:
        raise NotIdentifiableError(
            f"{sizes} distinct TP size{'s' if sizes != 1 else ''} cannot carry lambda: it needs two, one above 1",
            "measure more TP sizes, or give --lambda-us",
        )
    if t1_free and sizes < 3:
        raise NotIdentifiableError(
            f"{sizes} distinct TP sizes cannot carry both t(1) and lambda: that needs three",
            "measure a third TP size, or fix t(1) with --model-preset and --gpu",
        )


def affine_fit(tps: Sequence[int], times: Sequence[float]) -> AffineFit:
    """Ordinary least squares of t = a / p + c.

    Raises:
        NotIdentifiableError: fewer than three distinct TP sizes.
    """
    p, t = np.asarray(tps, dtype=np.float64), np.asarray(times, dtype=np.float64)
    sizes = len(np.unique(p))
    if sizes < 3:
        raise NotIdentifiableError(
            f"{sizes} distinct TP size{'s' if sizes != 1 else ''} cannot carry both a and c: that needs three",
            "measure more TP sizes",
        )
    weights = np.ones_like(t)
    values, covariance, rss = weighted_least_squares(np.column_stack([1.0 / p, np.ones_like(p)]), t, weights)
    a, c = _intervals(values, covariance, rss, len(t))
    return AffineFit(a, c, _r2(rss, t, weights))


def weighted_least_squares(design: Floats, target: Floats, weights: Floats) -> tuple[Floats, Floats, float]:
    """Solve for the unknowns that minimise sum(weights x residual^2).

    Args:
        design: points x unknowns, of full column rank.
        target: one value per point.
        weights: one positive weight per point.

    Returns:
        (unknowns, inverse of the normal matrix, weighted residual sum of squares).
    """
    root = np.sqrt(weights)
    scaled = design * root[:, None]
    values, _, _, _ = np.linalg.lstsq(scaled, target * root, rcond=None)
    residual = (target - design @ values) * root
    inverse = np.linalg.inv(scaled.T @ scaled)
    return values.astype(np.float64), inverse.astype(np.float64), float(residual @ residual)


def _intervals(values: Floats, covariance: Floats, rss: float, points: int) -> list[Estimate]:
    freedom = points - len(values)
    if freedom < 1:
        return [Estimate(float(value)) for value in values]
    half = float(stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * np.sqrt(np.diag(covariance) * rss / freedom)
    return [Estimate(float(v), float(v - h), float(v + h)) for v, h in zip(values, half, strict=True)]


def _r2(rss: float, t: Floats, weights: Floats) -> float | None:
    if len(t) < 3:
        return None
    mean = float(np.average(t, weights=weights))
    total = float(np.sum(weights * (t - mean) ** 2))
    if total <= _EXACT_FRAC * float(np.sum(weights * t**2)):
        return None
    return 1.0 - rss / total
