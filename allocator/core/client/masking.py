"""Masks secrets in the texts of others: a broker or a token endpoint may quote a request, a token provider a token."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection
from typing import Final
from urllib.parse import quote, quote_plus

from allocator.core.settings.names import MASK
from allocator.core.text import base64_contents, plain
from allocator.core.text.quoting import SHOWN_ERROR

SEARCHED: Final = 1 << 20  # characters of a text. Higher: a huge text takes longer
MIN_ENCODED: Final = 4  # characters of a secret that is searched in base64, where a shorter one occurs by chance
# a JWT, the value of an Authorization header, and a long word with a digit, or in both cases with a sign: the name of a
# class or of a variable is none
_LIKE_TOKEN: Final = re.compile(
    r"eyJ[\w.~+/-]*"
    r"|(?<=[Bb]earer )[^\s'\"]+"
    r"|(?<![\w~+-])(?=[A-Za-z_~+-]*[0-9])[\w~+-]{16,}=*"
    r"|(?<![\w~+-])(?=[A-Z_~+-]*[a-z])(?=[a-z_~+-]*[A-Z])(?=[A-Za-z]*[_~+-])[\w~+-]{20,}=*",
    re.ASCII,
)


def quoted(text: str, secrets: Collection[str], *, before: Collection[str] = (), guess: bool = False) -> str:
    """Returns the beginning of `text` with a mask for each of the `secrets`, in any of their usual encodings.

    `before`: what precedes a secret in a request; if the text has it in base64, which may be cut, all of it is masked.
    `guess`: also masks what looks like a token, because the user's token provider may quote one that it never returned.
    """
    text = text[:SEARCHED]
    known = [secret for secret in secrets if secret]
    long = [secret for secret in known if len(secret) >= MIN_ENCODED]
    encoded = (*long, *(quote_plus(secret, errors="replace") for secret in long), *before)
    if any(each in content for content in base64_contents(text) for each in encoded):
        return MASK
    # masked before it is cut: a cut text may end with a part of the secret
    for secret in known:
        data = secret.encode(errors="replace")
        in_urls, in_code = (quote_plus(data), quote(data)), (json.dumps(secret), repr(secret), repr(data)[1:])
        for form in (secret, *in_urls, *(literal[1:-1] for literal in in_code), html.escape(secret), data.hex()):
            text = re.sub(re.escape(form), MASK, text, flags=re.IGNORECASE)
    if guess:
        text = _LIKE_TOKEN.sub(MASK, text)
    text = plain(text[: SHOWN_ERROR + 1])
    return text if len(text) <= SHOWN_ERROR else text[: SHOWN_ERROR - 3] + "..."
