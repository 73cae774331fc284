"""Pauses between attempts that keep failing: each is longer than the one before, up to a maximum."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """The seconds to wait before each new attempt.

    The first pause is `first_s`. Each further one is twice as long, but at most `max_s`. `jitter` bounds the
    random number by which each pause is multiplied, so that processes do not retry in step.
    """

    first_s: float
    max_s: float
    jitter: tuple[float, float] = (1.0, 1.0)
    pauses: int = field(default=0, init=False)
    """Number of pauses since the last `reset`."""

    def nth(self, number: int) -> float:
        """Returns the pause of this number, from 1, for a caller that counts its failures itself."""
        pause_s: float = min(self.max_s, self.first_s * 2.0 ** min(number - 1, 64))
        return pause_s * random.uniform(*self.jitter)

    def next(self) -> float:
        """Returns the next pause."""
        self.pauses += 1
        return self.nth(self.pauses)

    def reset(self) -> None:
        """Starts again with the first pause. Called when an attempt succeeds."""
        self.pauses = 0
