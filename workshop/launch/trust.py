"""Who could put another file in the place of one that is trusted."""

import contextlib
import os
import stat
from pathlib import Path

WHAT_FOR = "and so could put a server of their own in the place of the class's."
REMEDY = "Ask the folder's owner to close it: chmod go-w."


def who_could_swap(path: Path) -> str:
    """Return who, besides its owner, root and this user, could change or replace a file ('' if nobody could).

    Looks at the file, its folder, and the folders above. In a folder with the sticky bit everybody may add files but
    replace only their own: there the file has to be the folder's owner's.
    """
    if os.name != "posix":
        return ""
    with contextlib.suppress(OSError):
        path = path.resolve()
        file, folder = path.stat(), path.parent.stat()
        if file.st_mode & 0o022:
            return f"{_whom(path)} may change {path},"
        if folder.st_mode & 0o022 and file.st_uid not in (folder.st_uid, 0, os.geteuid()):
            return f"{_user(path)}, who does not own {path.parent}, owns {path},"
        for part in path.parents:
            info = part.stat()
            if info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX:
                return f"{_whom(part)} may replace what lies in {part},"
    return ""


def _whom(path: Path) -> str:
    if path.stat().st_mode & 0o002:
        return "Everybody on this machine"
    with contextlib.suppress(KeyError):
        return f"Members of the group {path.group()}"
    return f"Members of the group {path.stat().st_gid}"


def _user(path: Path) -> str:
    with contextlib.suppress(KeyError):
        return path.owner()
    return f"User {path.stat().st_uid}"
