"""Checks the options of the connection to ZooKeeper, and keeps secrets out of logs."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from typing import Any

from kazoo.protocol.serialization import SASL, Auth, Connect
from kazoo.security import CREATOR_ALL_ACL

from allocator.errors import ConfigError

OPTIONS = {
    "auth_data": "credentials, a list of (scheme, credential), e.g. [('digest', 'user:password')]",
    "default_acl": "ACL of created znodes; the default with credentials is: only the creator",
    "sasl_options": "mapping for SASL, as in kazoo (needs the package pure-sasl)",
    "use_ssl": "True: TLS",
    "ca": "file with CA certificates, in addition to those of the system",
    "certfile": "file of the client certificate",
    "keyfile": "file of the client key",
    "keyfile_password": "password of the client key",
    "verify_certs": "False: accept any certificate",
    "check_hostname": "False: accept the certificate of any host, if its authority is known",
}
_TLS = ("ca", "certfile", "keyfile", "keyfile_password", "verify_certs", "check_hostname")


def check_options(options: Mapping[str, Any] | None, *, load: bool = False) -> dict[str, Any]:
    """Returns a copy of the options for kazoo, with safe defaults. Raises `ConfigError` that names a wrong option.

    With `load`, also checks that the TLS files can be loaded.
    """
    checked = dict(options or {})
    for key in checked:
        if key not in OPTIONS:
            import difflib

            near = difflib.get_close_matches(key, OPTIONS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(OPTIONS)}"
            raise ConfigError(f"unknown ZooKeeper option {key!r}; {hint}")
    if (checked.get("auth_data") or checked.get("sasl_options")) and not checked.get("default_acl"):
        # credentials without an ACL would leave the group's state open to anyone
        checked["default_acl"] = CREATOR_ALL_ACL
    unused = [key for key in _TLS if checked.get(key) is not None and not checked.get("use_ssl")]
    if unused:
        # an incomplete configuration would connect without TLS, unnoticed
        raise ConfigError(f"ZooKeeper options without effect unless use_ssl is True: {', '.join(unused)}")
    if bool(checked.get("certfile")) != bool(checked.get("keyfile")):
        # kazoo would then send no certificate
        raise ConfigError("ZooKeeper options certfile and keyfile need each other; one file may be both")
    if checked.get("use_ssl"):
        verify = checked.get("verify_certs") is not False
        if checked.get("check_hostname") and not verify:
            raise ConfigError("ZooKeeper option check_hostname has no effect with verify_certs=False")
        # by default kazoo trusts all system authorities and does not check the host name, so it accepts any certificate
        checked["check_hostname"] = verify and checked.get("check_hostname") is not False
        if load:
            check_tls(checked)
    return checked


def check_tls(options: Mapping[str, Any]) -> None:
    """Reads the TLS files: an error in kazoo's thread would end it. Raises `ConfigError`."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if options.get("ca"):
            context.load_verify_locations(options["ca"])
        if options.get("certfile"):
            # empty, because without a password OpenSSL would prompt on the terminal
            context.load_cert_chain(options["certfile"], options["keyfile"], options.get("keyfile_password") or "")
    except (OSError, ValueError) as error:
        files = {name: options[name] for name in ("ca", "certfile", "keyfile") if options.get(name)}
        raise ConfigError(f"ZooKeeper: cannot load TLS files {files}: {error}") from error


def hide_credentials() -> None:
    """Drops log records of kazoo that contain credentials. Idempotent."""
    for name in ("kazoo.client", "kazoo.client.allocator", "kazoo.protocol.connection"):
        logging.getLogger(name).addFilter(_shows_none)


def _shows_none(record: logging.LogRecord) -> bool:
    # at DEBUG kazoo logs its requests: authentication with the password, and the connect request with the session's
    # password; one level below it logs the latter again
    secret = isinstance(record.args, tuple) and any(isinstance(each, (Auth, SASL, Connect)) for each in record.args)
    return not secret and "passwd" not in str(record.msg)
