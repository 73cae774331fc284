"""Builds the compiled decoder, `allocator/_records`. All other settings are in pyproject.toml.

The decoder is optional: without a C compiler or Cython, the installation prints a warning and continues without it, and
records are decoded in Python. Environment variables of a build:

    ALLOCATOR_PURE_PYTHON=1        omits it: a wheel for any machine
    ALLOCATOR_REQUIRE_EXTENSION=1  fails if it cannot be built: for builds of wheels
    ALLOCATOR_SANITIZE=1           builds it with the address and undefined-behaviour sanitizers, for the tests

No archive contains the C code that Cython generates, because it fits one version of Cython. A build gets Cython from
build-system.requires.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

NAME = "allocator._records"
SOURCE = "allocator/_records.pyx"
HEADERS = ["allocator/_records.h", "allocator/_encode.h", "allocator/_crc32c.h"]
# Python's own flags have -fwrapv, under which a signed overflow is defined, and the sanitizer says nothing of it
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-wrapv"]
SANITIZERS += ["-fno-omit-frame-pointer", "-g", "-O1"]


# Python's stable interface, so that one wheel serves 3.9 and all after it; records made from Python's own take 5 % less
# time. Builds without the interpreter's lock have no stable interface yet.
STABLE = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")


def wanted(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def without(why: object) -> None:
    if wanted("ALLOCATOR_REQUIRE_EXTENSION"):
        raise SystemExit(f"{NAME} cannot be built: {why}")
    print(
        f"\nallocator: {NAME} is left out ({why}).\nRecords will be decoded in plain Python, 15 to 70 times slower. "
        "With a C compiler and Cython 3.1 or newer, install again.\n",
        file=sys.stderr,
    )


class OptionalBuild(build_ext):
    """Goes on without what cannot be compiled."""

    def build_extension(self, ext: Any) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:  # noqa: BLE001 - distutils raises many kinds; none may end an installation
            without(error)

    def copy_extensions_to_source(self) -> None:
        # in place, for an editable installation: setuptools expects each to be there
        self.extensions = [ext for ext in self.extensions if Path(self.get_ext_fullpath_built(ext)).exists()]
        super().copy_extensions_to_source()

    def get_ext_fullpath_built(self, ext: Any) -> str:
        return os.path.join(self.build_lib, self.get_ext_filename(self.get_ext_fullname(ext.name)))


class StableWheel(bdist_wheel):
    """One wheel for this Python and all that come after it."""

    def finalize_options(self) -> None:
        if STABLE and self.distribution.ext_modules:
            self.py_limited_api = "cp39"
        super().finalize_options()


def extensions() -> list[Any]:
    if wanted("ALLOCATOR_PURE_PYTHON"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError as error:
        without(error)
        return []
    sanitize = SANITIZERS if wanted("ALLOCATOR_SANITIZE") else []
    # no debugging symbols: they are five sixths of the file
    flags = [] if os.name == "nt" else sanitize or ["-O2", "-g0"]
    extension = Extension(
        NAME,
        [SOURCE],
        depends=HEADERS,
        define_macros=[("Py_LIMITED_API", "0x03090000")] if STABLE else [],
        py_limited_api=STABLE,
        extra_compile_args=flags,
        extra_link_args=sanitize,
    )
    made: list[Any] = cythonize([extension], build_dir="build/cython", language_level=3)
    return made


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuild, "bdist_wheel": StableWheel})
