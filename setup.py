"""Builds the compiled decoder, `allocator/core/_records`. All other settings are in pyproject.toml.

Without a C compiler, pip also installs one for the build: Zig, from the wheel `ziglang`, a download of 100 MB. The
decoder is optional: if it cannot be built, for example because Python.h is missing, the installation prints a warning
and continues without it, and records are decoded in Python. pip hides the warning; `allocator --version` tells which
decoder is used. Environment variables of a build:

    ALLOCATOR_PURE_PYTHON=1        omits it: a wheel for any machine
    CC=...                         the C compiler; then pip installs none
    ALLOCATOR_REQUIRE_EXTENSION=1  fails if it cannot be built: for builds of wheels
    ALLOCATOR_SANITIZE=1           builds it with the address and undefined-behaviour sanitizers, for the tests

No archive contains the C code that Cython generates, because it fits one version of Cython. A build gets Cython from
build-system.requires.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
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

NAME = "allocator.core._records"
SOURCE = "allocator/core/_records.pyx"
HEADERS = ["allocator/core/_records.h", "allocator/core/_encode.h", "allocator/core/_crc32c.h"]
# Python's own flags have -fwrapv, under which a signed overflow is defined, and the sanitizer says nothing of it
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-wrapv"]
SANITIZERS += ["-fno-omit-frame-pointer", "-g", "-O1"]

# Python's stable interface, so that one wheel serves 3.9 and all after it; records made from Python's own take 5 % less
# time. Builds without the interpreter's lock have no stable interface yet.
STABLE = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")

HEADER = Path(sysconfig.get_path("include")) / "Python.h"
ZIG = "ziglang>=0.13"
# -mcpu: else Zig uses instructions that other machines may lack
ZIG_CC = f"{shlex.quote(sys.executable)} -m ziglang cc -mcpu=baseline"


def wanted(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def compiler() -> str:
    """The command of the C compiler: the caller's or Python's own, else `cc`, else Zig's."""
    command: str = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if os.environ.get("CC") or shutil.which(command.split()[0]):
        return command
    return "cc" if shutil.which("cc") else ZIG_CC


def zig_to_fetch() -> list[str]:
    """What the build backend tells pip to install, besides build-system.requires, when pip asks."""
    # anywhere but in the backend, setuptools would install it itself, which it is about to give up
    asked = "setuptools.build_meta" in sys.modules and "egg_info" in sys.argv
    # for other machines there is no wheel, and pip would end the installation
    has_wheel = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    if not asked or not has_wheel or wanted("ALLOCATOR_PURE_PYTHON"):
        return []
    return [ZIG] if HEADER.is_file() and compiler() == ZIG_CC else []


def without(why: object) -> None:
    if wanted("ALLOCATOR_REQUIRE_EXTENSION"):
        raise SystemExit(f"{NAME} cannot be built: {why}")
    print(
        f"\nallocator: {NAME} is left out ({why}).\nRecords will be decoded in plain Python, 15 to 70 times slower. "
        "With Python.h (Debian: python3-dev), a C compiler and Cython 3.1 or newer, install again.\n",
        file=sys.stderr,
    )


class OptionalBuild(build_ext):
    """Goes on without what cannot be compiled."""

    def build_extension(self, ext: Any) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:  # noqa: BLE001 - distutils raises many kinds; none may end an installation
            without(error)
            self.distribution.ext_modules = [other for other in self.distribution.ext_modules if other is not ext]

    def copy_extensions_to_source(self) -> None:
        # in place, for an editable installation: setuptools expects each to be there
        self.extensions = [ext for ext in self.extensions if Path(self.get_ext_fullpath_built(ext)).exists()]
        super().copy_extensions_to_source()

    def get_ext_fullpath_built(self, ext: Any) -> str:
        return os.path.join(self.build_lib, self.get_ext_filename(self.get_ext_fullname(ext.name)))


class StableWheel(bdist_wheel):
    """One wheel for this Python and all that come after it; for any machine if the decoder was left out."""

    def finalize_options(self) -> None:
        if STABLE and self.distribution.ext_modules:
            self.py_limited_api = "cp39"
        super().finalize_options()

    def run(self) -> None:
        if self.distribution.ext_modules:
            self.run_command("build_ext")
            self.root_is_pure = not self.distribution.ext_modules
        super().run()


def extensions() -> list[Any]:
    if wanted("ALLOCATOR_PURE_PYTHON"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError as error:
        without(error)
        return []
    command = compiler()
    if command == ZIG_CC and importlib.util.find_spec("ziglang") is None:
        without("there is no C compiler" if HEADER.is_file() else f"there is no C compiler, and no {HEADER}")
        return []
    if command not in (os.environ.get("CC"), sysconfig.get_config_var("CC")):
        # Zig refuses some of the linker's options that Debian's Python has
        os.environ.update(CC=command, LDSHARED=f"{command} -shared")
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
    to_fetch = zig_to_fetch()
    setup(
        setup_requires=to_fetch,
        ext_modules=[] if to_fetch else extensions(),
        cmdclass={"build_ext": OptionalBuild, "bdist_wheel": StableWheel},
    )
