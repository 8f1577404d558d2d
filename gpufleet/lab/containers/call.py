"""One call of `docker` or `podman`: its words, its streams, and how the engine's refusals are printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpufleet.lab.containers.model import Container, Refused
from gpufleet.lab.containers.podman import worded
from gpufleet.lab.containers.simcontainer import ContainerEngine
from gpufleet.lab.containers.templates import TemplateFault, render
from gpufleet.lab.containers.words import Words, read_words
from gpufleet.lab.shell.call import Call
from gpufleet.lab.shell.streams import byte_text

Verb = Callable[["Invocation"], int]


class Invocation:
    """One `docker ...` on one host."""

    def __init__(self, call: Call, engine: ContainerEngine, words: Sequence[str]) -> None:
        self.call = call
        self.engine = engine
        self.words = list(words)

    def say(self, *lines: str) -> None:
        """Lines on standard output, as UTF-8."""
        self.call.say(*(byte_text(line) for line in lines))

    def complain(self, text: str, status: int = 1) -> int:
        """A line on standard error."""
        return self.call.complain(byte_text(text), status)

    def refuse(self, refused: Refused) -> int:
        """An answer of the daemon that is no."""
        if self.engine.kind == "podman":
            text, status = worded(refused.text, refused.status)
            return self.complain(f"Error: {text}", status)
        return self.complain(f"Error response from daemon: {refused.text}")

    def read(self, flags: str, valued: str) -> Words:
        """Options of this verb; each is a name, long or of one letter, separated by blanks."""
        return read_words(self.words, flags.split(), valued.split())

    def each(self, names: Sequence[str], act: Callable[[Container], None]) -> int:
        """Do something to each container and print its name."""
        status = 0
        for name in names:
            try:
                act(self.engine.find(name))
            except Refused as refused:
                status = self.refuse(refused)
            else:
                self.say(name)
        return status

    def print_as(self, template: str, values: Sequence[Mapping[str, Any]]) -> int:
        """Each value through a template."""
        for value in values:
            try:
                self.say(render(template, value))
            except TemplateFault as fault:
                return self.complain(f"template parsing error: {fault}")
        return 0
