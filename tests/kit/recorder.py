"""What programs on simulated hosts were really given: every argument list, and the environment files of containers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from gpufleet.lab.fleet import Fleet, LabHost
from gpufleet.lab.shell.call import Call, Program


def text_of(word: str) -> str:
    """The lab's byte text as text."""
    return word.encode("latin-1").decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Ran:
    """One program that ran: where, its words with its own name first, what it could read as its environment file."""

    host: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    env_file: str = ""


@dataclass
class Recorder:
    """Stands around every program of every host of a fleet."""

    ran: list[Ran] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, program: str, *first: str) -> list[Ran]:
        """Runs of a program whose words begin with `first`."""
        return [
            one
            for one in self.ran
            if one.argv[0].rpartition("/")[2] == program and one.argv[1 : 1 + len(first)] == first
        ]

    def words(self) -> list[str]:
        """Every word and every exported variable that any program was given."""
        exported = [value for one in self.ran for value in one.environment.values()]
        return [word for one in self.ran for word in one.argv] + exported


def record(fleet: Fleet) -> Recorder:
    """Record from now on."""
    recorder = Recorder()
    for lab in fleet:
        wrapped: dict[int, Program] = {}
        for path, program in list(lab.host.programs.items()):
            around = wrapped.setdefault(id(program), _around(recorder, lab, program))
            lab.host.programs[path] = around
    return recorder


def _around(recorder: Recorder, lab: LabHost, program: Program) -> Program:
    def run(call: Call) -> int:
        argv = tuple(text_of(word) for word in call.argv)
        env_file = ""
        if "--env-file" in argv:
            content = lab.host.fs.read(call.argv[argv.index("--env-file") + 1])
            env_file = content.decode("utf-8", "surrogateescape")
        environment = {key: text_of(value) for key, value in call.env.items()}
        with recorder.lock:
            recorder.ran.append(Ran(lab.name, argv, environment, env_file))
        return program(call)

    return run
