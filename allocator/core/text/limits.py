"""Explains which limit of the operating system or container caused an error, and how to raise it."""

from __future__ import annotations

import errno
import resource

_MEMORY = "out of memory: raise the memory limit of the process (ulimit -v) or of its container"
_THREADS = "no further thread can start: raise the limit of processes (ulimit -u) or of memory"
_OF_ERRNO = {
    errno.EMFILE: "too many open files for the limit of {files}: raise it (ulimit -n)",
    errno.ENFILE: "too many open files on this machine: raise fs.file-max",
    errno.ENOMEM: _MEMORY,
    errno.ENOSPC: "no space left on the device{place}: free some, or write elsewhere",
    errno.EDQUOT: "the disk quota is used up{place}: free some space, or write elsewhere",
}
# texts of errors other than MemoryError after a failed allocation: from the dynamic linker, and within an import
_OF_TEXT = {
    "failed to map segment": _MEMORY,
    "annot allocate memory": _MEMORY,
    "without setting an exception": _MEMORY,
    "without exception set": _MEMORY,
    "can't start new thread": _THREADS,
    "unable to start watchdog thread": _THREADS,
}


def limit_reached(error: BaseException) -> str | None:
    """Returns which limit caused `error` and what to do, in one line; None if it has another cause."""
    if isinstance(error, MemoryError):
        return _MEMORY
    if isinstance(error, OSError) and error.errno in _OF_ERRNO:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        place = f" of {error.filename}" if error.filename else ""
        return _OF_ERRNO[error.errno].format(files=files, place=place)
    if isinstance(error, (ImportError, RuntimeError, SystemError)):
        return next((what for words, what in _OF_TEXT.items() if words in str(error)), None)
    return None
