"""Files that are written whole: under a temporary name beside them, synced, renamed, and the folder synced.

So whoever reads sees the old content or the new, whatever ends the writer; a file that cannot be written is left
as it was.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Put `content` at `path`; missing folders are made, private to the user.

    Raises:
        OSError: nothing was written, and no temporary file is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
