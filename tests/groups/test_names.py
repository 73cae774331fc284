"""Names of members."""

from __future__ import annotations

import os
import socket

import pytest

from allocator import Consumer
from allocator.compat.grouped import GroupedConsumer
from allocator.core.settings.names import default_client_id
from allocator.protocols.zookeeper.znodes.documents import MemberInfo
from allocator.protocols.zookeeper.znodes.member_names import member_name

IN_ZOOKEEPER = "m-0123456789abcdef-0000000012"
IN_KAFKA = "billing-6f1c2d3e-0000-4000-8000-0123456789ab"


@pytest.mark.parametrize(
    ("member", "info", "shown"),
    [
        (IN_ZOOKEEPER, MemberInfo("allocator-web1-4242-3f9a", "web1", pid=4242), "allocator-web1-4242-3f9a#12"),
        (IN_ZOOKEEPER, MemberInfo("billing", "web1", pid=4242), "billing@web1:4242#12"),
        (IN_ZOOKEEPER, MemberInfo("billing-web1-14242", "web1", pid=4242), "billing-web1-14242@web1:4242#12"),
        (IN_ZOOKEEPER, MemberInfo("allocator-web1", "web1"), "allocator-web1#12"),  # of an older version
        (IN_ZOOKEEPER, None, "#12"),
        (IN_KAFKA, MemberInfo("billing", "10.0.0.7"), "billing@10.0.0.7#6f1c2d3e"),
        ("x5cHVMgWTtmtFtLQqo1Kmw", MemberInfo("billing", "10.0.0.7"), "billing@10.0.0.7#x5cHVMgW"),
    ],
)
def test_a_member_is_shown_with_its_host_its_process_and_a_short_id(
    member: str, info: MemberInfo | None, shown: str
) -> None:
    assert member_name(member, info) == shown


def test_consumers_of_one_process_differ_by_default() -> None:
    names = {Consumer("t", brokers="b:1", group="g", membership="kafka").client_id for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith(f"allocator-{socket.gethostname()}-{os.getpid()}-") for name in names)
    assert default_client_id("spark").startswith("spark-")
    consumer = GroupedConsumer(["b:1"], "g", ["z:1"])
    assert consumer.name.startswith(f"{socket.gethostname()}:{os.getpid()}-")
