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
from allocator.core.text.quoting import SHOWN_ERROR, shortened

SEARCHED: Final = 1 << 20  # characters of a text. Higher: a huge text takes longer
MIN_SECRET: Final = 4  # characters. A shorter one occurs by chance, and the masks would spell it
# a JWT, the value of an Authorization header, a long word in both cases with a digit or a sign, and one of digits and
# letters of one case: the name of a class, a variable or a host is none
_LIKE_TOKEN: Final = re.compile(
    r"eyJ[\w.~+/-]*"
    r"|(?<=[Bb]earer )[^\s'\"]+"
    r"|(?<![\w~+-])(?=[A-Za-z_~+-]*[0-9])(?=[A-Z0-9_~+-]*[a-z])(?=[a-z0-9_~+-]*[A-Z])[\w~+-]{16,}=*"
    r"|(?<![\w~+-])(?=[a-z]*[0-9])[a-z0-9]{24,}(?![\w~+-])|(?<![\w~+-])(?=[A-Z]*[0-9])[A-Z0-9]{24,}(?![\w~+-])"
    r"|(?<![\w~+-])(?=[A-Z_~+-]*[a-z])(?=[a-z_~+-]*[A-Z])(?=[A-Za-z]*[_~+-])[\w~+-]{20,}=*",
    re.ASCII,
)

_OF_GO: Final = str.maketrans({"&": r"\u0026", "<": r"\u003c", ">": r"\u003e"})  # in the JSON of Go


def quoted(text: str, secrets: Collection[str], *, before: Collection[str] = (), guess: bool = False) -> str:
    """Returns the beginning of `text` with a mask for each of the `secrets`, in any of their usual encodings.

    `before`: what precedes a secret in a request; if the text has it in base64, which may be cut, all of it is masked.
    `guess`: also masks what looks like a token, because the user's token provider may quote one that it never returned.
    """
    text = text[:SEARCHED]
    known = [secret for secret in secrets if len(secret) >= MIN_SECRET]
    encoded = (*known, *(quote_plus(secret, errors="replace") for secret in known), *before)
    if any(each in content for content in base64_contents(text) for each in encoded):
        return MASK
    # masked before it is cut: a cut text may end with a part of the secret
    for secret in known:
        data = secret.encode(errors="replace")
        in_urls, in_json = (quote_plus(data), quote(data)), json.dumps(secret, ensure_ascii=False)
        in_code = (json.dumps(secret), in_json, in_json.translate(_OF_GO), repr(secret), repr(data)[1:])
        in_html = html.escape(secret), html.escape(secret).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
        forms = (secret, *in_urls, *(literal[1:-1] for literal in in_code), *in_html, data.hex())
        for form in dict.fromkeys(forms):  # most of them are equal for a secret of letters and digits
            text = re.sub(re.escape(form), MASK, text, flags=re.IGNORECASE)
    if guess:
        text = _LIKE_TOKEN.sub(MASK, text)
    return shortened(plain(text[: SHOWN_ERROR + 1]), SHOWN_ERROR)
