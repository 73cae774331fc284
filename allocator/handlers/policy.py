"""Decides what follows when a handler raises, by the error's class and the number of attempts."""

from __future__ import annotations

import builtins
import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Union

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
    """Number of further attempts after a failed call, and the delay before each."""

    count: int = HANDLING_DEFAULT["retries"]
    backoff_s: float = HANDLING_DEFAULT["retry_backoff_s"]
    backoff_max_s: float = HANDLING_DEFAULT["retry_backoff_max_s"]
    limit_s: float | None = HANDLING_DEFAULT["retry_limit_s"]

    def delay_s(self, failures: int, since_s: float = 0.0) -> float | None:
        """Returns the seconds until the next attempt; None: no further attempt.

        `failures`: number of failed attempts so far. `since_s`: seconds since the first failure. The delay doubles with
        each failure up to the maximum. It is shortened at random by up to half, so that members do not retry at the
        same time.
        """
        left_s = math.inf if self.limit_s is None else self.limit_s - since_s
        if failures > self.count or left_s <= 0:
            return None
        # makes the last attempt at the time limit
        return min(left_s, Backoff(self.backoff_s, self.backoff_max_s, jitter=(0.5, 1.0)).nth(failures))


Errors = Iterable[Union[type[BaseException], str]]
ClassName = tuple[str, str]
"""The module and the qualified name of a class."""


class Reported:
    """Base of the class of an error that another process has reported, where this process cannot make the error's own
    class."""

    class_names: ClassVar[Sequence[ClassName]]
    """Names of the error's own class and of its bases, the nearest first."""

    def __init_subclass__(cls) -> None:
        """Runs no `__init_subclass__` of the other base, which is the user's."""


def class_names(kind: type[BaseException]) -> Sequence[ClassName]:
    """Returns the names of a class and of its bases, the nearest first."""
    if issubclass(kind, Reported):
        return kind.class_names
    return tuple(_class_name(each) for each in kind.__mro__)


def _class_name(kind: type) -> ClassName:
    module = str(kind.__module__)
    # a handler's process imports the main module under another name
    return "__main__" if module == "__mp_main__" else module, str(kind.__qualname__)


@dataclass(frozen=True)
class ErrorPolicy:
    """Chooses the action for an error by its nearest class that one of the lists names.

    If no list names the error, the record becomes a dead letter at once. Without a dead-letter topic, the processing
    stops. SystemExit and other classes outside Exception also stop it, unless a list names them.
    """

    actions: Mapping[type[BaseException], Action] = field(default_factory=lambda: {Exception: Action.RETRY})

    @classmethod
    def of(cls, where: str = "", **lists: Errors | None) -> ErrorPolicy:
        """Creates it from `retry_on`, `dead_letter_on`, `skip_on` and `stop_on`: classes or their names.

        Raises ConfigError for a class in two lists, and for a value that is not an error class. Its text starts with
        `where` and the name of the setting.
        """
        actions: dict[type[BaseException], Action] = {}
        for action in Action:
            errors = lists.get(action.value) or ()
            for error in (_error_class(each, f"{where}{action.value}") for each in errors):
                if error in actions:
                    raise ConfigError(
                        f"{actions[error].value} and {action.value} both name {error.__qualname__}; leave one out"
                    )
                actions[error] = action
        if lists.get(Action.RETRY.value) is None:
            actions.setdefault(Exception, Action.RETRY)
        return cls(actions)

    def action(self, error: BaseException) -> Action | None:
        """Returns the action, or None if no list names a class of this error."""
        kind = type(error)
        if issubclass(kind, Reported):
            named = {_class_name(each): action for each, action in self.actions.items()}
            return next((named[each] for each in kind.class_names if each in named), None)
        return next((self.actions[each] for each in kind.__mro__ if each in self.actions), None)


def _error_class(given: type[BaseException] | str, setting: str) -> type[BaseException]:
    """Returns an error class, found by its name: "ValueError", "package.module.Error" or "package.module:Error".

    Raises ConfigError that names the setting and the class.
    """
    what = f"{setting}: {given!r}"
    error: Any = given
    if isinstance(given, str):
        if "." not in given and ":" not in given:
            error = getattr(builtins, given, None)
            if error is None:
                raise ConfigError(f"{what} is not a built-in error class; write 'package.module.Error'")
        else:
            error = find(given if ":" in given else ":".join(given.rpartition(".")[::2]), what, here=True)
    if not (isinstance(error, type) and issubclass(error, BaseException)):
        raise ConfigError(f"{what} is not an error class")
    return error
