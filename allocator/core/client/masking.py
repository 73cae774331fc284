"""Masks secrets in the texts of others, which may quote them: brokers, proxies, registries, endpoints, token providers.

Every text of a system that was given a secret passes through `quoted` before it becomes part of an error or a log line.
Raise such an error `from None`: a traceback would show the text of its cause.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection
from itertools import chain
from typing import Final
from urllib.parse import quote, quote_plus

from allocator.core.settings.names import MASK
from allocator.core.text import base64_contents, plain
from allocator.core.text.quoting import SHOWN_ERROR, shortened

SEARCHED: Final = 1 << 20  # characters of a text. Higher: a huge text takes longer
MIN_SECRET: Final = 4  # characters. A shorter one occurs by chance, and the masks would spell it
ESCAPED: Final = 3  # times that a text is escaped. Higher: finds a secret deeper in other texts; lower: less CPU
# Begins a word of letters, digits and the signs {0} in both cases that is no name, such as that of a class: a small
# letter stands alone in it, or it has three numbers
_NO_NAME: Final = (
    r"(?=[A-Z0-9{0}]*[a-z])(?=[a-z0-9{0}]*[A-Z])"
    r"(?=[A-Za-z0-9{0}]*(?<![a-z])[a-z](?![a-z])|[A-Za-z{0}]*[0-9]+[A-Za-z{0}]+[0-9]+[A-Za-z{0}]+[0-9])"
)
# A JWT, the value of an Authorization header, a secret key of AWS, another long word that is no name, one of digits and
# letters in one case, and one of letters in both cases with signs, which no class has. Each word begins where a run of
# its characters begins: otherwise a long run takes minutes
_LIKE_TOKEN: Final = re.compile(
    r"eyJ[\w.~+/-]*"
    r"|(?<=[Bb]earer )[^\s'\"]+"
    rf"|(?<![\w~+/-]){_NO_NAME.format('+/')}[A-Za-z0-9+/]{{40}}(?![\w~+/=-])"
    rf"|(?<![\w~+-])(?=[A-Za-z]*[0-9_~+-]){_NO_NAME.format('_~+-')}[\w~+-]{{16,}}=*"
    r"|(?<![\w~+-])(?=[a-z]*[0-9])[a-z0-9]{24,}(?![\w~+-])|(?<![\w~+-])(?=[A-Z]*[0-9])[A-Z0-9]{24,}(?![\w~+-])"
    r"|(?<![\w~+-])(?=[A-Z_~+-]*[a-z])(?=[a-z_~+-]*[A-Z])(?=[A-Za-z]*[_~+-])[\w~+-]{20,}=*",
    re.ASCII,
)
_ESCAPE: Final = re.compile(
    r"(?P<bytes>(?:(?:%|\\+x)[0-9a-f]{2})+)|\\+u(?P<code>[0-9a-f]{4})|\\+(?P<letter>[bfnrt]?)|&#?\w{1,31};",
    re.ASCII | re.IGNORECASE,
)
_LETTERS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def quoted(text: str, secrets: Collection[str], *, before: Collection[str] = (), guess: bool = False) -> str:
    """Returns the beginning of `text` with a mask for each of the `secrets`, in any of their usual encodings. If a
    secret is in base64 or in an unusual escape, all of the text is masked.

    `before`: what precedes a secret in a request, in base64 that may be cut. `guess`: also masks what looks like a
    token, because the user's token provider may quote one that it never returned.
    """
    text = text[:SEARCHED]
    known = [secret for secret in secrets if len(secret) >= MIN_SECRET]
    encoded = (*known, *(quote_plus(secret, errors="replace") for secret in known), *before)
    contents = chain(base64_contents(text), base64_contents(_without_escapes(text)))
    if encoded and any(each in content for content in contents for each in encoded):
        return MASK
    # masked before it is cut: a cut text may end with a part of the secret. The longest first: a secret may be part of
    # another one, whose rest would stay
    for form in sorted({form for secret in known for form in _forms(secret)}, key=len, reverse=True):
        text = re.sub(re.escape(form), MASK, text, flags=re.IGNORECASE)
    meant = [meaning for secret in known if len(meaning := _meaning(secret)) >= MIN_SECRET]
    if meant and any(map(_meaning(text).__contains__, meant)):
        return MASK
    if guess:
        text = _LIKE_TOKEN.sub(MASK, text)
    return shortened(plain(text[: SHOWN_ERROR + 1]), SHOWN_ERROR)


def _forms(secret: str) -> set[str]:
    """Returns the secret as it is in texts, URLs, JSON, the repr of Python and hex."""
    data = secret.encode(errors="replace")
    in_code = json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret), repr(data)[1:]
    return {secret, quote_plus(data), quote(data), data.hex(), *(literal[1:-1] for literal in in_code)}


def _meaning(text: str) -> str:
    """Returns the same text for all escapes of a text, in lower case."""
    return _without_escapes(text).replace("+", " ").lower()


def _without_escapes(text: str) -> str:
    """Returns the text without the escapes of URLs, HTML, JSON and Python, also escapes of escapes."""
    for _ in range(ESCAPED):
        before, text = text, _ESCAPE.sub(_unescaped, text)
        if text == before:
            break
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # JSON escapes an emoji as two surrogates


def _unescaped(found: re.Match[str]) -> str:
    if found["bytes"]:
        data = bytes.fromhex(re.sub(r"%|\\+x", "", found[0], flags=re.IGNORECASE))
        try:
            return data.decode()
        except ValueError:
            return data.decode("latin-1")
    if found["code"]:
        return chr(int(found["code"], 16))
    return html.unescape(found[0]) if found["letter"] is None else _LETTERS.get(found["letter"].lower(), "")
