"""kafka-python's errors in the words of `allocator.errors`."""

from __future__ import annotations

import kafka.errors as kafka_errors

from allocator.errors import AllocatorError, BrokerError

__all__ = ["broker_error", "describe", "for_code"]


def describe(exc: BaseException) -> str:
    """One line that a reader of a log understands, without the class names of two libraries around it."""
    text = str(exc.args[0]) if exc.args else ""
    if isinstance(exc, kafka_errors.BrokerResponseError):
        name = getattr(exc, "message", "") or type(exc).__name__
        return f"{name}: {text}" if text else f"{name} ({getattr(exc, 'description', '')})"
    return text or type(exc).__name__


def broker_error(exc: BaseException, where: str) -> AllocatorError:
    """What `send` raises for `exc`, which happened at `where` (a broker, an address)."""
    if isinstance(exc, AllocatorError):
        return exc
    if isinstance(exc, kafka_errors.Cancelled):
        # we hung up ourselves: on a bootstrap address whose broker is known by now, or on one that moved
        return BrokerError(f"{where}: the connection was closed under this request", retriable=True)
    # kafka-python uses the broker's code 7 for its own timer as well; no answer arrived, so there is no code
    timed_out = isinstance(exc, kafka_errors.RequestTimedOutError)
    code = exc.errno if isinstance(exc, kafka_errors.BrokerResponseError) and not timed_out else None
    retriable = bool(getattr(exc, "retriable", False)) or isinstance(exc, (kafka_errors.UnknownBrokerIdError, OSError))
    if isinstance(exc, kafka_errors.IncompatibleBrokerVersion):
        return BrokerError(f"{where}: {describe(exc)}", code=code)
    return BrokerError(f"{where}: {describe(exc)}", code=code, retriable=retriable)


def for_code(code: int, what: str) -> BrokerError:
    """The error that a response carries as `code` about `what` (a partition, a group)."""
    kind = kafka_errors.for_code(code)
    exc = kind()
    return BrokerError(f"{what}: {describe(exc)}", code=code, retriable=bool(kind.retriable))
