"""Decides what follows when a handler raises: another attempt, a dead letter, or the end."""

from __future__ import annotations

import builtins
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from allocator.core.aio import Backoff
from allocator.core.settings import find
from allocator.errors import ConfigError
from allocator.handlers.settings import HANDLING_DEFAULT


class Action(enum.Enum):
    """The action for a record whose call failed."""

    RETRY = "retry_on"
    DEAD_LETTER = "dead_letter_on"
    SKIP = "skip_on"
    STOP = "stop_on"


@dataclass(frozen=True)
class Retries:
    """How often a failed call is repeated, and the seconds before each attempt."""

    count: int = HANDLING_DEFAULT["retries"]
    backoff_s: float = HANDLING_DEFAULT["retry_backoff_s"]
    backoff_max_s: float = HANDLING_DEFAULT["retry_backoff_max_s"]
    limit_s: float | None = HANDLING_DEFAULT["retry_limit_s"]

    def delay_s(self, failures: int) -> float:
        """Doubles the delay with each failure up to the maximum, and subtracts up to half at random, so that members do
        not retry in step."""
        return Backoff(self.backoff_s, self.backoff_max_s, jitter=(0.5, 1.0)).nth(failures)

    def left(self, failures: int, since_s: float) -> bool:
        """Whether another attempt follows. `failures`: failed attempts so far; `since_s`: seconds since the
        first failure."""
        return failures <= self.count and (self.limit_s is None or since_s < self.limit_s)


Errors = Iterable[type[BaseException]]


@dataclass(frozen=True)
class ErrorPolicy:
    """Chooses the action for an error: the first class in its class hierarchy that a list names decides.

    An error that no list names is not retried. It becomes a dead letter, or stops the processing if there are no dead
    letters. SystemExit and other classes beside Exception always stop it, unless a list names them.
    """

    actions: Mapping[type[BaseException], Action] = field(default_factory=lambda: {Exception: Action.RETRY})

    @classmethod
    def of(
        cls,
        retry_on: Errors | None = None,
        dead_letter_on: Errors | None = None,
        skip_on: Errors | None = None,
        stop_on: Errors | None = None,
    ) -> ErrorPolicy:
        """Raises ConfigError for a class in two lists, and for a value that is no error class."""
        lists = {
            Action.RETRY: (Exception,) if retry_on is None else retry_on,
            Action.DEAD_LETTER: dead_letter_on or (),
            Action.SKIP: skip_on or (),
            Action.STOP: stop_on or (),
        }
        actions: dict[type[BaseException], Action] = {}
        for action, errors in lists.items():
            for error in errors:
                if not (isinstance(error, type) and issubclass(error, BaseException)):
                    raise ConfigError(f"{action.value}: {error!r} is not a class of errors")
                if error in actions:
                    raise ConfigError(
                        f"{actions[error].value} and {action.value} both name {error.__qualname__}; leave one out"
                    )
                actions[error] = action
        return cls(actions)

    def action(self, error: BaseException) -> Action | None:
        """Returns None if no list names a class of this error."""
        return next((self.actions[each] for each in type(error).__mro__ if each in self.actions), None)


def load_errors(names: Iterable[str], setting: str) -> list[type[BaseException]]:
    """Finds error classes by name: "ValueError", "package.module.Error" or "package.module:Error".

    Raises ConfigError that names the setting and the class.
    """
    found = []
    for name in names:
        what = f"{setting}: {name!r}"
        if "." not in name and ":" not in name:
            error = getattr(builtins, name, None)
            if error is None:
                raise ConfigError(f"{what} is not an error of Python; write 'package.module.Error'")
        else:
            target = name if ":" in name else ":".join(name.rpartition(".")[::2])
            error = find(target, what, here=True)
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            raise ConfigError(f"{what} is not a class of errors")
        found.append(error)
    return found
