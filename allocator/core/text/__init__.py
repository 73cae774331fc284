"""Quotes foreign text in logs, errors, tables and HTML, and explains errors of the operating system."""

from __future__ import annotations

from allocator.core.text.base64_text import base64_contents
from allocator.core.text.bounded_json import parse_json, whole_number
from allocator.core.text.html import table
from allocator.core.text.limits import limit_reached
from allocator.core.text.quoting import os_cause, partition_names, places_of, plain, shown, some_of, text_of, utf8
