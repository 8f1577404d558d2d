"""The program of a giver, as its container runs it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpufleet.deploy.staging import give


@contextmanager
def giver(store: Path, word: str) -> Iterator[str]:
    """Its address; what it gives lies below `word`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"GPUFLEET_GIVE": word, "GPUFLEET_STORE": str(store), "GPUFLEET_PORT": str(port)}
    process = subprocess.Popen(
        [sys.executable, "-c", give.PYTHON], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
