"""The table of broker errors: text, whether a retry helps, and the reaction to each code.

Requests about groups and offsets have one table for each request, from error code to `GroupReaction`; the fetcher has
one, to `FetchReaction`. The codes are those of https://kafka.apache.org/protocol#protocol_error_codes.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Final

import kafka.errors as kafka_errors

from allocator.core.errors import AllocatorError, BrokerError, CorruptRecordError, TopicAuthorizationFailed
from allocator.core.types import TopicPartition

# (cause of a failed connection, whether TLS was used (None: either), what to do). The first match counts.
REMEDIES: Final = (
    ("no credentials for", None, "The client repeats this; nothing is wrong with the address of the broker."),
    ("CERTIFICATE_VERIFY_FAILED.*([Hh]ostname|IP address) mismatch", True, "Use a host name that the certificate has."),
    ("certificate has expired", True, "Renew the broker's certificate; if it is new, correct this machine's clock."),
    ("certificate is not yet valid", True, "Correct this machine's clock, or the broker's certificate."),
    ("certificate revoked", True, "Renew the broker's certificate, which ssl_crlfile lists as revoked."),
    ("CERTIFICATE_EXPIRED", True, "Renew the certificate of this client (ssl_certfile)."),
    ("CERTIFICATE_VERIFY_FAILED", True, "Set ssl_cafile to the authority that signed the broker's certificate."),
    ("CERTIFICATE|ALERT", True, "Check whether the broker needs a client certificate (ssl_certfile, ssl_keyfile)."),
    ("TLS|SSL", True, "Check that the port uses TLS; {protocol} needs it."),
    ("TLS", False, "This port needs TLS: correct security_protocol, {protocol} now, or the port."),
    ("Too many open files", None, "Raise the limit of open files (ulimit -n)."),
    ("HTTP", None, "Correct the address: this is not a Kafka broker."),
    (
        "clos",
        True,
        "Check whether the broker needs a client certificate (ssl_certfile, ssl_keyfile), that this is its port for "
        "{protocol}, and that it is not just starting.",
    ),
    (
        "clos",
        False,
        "Check that this is a Kafka broker's port for {protocol} (security_protocol), and is not just starting.",
    ),
    (
        "answer|timed out after|decode",
        None,
        "Check that this is the address of a Kafka broker, and its port for {protocol} (security_protocol).",
    ),
    ("", None, "Check that it runs, and the address."),
)


def describe(exc: BaseException) -> str:
    """The error as one log line, without the class names of kafka-python and allocator."""
    text = str(exc.args[0]) if exc.args else ""
    text = re.sub(r"^\w+Error: ", "", text)  # kafka-python puts one error into the text of another
    if isinstance(exc, kafka_errors.BrokerResponseError):
        name = getattr(exc, "message", "") or type(exc).__name__
        return f"{name}: {text}" if text else f"{name} ({getattr(exc, 'description', '')})"
    return text or type(exc).__name__


def broker_error(exc: BaseException, where: str) -> AllocatorError:
    """The error that `send` raises for `exc`, which happened at `where` (a broker, an address)."""
    if isinstance(exc, AllocatorError):
        return exc
    if isinstance(exc, kafka_errors.Cancelled):
        # This client closed the connection: a bootstrap address whose broker is in metadata now, or a broker that
        # moved.
        return BrokerError(f"{where}: the connection was closed under this request", retriable=True)
    # kafka-python also uses the broker's code 7 for its own timeout. Then no response arrived, so there is no code.
    timed_out = isinstance(exc, kafka_errors.RequestTimedOutError)
    code = exc.errno if isinstance(exc, kafka_errors.BrokerResponseError) and not timed_out else None
    retriable = bool(getattr(exc, "retriable", False)) or isinstance(exc, (kafka_errors.UnknownBrokerIdError, OSError))
    if isinstance(exc, kafka_errors.IncompatibleBrokerVersion):
        return BrokerError(f"{where}: {describe(exc)}", code=code)
    return BrokerError(f"{where}: {describe(exc)}", code=code, retriable=retriable)


def for_code(code: int, what: str) -> BrokerError:
    """The error for the error code `code` of a response about `what` (a partition, a group)."""
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


# -- groups and offsets ------------------------------------------------------------------------------------------------


class GroupReaction(enum.Enum):
    """The next step of a member, or of a caller that commits or reads offsets."""

    RETRY = "ask the same coordinator again after the back-off"
    REFIND = "find the coordinator again, then retry"
    DROP_METADATA = "retry at once without the metadata, which is too large"
    CHECK_TOPIC = "retry while the cluster has the partition; without it nothing is or can be committed"
    FAIL = "tell the caller"
    REJOIN = "still a member: join again, and keep the partitions where the assignor allows it"
    LOST = "the group went on without this member: its partitions are lost; join again under the same member id"
    RESET = "no longer a member: its partitions are lost; forget the member id and join as a new member"
    NEW_EPOCH = "still a member, under another epoch (KIP-848): retry after the next heartbeat, which has it"
    TAKE_ID = "join again at once under the member id of the response (KIP-394)"
    FENCED = "another process has this instance id (KIP-345): the partitions are lost; stop and tell the user"
    DONE = "the same as success"


FIND = {
    -1: GroupReaction.RETRY,  # 0.8.2, while it creates its offsets topic
    14: GroupReaction.RETRY,  # coordinator load in progress
    15: GroupReaction.RETRY,  # coordinator not available: the offsets topic loads, or elects a leader
}


COMMIT = {
    -1: GroupReaction.RETRY,  # 0.8.1, if ZooKeeper did not accept the write
    3: GroupReaction.CHECK_TOPIC,  # the coordinator does not know the partition yet, or it was deleted
    7: GroupReaction.RETRY,  # the offsets topic's replicas were slow
    12: GroupReaction.DROP_METADATA,
    14: GroupReaction.RETRY,
    15: GroupReaction.REFIND,
    16: GroupReaction.REFIND,
    22: GroupReaction.FAIL,  # as 25 and 27: the group has Kafka members, which commit themselves
    24: GroupReaction.FAIL,  # invalid group id
    25: GroupReaction.FAIL,
    27: GroupReaction.FAIL,
    28: GroupReaction.DROP_METADATA,  # the record of the commit is larger than the offsets topic allows
    29: GroupReaction.FAIL,  # no right to read the topic
    30: GroupReaction.FAIL,  # no right to use the group
    35: GroupReaction.FAIL,  # a KIP-848 group, and the request version is too old for it
    42: GroupReaction.FAIL,
    69: GroupReaction.FAIL,
    82: GroupReaction.FAIL,
    113: GroupReaction.FAIL,
}


# A member commits with its generation and member id. The broker compares both with its own.
MEMBER_COMMIT = {
    **COMMIT,
    # unless this member holds the partition in a newer generation; then that generation commits it
    22: GroupReaction.LOST,
    25: GroupReaction.RESET,
    # refused until this member has synced; then it commits the partitions that it still holds
    27: GroupReaction.REJOIN,
    69: GroupReaction.RESET,  # the group was deleted
    82: GroupReaction.FENCED,
    110: GroupReaction.RESET,
    113: GroupReaction.NEW_EPOCH,  # the member commits its remaining partitions under the new epoch
}


JOIN = {
    7: GroupReaction.RETRY,  # the coordinator could not store the group in time
    14: GroupReaction.RETRY,
    15: GroupReaction.REFIND,
    16: GroupReaction.REFIND,
    22: GroupReaction.LOST,
    23: GroupReaction.FAIL,  # the members have no common assignor, or the group uses another protocol: change a setting
    24: GroupReaction.FAIL,  # invalid group id
    25: GroupReaction.RESET,
    26: GroupReaction.FAIL,  # the session timeout is outside the limits of the broker
    27: GroupReaction.RETRY,  # the coordinator could not store the group
    30: GroupReaction.FAIL,
    79: GroupReaction.TAKE_ID,
    81: GroupReaction.FAIL,  # the group is full
    82: GroupReaction.FENCED,
    110: GroupReaction.RESET,  # fenced member epoch: the group is moving to KIP-848
    111: GroupReaction.RETRY,  # the broker is removing the member that had this instance id
}


SYNC = {
    7: GroupReaction.REJOIN,
    14: GroupReaction.REJOIN,  # the coordinator moved; the new one may not know the generation
    15: GroupReaction.REFIND,
    16: GroupReaction.REFIND,
    22: GroupReaction.LOST,
    23: GroupReaction.FAIL,
    25: GroupReaction.RESET,
    27: GroupReaction.REJOIN,  # the next rebalance began before this one ended
    30: GroupReaction.FAIL,
    82: GroupReaction.FENCED,
    110: GroupReaction.RESET,
}


HEARTBEAT = {
    14: GroupReaction.RETRY,
    15: GroupReaction.REFIND,
    16: GroupReaction.REFIND,
    22: GroupReaction.LOST,
    25: GroupReaction.RESET,
    27: GroupReaction.REJOIN,  # the request counts as a heartbeat; go on until the member joins again
    30: GroupReaction.FAIL,
    82: GroupReaction.FENCED,
    110: GroupReaction.RESET,
}


LEAVE = {
    14: GroupReaction.RETRY,
    15: GroupReaction.REFIND,
    16: GroupReaction.REFIND,
    25: GroupReaction.DONE,  # the broker has removed it already
    82: GroupReaction.DONE,
}


UNRELEASED_INSTANCE_ID: Final = 111  # another member has the instance id and has not left


# Members of a KIP-848 group send only this request about the group.
KIP848_HEARTBEAT = {
    14: GroupReaction.RETRY,
    15: GroupReaction.REFIND,
    16: GroupReaction.REFIND,
    25: GroupReaction.LOST,  # removed because it was silent; it joins again with its member id and epoch 0
    29: GroupReaction.FAIL,  # no right to describe one of its topics
    30: GroupReaction.FAIL,
    35: GroupReaction.FAIL,  # the protocol is disabled
    42: GroupReaction.FAIL,
    69: GroupReaction.LOST,  # the group was deleted; when joining: a classic group that the broker does not convert
    81: GroupReaction.FAIL,  # the group is full: this attempt fails, and the member tries again later
    82: GroupReaction.FENCED,
    110: GroupReaction.LOST,  # fenced: it released partitions too late, or its epoch is of an earlier join
    111: GroupReaction.RETRY,  # the earlier member with this instance id must leave first, or its session must end
    112: GroupReaction.FAIL,  # no such server_assignor
    113: GroupReaction.NEW_EPOCH,
    128: GroupReaction.FAIL,  # the broker cannot read the pattern
}


KIP848_LEAVE = {
    14: GroupReaction.RETRY,
    15: GroupReaction.REFIND,
    16: GroupReaction.REFIND,
    25: GroupReaction.DONE,  # the broker has removed it already
    69: GroupReaction.DONE,
    82: GroupReaction.DONE,
    110: GroupReaction.DONE,
}


OFFSET_FETCH = {
    3: GroupReaction.CHECK_TOPIC,
    14: GroupReaction.RETRY,
    15: GroupReaction.REFIND,
    16: GroupReaction.REFIND,
    24: GroupReaction.FAIL,
    25: GroupReaction.RETRY,  # a removed member finds that out by its next heartbeat
    29: GroupReaction.FAIL,
    30: GroupReaction.FAIL,
    35: GroupReaction.FAIL,
    42: GroupReaction.FAIL,
    69: GroupReaction.RETRY,  # the group was deleted: the member learns it from its next heartbeat
    88: GroupReaction.RETRY,  # an open transaction may still commit an offset of the partition (KIP-447)
    113: GroupReaction.NEW_EPOCH,
}


def react(table: dict[int, GroupReaction], code: int) -> GroupReaction:
    """The reaction to `code`. Codes outside of `table`: RETRY if kafka-python calls them retriable, else FAIL."""
    if code in table:
        return table[code]
    return GroupReaction.RETRY if kafka_errors.for_code(code).retriable else GroupReaction.FAIL


# -- fetching ----------------------------------------------------------------------------------------------------------


class FetchReaction(enum.Enum):
    """The reaction of the fetcher for one partition. The others continue."""

    TAKE = "use the records"
    RETRY = "ask again after the back-off"
    REFRESH = "read the metadata, as the leader may be another one, and ask again after the back-off"
    VALIDATE = "read the metadata, and compare the position with the log of the new leader before the next fetch"
    RESET = "find a new position by the reset strategy, or raise OffsetOutOfRange if it is 'none'"
    RAISE = "tell the consumer once, and retry now and then, as an operator may remove the cause"
    HALT = "tell the consumer once, and fetch the partition again only after a seek or a new assignment"


CORRUPT_MESSAGE, TOPIC_AUTHORIZATION_FAILED = 2, 29


FETCH_REACTIONS: Final = {
    -1: FetchReaction.RETRY,  # UNKNOWN_SERVER_ERROR: seen while a broker starts or stops
    0: FetchReaction.TAKE,
    1: FetchReaction.RESET,  # OFFSET_OUT_OF_RANGE
    CORRUPT_MESSAGE: FetchReaction.HALT,  # the broker cannot read its own log at this offset
    3: FetchReaction.REFRESH,  # UNKNOWN_TOPIC_OR_PARTITION: deleted, or created a moment ago
    4: FetchReaction.HALT,  # INVALID_FETCH_SIZE
    5: FetchReaction.REFRESH,  # LEADER_NOT_AVAILABLE
    6: FetchReaction.REFRESH,  # NOT_LEADER_OR_FOLLOWER
    7: FetchReaction.RETRY,  # REQUEST_TIMED_OUT
    8: FetchReaction.REFRESH,  # BROKER_NOT_AVAILABLE
    9: FetchReaction.REFRESH,  # REPLICA_NOT_AVAILABLE
    13: FetchReaction.REFRESH,  # NETWORK_EXCEPTION
    TOPIC_AUTHORIZATION_FAILED: FetchReaction.RAISE,
    35: FetchReaction.HALT,  # UNSUPPORTED_VERSION
    43: FetchReaction.HALT,  # UNSUPPORTED_FOR_MESSAGE_FORMAT
    56: FetchReaction.REFRESH,  # KAFKA_STORAGE_ERROR: the disk is out, so another replica will lead
    70: FetchReaction.RETRY,  # FETCH_SESSION_ID_NOT_FOUND (as 71 and 106): the fetcher already tried a new session
    71: FetchReaction.RETRY,  # INVALID_FETCH_SESSION_EPOCH
    72: FetchReaction.REFRESH,  # LISTENER_NOT_FOUND
    74: FetchReaction.VALIDATE,  # FENCED_LEADER_EPOCH: the broker knows a newer leader than this client
    75: FetchReaction.REFRESH,  # UNKNOWN_LEADER_EPOCH: the broker knows only an older epoch, and will catch up
    76: FetchReaction.HALT,  # UNSUPPORTED_COMPRESSION_TYPE
    78: FetchReaction.RETRY,  # OFFSET_NOT_AVAILABLE: a new leader does not know its high watermark yet
    100: FetchReaction.REFRESH,  # UNKNOWN_TOPIC_ID
    103: FetchReaction.REFRESH,  # INCONSISTENT_TOPIC_ID
    106: FetchReaction.RETRY,  # FETCH_SESSION_TOPIC_ID_ERROR
}
"""Other codes: REFRESH if kafka-python calls them retriable, else HALT."""


def reaction_to(code: int) -> FetchReaction:
    found = FETCH_REACTIONS.get(code)
    if found is None:
        found = FetchReaction.REFRESH if for_code(code, "").retriable else FetchReaction.HALT
    return found


def error_of(code: int, tp: TopicPartition, offset: int) -> AllocatorError:
    """The error that the consumer raises for `code`."""
    if code == TOPIC_AUTHORIZATION_FAILED:
        return TopicAuthorizationFailed(tp.topic)
    if code == CORRUPT_MESSAGE:
        return CorruptRecordError(tp.topic, tp.partition, offset, "the broker finds its log corrupt here")
    return for_code(code, f"{tp.topic}:{tp.partition} at offset {offset}")
