"""Which programs stand where on a simulated host."""

from __future__ import annotations

from gpufleet.lab.shell.call import Program
from gpufleet.lab.shell.digest_tools import DIGEST_TOOLS
from gpufleet.lab.shell.file_tools import FILE_TOOLS
from gpufleet.lab.shell.system_tools import SYSTEM_TOOLS
from gpufleet.lab.shell.text_tools import TEXT_TOOLS
from gpufleet.lab.simhost import SimHost

UTILITIES: dict[str, Program] = {**TEXT_TOOLS, **DIGEST_TOOLS, **FILE_TOOLS, **SYSTEM_TOOLS}
OPTIONAL = frozenset(
    {
        "docker",
        "podman",
        "nerdctl",
        "nvidia-smi",
        "nvidia-ctk",
        "nvidia-modprobe",
        "modprobe",
        "curl",
        "timeout",
        "sudo",
        "base64",
        "ss",
        "systemctl",
    }
)
"""Programs that a host may lack."""


def install(
    host: SimHost, programs: dict[str, Program] | None = None, without: frozenset[str] = frozenset()
) -> None:
    """Put the utilities, and `programs`, into /usr/bin; /bin is the same directory on a merged system."""
    host.known_programs = OPTIONAL
    for name, program in {**UTILITIES, **(programs or {})}.items():
        if name in without:
            continue
        for directory in ("/usr/bin", "/bin"):
            host.programs[f"{directory}/{name}"] = program
