"""ConsumerGroupDescribe on the wire, v0 (KIP-848; https://kafka.apache.org/protocol): a next-generation group.

kafka-python has no classes for it; the fields stand in two files beside this one, as those of the heartbeat do.
"""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage

__all__ = ["ConsumerGroupDescribeRequest", "ConsumerGroupDescribeResponse"]


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    pass


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    pass
