"""The condition of Balle and Wang (2018, Theorem 8), with sixty digits and none of the product's code."""

import mpmath


def delta_of(distance, epsilon):
    """Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ): the smallest δ beside ε. distance: Δ/σ."""
    with mpmath.workdps(60):
        distance, epsilon = mpmath.mpf(distance), mpmath.mpf(epsilon)
        first = mpmath.ncdf(distance / 2 - epsilon / distance)
        return first - mpmath.exp(epsilon) * mpmath.ncdf(-distance / 2 - epsilon / distance)
