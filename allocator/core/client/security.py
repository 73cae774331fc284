"""Checks TLS and SASL settings before the first connection, and never logs them."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from allocator.core.client.proxy import Proxy
from allocator.core.errors import ConfigError

log = logging.getLogger(__name__)

KEYS = (
    "proxy_url",
    "sasl_kerberos_domain_name",
    "sasl_kerberos_name",
    "sasl_kerberos_service_name",
    "sasl_mechanism",
    "sasl_oauth_client_id",
    "sasl_oauth_client_secret",
    "sasl_oauth_scope",
    "sasl_oauth_token_endpoint",
    "sasl_oauth_token_provider",
    "sasl_plain_password",
    "sasl_plain_username",
    "security_protocol",
    "ssl_cafile",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_context",
    "ssl_crlfile",
    "ssl_keyfile",
    "ssl_password",
)
OF_ENDPOINT = ("sasl_oauth_client_id", "sasl_oauth_client_secret", "sasl_oauth_scope")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def check_security(settings: Mapping[str, Any] | None, *, load: bool = False) -> dict[str, Any]:
    """Returns a checked copy of `settings`. Raises `ConfigError`.

    `load`: also checks that the TLS files and the token provider can be loaded.
    """
    checked = dict(settings or {})
    for key in checked:
        if key not in KEYS:
            raise ConfigError(f"security: unknown setting {key!r}; {_nearest(str(key), KEYS)}")
    protocol = checked.get("security_protocol", "PLAINTEXT")
    if protocol not in PROTOCOLS:
        near = _nearest(str(protocol).upper(), PROTOCOLS)
        raise ConfigError(f"security: security_protocol is {protocol!r}; {near}")
    if protocol.startswith("SASL") and not checked.get("sasl_mechanism"):
        raise ConfigError(f"security: security_protocol {protocol} needs sasl_mechanism")
    mechanism = checked.get("sasl_mechanism")
    if mechanism is not None and mechanism not in MECHANISMS:
        raise ConfigError(f"security: sasl_mechanism is {mechanism!r}; {_nearest(str(mechanism).upper(), MECHANISMS)}")
    if checked.get("proxy_url") is not None:
        Proxy.of(checked["proxy_url"])
    # without this check, an incomplete configuration would silently connect in clear text
    unused = [k for k in checked if k.startswith("sasl_") and not protocol.startswith("SASL")]
    unused += [k for k in checked if k.startswith("ssl_") and not protocol.endswith("SSL")]
    if unused:
        raise ConfigError(f"security: {', '.join(unused)} have no effect with security_protocol {protocol}")
    for name in ("sasl_oauth_token_endpoint", *OF_ENDPOINT):
        value = checked.get(name)
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigError(f"security: {name} is {type(value).__name__}; it must be a non-empty string")
    for names, why in mechanism_faults(checked):
        raise ConfigError(f"security: {' with '.join(names)}: {why}")
    if load:
        from allocator.core.client.oauth import with_credentials

        tls_context(with_credentials(checked))
    return checked


def _nearest(wrong: str, valid: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(wrong, valid, n=1)
    return f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(valid)}"


def mechanism_faults(settings: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields the names of settings that do not fit the SASL mechanism, and why."""
    mechanism, provider, endpoint = "sasl_mechanism", "sasl_oauth_token_provider", "sasl_oauth_token_endpoint"
    given = {name for name, value in settings.items() if value is not None}
    if endpoint in given:
        from allocator.core.client.oauth import check_token_endpoint

        try:
            check_token_endpoint(settings[endpoint])
        except ValueError as error:
            yield (endpoint,), f"must be an https URL; {error}"
    if settings.get(mechanism) == "AWS_MSK_IAM" and settings.get("security_protocol") != "SASL_SSL":
        yield (mechanism, "security_protocol"), "AWS_MSK_IAM needs SASL_SSL"
    if settings.get(mechanism) != "OAUTHBEARER":
        for name in (provider, endpoint, *OF_ENDPOINT):
            if name in given:
                yield (name, mechanism), 'only "OAUTHBEARER" uses it'
    elif (provider in given) == (endpoint in given):
        yield (provider, endpoint), "OAUTHBEARER needs exactly one of them"
    else:
        for name in OF_ENDPOINT:
            if provider in given and name in given:
                yield (name, endpoint), "it has no effect without a token endpoint"
            if endpoint in given and name not in given and name != "sasl_oauth_scope":
                yield (endpoint, name), "the endpoint needs it"


def tls_context(settings: Mapping[str, Any]) -> ssl.SSLContext | None:
    """Returns the TLS context, None without TLS. Reads certificate files. Raises `ConfigError`."""
    if not settings.get("security_protocol", "PLAINTEXT").endswith("SSL"):
        return None
    try:
        return settings.get("ssl_context") or _load_context(settings)
    except (OSError, ssl.SSLError, ValueError) as exc:
        names = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")
        files = {name: settings[name] for name in names if settings.get(name)}
        too = ", and ssl_password" if "ssl_certfile" in files else ""
        raise ConfigError(f"security: cannot load TLS files {files}: {exc}; check them{too}") from exc


def _load_context(settings: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.get("ssl_check_hostname", True)
    if settings.get("ssl_cafile"):
        context.load_verify_locations(settings["ssl_cafile"])
    else:
        context.load_default_certs()
    if settings.get("ssl_certfile"):
        # "" and not None, for which OpenSSL would prompt on the terminal
        context.load_cert_chain(
            settings["ssl_certfile"], settings.get("ssl_keyfile"), settings.get("ssl_password") or ""
        )
    if settings.get("ssl_crlfile"):
        context.load_verify_locations(settings["ssl_crlfile"])
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def warn_of_clear_text(settings: Mapping[str, Any], brokers: str) -> None:
    """Logs a warning if SASL sends a password or token in clear text."""
    mechanism = settings.get("sasl_mechanism")
    if settings.get("security_protocol") == "SASL_PLAINTEXT" and mechanism in ("PLAIN", "OAUTHBEARER"):
        _warn_of_clear_text(mechanism, brokers)


@lru_cache(maxsize=1000)  # so that a command with several clients says it once
def _warn_of_clear_text(mechanism: str, brokers: str) -> None:
    log.warning(
        "sasl_mechanism %s sends the %s to the brokers at %s unencrypted with security_protocol SASL_PLAINTEXT; use "
        "SASL_SSL, or a mechanism that does not send it (SCRAM-SHA-512)",
        mechanism,
        "password" if mechanism == "PLAIN" else "token",
        brokers,
    )
