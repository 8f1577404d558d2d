"""The diagram in the architecture page is drawn from the table, so it cannot lie."""

from __future__ import annotations

from pathlib import Path

from gpufleet.change.table import REOPENED, TRANSITIONS, Phase

PAGE = Path(__file__).parents[3] / "docs" / "architecture" / "change-machine.md"
BEGIN, END = "```mermaid\n", "```\n<!-- end -->"


def drawn() -> str:
    """The table as a state diagram; arrows between the same two phases share one line."""
    words: dict[tuple[Phase, Phase], list[str]] = {}
    for (phase, (act, sign)), to in TRANSITIONS.items():
        words.setdefault((phase, to), []).append(f"{act.value} {sign.replace('_', ' ')}")
    for phase, to in REOPENED.items():
        words.setdefault((phase, to), []).append("another process takes over")
    lines = [f"    {here} --> {there}: {', '.join(said)}" for (here, there), said in words.items()]
    return "\n".join(["stateDiagram-v2", "    [*] --> pending", *lines]) + "\n"


def renewed(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + drawn() + END + after


def test_the_diagram_is_fresh():
    text = PAGE.read_text(encoding="utf-8")
    assert BEGIN in text
    assert renewed(text) == text, "run `python -m tests.unit.change.test_machine_page`"


def test_every_module_is_named():
    text = PAGE.read_text(encoding="utf-8")
    room = Path(__file__).parents[3] / "gpufleet" / "change"
    missing = [path.stem for path in room.glob("[a-z]*.py") if f"`{path.stem}`" not in text]
    assert missing == []


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
