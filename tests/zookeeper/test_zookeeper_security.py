"""Options for credentials and TLS: refused when wrong, safe when left out, never shown."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kazoo.protocol.serialization import Auth, Connect
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from allocator.errors import ConfigError
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.protocols.zookeeper.client.security import check_options, hide_credentials

DIGEST = [("digest", "user:hunter2")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"auth_dat": DIGEST}, "did you mean 'auth_data'"),
        ({"ca": "x"}, "unless use_ssl is True: ca"),
        ({"use_ssl": False, "check_hostname": True}, "unless use_ssl is True: check_hostname"),
        ({"use_ssl": True, "certfile": "x"}, "need each other"),
        ({"use_ssl": True, "keyfile": "x"}, "need each other"),
        ({"use_ssl": True, "verify_certs": False, "check_hostname": True}, "check_hostname has no effect"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_options(options)
    assert "hunter2" not in str(caught.value)


def test_znodes_created_with_credentials_belong_to_their_creator_alone() -> None:
    assert check_options({"auth_data": DIGEST})["default_acl"] == CREATOR_ALL_ACL
    assert check_options({"auth_data": DIGEST, "default_acl": OPEN_ACL_UNSAFE})["default_acl"] == OPEN_ACL_UNSAFE
    assert check_options(None) == {}


def test_a_certificate_must_name_the_host_unless_the_check_is_off() -> None:
    assert check_options({"use_ssl": True})["check_hostname"] is True
    assert check_options({"use_ssl": True, "check_hostname": False})["check_hostname"] is False
    assert check_options({"use_ssl": True, "verify_certs": False})["check_hostname"] is False


def test_kazoos_debug_log_shows_no_password(caplog: pytest.LogCaptureFixture) -> None:
    hide_credentials()
    hide_credentials()
    with caplog.at_level(1), caplog.at_level(1, logger="kazoo"):  # the command line turns it off
        for name in ("kazoo.client", "kazoo.protocol.connection"):
            logger = logging.getLogger(name)
            logger.debug("Sending request(xid=%s): %s", -4, Auth(0, "digest", "user:hunter2"))
            logger.debug("Sending request(xid=%s): %s", None, Connect(0, 0, 10000, 7, b"hunter2", None))
            logger.log(5, "    Using session_id: %r session_passwd: %s", 7, b"hunter2")
            logger.debug("Received response(xid=%s): %r", 1, "path")
    assert "hunter2" not in caplog.text
    assert caplog.text.count("path") == 2


def test_a_client_shows_no_secret() -> None:
    files = {"certfile": "c", "keyfile": "k", "keyfile_password": "hunter2"}
    assert "hunter2" not in repr(ZooKeeperClient("h:1", options={"auth_data": DIGEST, "use_ssl": True, **files}))
