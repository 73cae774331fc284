"""Growing pauses between failed attempts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """Pauses before each new attempt.

    The first pause is `first_s`. Each further one is twice as long, but at most `max_s`. Each pause is
    multiplied by a random number between the two of `jitter`, so that processes do not retry at the same moment.
    """

    first_s: float
    max_s: float
    jitter: tuple[float, float] = (1.0, 1.0)
    pauses: int = field(default=0, init=False)
    """Number of pauses since the last `reset`."""

    def nth(self, number: int) -> float:
        """Returns the pause after `number` failures, for a caller that counts them."""
        pause_s: float = min(self.max_s, self.first_s * 2.0 ** min(number - 1, 64))
        return pause_s * random.uniform(*self.jitter)

    def next(self) -> float:
        """Returns the next pause."""
        self.pauses += 1
        return self.nth(self.pauses)

    def reset(self) -> None:
        """Starts again with the first pause. Call it when an attempt succeeds."""
        self.pauses = 0
