"""What a plan pulls and runs: the image as it was written, and the digest that its tag meant."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.deploy.staging import images


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What is pulled and run.

    Attributes:
        written: as the pool says it.
        digest: what the tag meant when the plan was made; empty when that is not known, or written already.
        image: id by which it is run, where a host has it without its digest; empty otherwise.
    """

    written: str
    digest: str = ""
    image: str = ""

    @property
    def reference(self) -> str:
        """For the runtime."""
        return self.image or self.pulled

    @property
    def pulled(self) -> str:
        """For a registry."""
        return images.pinned(self.written, self.digest) if self.digest else self.written

    @property
    def lasting(self) -> str:
        """For the record of a revision: what a later plan can have again."""
        return self.pulled if self.digest or "@" in self.written else self.reference

    @property
    def label(self) -> str:
        """For the container's label: what was written, with what it meant; empty when that is not known."""
        return f"{self.written}@{self.digest}" if self.digest else ""
