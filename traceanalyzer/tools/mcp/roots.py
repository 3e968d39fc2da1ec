"""Folders whose files tools may read."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from traceanalyzer.errors import OptionError, UnreadableFile


class Roots:
    """Folders whose files may be read.

    Args:
        folders: existing folders.

    Raises:
        UnreadableFile: a folder does not exist.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        for folder in folders:
            if not os.path.isdir(folder):  # noqa: PTH112 - names, not Paths
                raise UnreadableFile(folder, "no such folder", hint="choose another --root")
        self.folders = tuple(os.path.realpath(folder) for folder in folders)

    def resolve(self, path: str) -> str:
        """Return the real path of a file or folder below a root.

        Args:
            path: absolute, or relative to a root; the first root that has it.

        Raises:
            OptionError: the path, with links resolved, is outside all roots.
            UnreadableFile: it does not exist, or is neither a file nor a folder.
        """
        if "\0" in path:
            raise OptionError("a path must not contain a null character")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise OptionError("a path must not contain half of a character (surrogate)") from None
        reals = [os.path.realpath(os.path.join(root, path)) for root in self.folders]  # noqa: PTH118
        inside = [real for real in reals if self.contains(real)]
        if not inside:
            raise OptionError(f"{path}: outside the folders of this server; see --root")
        for real in inside:
            try:
                mode = os.stat(real).st_mode  # noqa: PTH116
            except OSError:
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise UnreadableFile(path, "is neither a file nor a folder")
            return real
        raise UnreadableFile(path, "no such file or folder")

    def contains(self, real: str) -> bool:
        """Whether a real path is a root or below one."""
        return any(os.path.commonpath((root, real)) == root for root in self.folders)

    def files(self, path: str) -> list[tuple[str, int, int]]:
        """Return path, size and time of change of a file, or of all files in a folder.

        Raises:
            OptionError: a link in the folder leads to a file outside all roots.
        """
        top = self.resolve(path)
        if not os.path.isdir(top):  # noqa: PTH112
            return [_signature(top)]
        signatures = []
        for base, folders, names in os.walk(top):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(name for name in names if not name.startswith(".")):
                file = os.path.join(base, name)  # noqa: PTH118
                if not self.contains(os.path.realpath(file)):
                    raise OptionError(
                        f"{path}: {name} is a link to a file outside the folders of this server; "
                        "pass the other files instead of the folder"
                    )
                signatures.append(_signature(file))
        return signatures


def _signature(path: str) -> tuple[str, int, int]:
    try:
        about = os.stat(path)  # noqa: PTH116
    except OSError:  # a broken link
        return path, 0, 0
    return path, about.st_size, about.st_mtime_ns
