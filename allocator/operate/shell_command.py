"""Builds command lines that people copy into a shell, from names that strangers may choose."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Optional, Union

from allocator.core.text import plain

Option = tuple[str, Optional[str]]
"""("--topic", "orders"); a flag has None."""


@dataclass(frozen=True)
class ShellCommand:
    """A command line. `str` quotes it: no value is an option, and no shell reads anything but words in it."""

    words: tuple[str, ...]
    """The program and its subcommands: ("allocator", "group", "describe")."""
    arguments: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()

    @classmethod
    def of(cls, words: str, *arguments: str, **options: Union[str, bool, list[str]]) -> ShellCommand:
        """Returns a command of words without spaces. `dry_run=True` is the flag --dry-run; a list repeats an option."""
        found: list[Option] = []
        for name, value in options.items():
            option = f"--{name.replace('_', '-')}"
            if isinstance(value, bool):
                found += [(option, None)] if value else []
            else:
                found += [(option, each) for each in ([value] if isinstance(value, str) else value)]
        return cls(tuple(words.split()), arguments, tuple(found))

    @property
    def finds_group(self) -> bool:
        """Whether the command has the options that say where a group is: --zookeeper, --root, --brokers."""
        return self.words[0] == "allocator" and self.words[1] in ("doctor", "group", "offsets", "top")

    def adding(self, *options: Option) -> ShellCommand:
        """Returns the command with more options."""
        return replace(self, options=(*self.options, *options))

    def at(self, **places: Optional[str]) -> ShellCommand:
        """Returns the command with options such as root="/mine". Leaves out None, and options that it already has."""
        there = dict(self.options)
        found = ((f"--{name}", value) for name, value in places.items() if value is not None)
        return self.adding(*(option for option in found if option[0] not in there))

    def naming(self, places: Mapping[str, Optional[str]]) -> ShellCommand:
        """Returns the command with its placeholders, such as BROKERS, replaced by known values."""

        def known(word: Optional[str]) -> Optional[str]:
            return word if word is None else places.get(word) or word

        return ShellCommand(
            tuple(known(each) or "" for each in self.words),
            tuple(known(each) or "" for each in self.arguments),
            tuple((name, known(value)) for name, value in self.options),
        )

    def __str__(self) -> str:
        return shlex.join(map(plain, self._all()))

    def _all(self) -> Iterator[str]:
        yield from self.words
        like_options = any(each.startswith("-") for each in self.arguments)
        if not like_options:
            yield from self.arguments
        for name, value in self.options:
            if value is None:
                yield name
            elif value.startswith("-"):
                yield f"{name}={value}"
            else:
                yield from (name, value)
        if like_options:
            yield from ("--", *self.arguments)
