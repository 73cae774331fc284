"""Whole numbers in proportion to weights."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

__all__ = ["apportion"]


def apportion(total: int, weights: Sequence[float]) -> tuple[list[int], list[int], int]:
    """Whole numbers in proportion to weights: those that add up to `total` and make the sum of n*n/weight least.

    That is rounding to the nearest (Webster's method): with equal weights the numbers differ by at most one, and a
    larger total never makes any number smaller. Returns the numbers, the indices among which ties are open, and how
    many of these are to get one more.
    """
    if not total or not weights:
        return [0] * len(weights), [], total
    most = max(weights)
    if most == min(weights):
        each = (total - 1) // len(weights)
        numbers, ties = [each] * len(weights), list(range(len(weights)))
        more = total - each * len(weights)
    else:
        # rounded at a price that is too low for `total` for certain; the rest is dealt one by one
        price = max(0.0, (total - len(weights)) / sum(weights))
        numbers = [max(0, int(price * weight + 0.5) - 1) for weight in weights]
        hands = [((2 * n + 1) / weight, index) for index, (n, weight) in enumerate(zip(numbers, weights))]
        heapify(hands)
        last = 0.0
        for _ in range(total - sum(numbers)):
            last, index = hands[0]
            numbers[index] += 1
            heapreplace(hands, ((2 * numbers[index] + 1) / weights[index], index))
        took = [i for i, (n, weight) in enumerate(zip(numbers, weights)) if n and (2 * n - 1) / weight == last]
        for index in took:
            numbers[index] -= 1
        more = len(took)
        ties = [i for i, (n, weight) in enumerate(zip(numbers, weights)) if (2 * n + 1) / weight == last]
    if len(ties) == more:
        for index in ties:
            numbers[index] += 1
        ties, more = [], 0
    return numbers, ties, more
