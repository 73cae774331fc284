"""kafka-python's errors in the words of `allocator.errors`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import kafka.errors as kafka_errors

from allocator.errors import AllocatorError, BrokerError

__all__ = ["broker_error", "describe", "for_code", "unreachable"]

# (cause of a failed connection, whether TLS was used or None for both, what to do); the first that fits
REMEDIES: Final = (
    ("CERTIFICATE_VERIFY_FAILED.*([Hh]ostname|IP address) mismatch", True, "Use a host name that the certificate has."),
    ("CERTIFICATE_VERIFY_FAILED", True, "Set ssl_cafile to the authority that signed the broker's certificate."),
    ("CERTIFICATE|ALERT", True, "Does the broker demand a client certificate (ssl_certfile, ssl_keyfile)?"),
    ("TLS|SSL", True, "Is this a port with TLS? {protocol} needs one."),
    ("TLS", False, "This port needs TLS: correct security_protocol, {protocol} now, or the port."),
    ("HTTP", None, "Correct the address: this is no Kafka broker."),
    (
        "clos",
        True,
        "Does the broker demand a client certificate (ssl_certfile, ssl_keyfile), is this its port for {protocol}, "
        "is it starting?",
    ),
    ("clos", False, "Is this the port of a Kafka broker for {protocol} (security_protocol), is it starting?"),
    (
        "answer|timed out after|decode",
        None,
        "Is this the address of a Kafka broker, and its port for {protocol} (security_protocol)?",
    ),
    ("", None, "Is it running, is the address right?"),
)


def describe(exc: BaseException) -> str:
    """One line that a reader of a log understands, without the class names of two libraries around it."""
    text = str(exc.args[0]) if exc.args else ""
    text = re.sub(r"^\w+Error: ", "", text)  # kafka-python quotes one error in another
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


def unreachable(causes: Mapping[str, str], protocol: str) -> str:
    """Each address with its cause, and what to do. `protocol` is the security protocol that was used."""
    remedies = dict.fromkeys(_remedy(cause, protocol.endswith("SSL")) for cause in causes.values())
    tried = ", ".join(f"{address} ({cause})" for address, cause in causes.items())
    return f"{tried}. {' '.join(remedies).format(protocol=protocol)}"


def _remedy(cause: str, tls: bool) -> str:
    return next(
        remedy for pattern, with_tls, remedy in REMEDIES if with_tls in (tls, None) and re.search(pattern, cause)
    )
