"""Option letters of utilities, as getopt reads them; an option nobody implemented is refused loudly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpufleet.lab.shell.call import Call
from gpufleet.lab.shell.syntax import Unsupported


@dataclass(slots=True)
class Options:
    """Flags that were given, values of options that take one, and what is left."""

    flags: set[str] = field(default_factory=set)
    values: dict[str, list[str]] = field(default_factory=dict)
    operands: list[str] = field(default_factory=list)

    def __contains__(self, letter: str) -> bool:
        return letter in self.flags or letter in self.values

    def last(self, letter: str, default: str = "") -> str:
        """The value of an option, the last when it was given twice."""
        return self.values.get(letter, [default])[-1]


def read_options(
    call: Call,
    flags: str = "",
    valued: str = "",
    *,
    words: Mapping[str, str] | None = None,
    stop: bool = False,
) -> Options:
    """Read `call.argv`. `words` maps long options to letters; `stop` ends at the first operand."""
    found = Options()
    rest = call.arguments
    while rest:
        word = rest.pop(0)
        if word == "--":
            found.operands += rest
            break
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            letter = (words or {}).get(name)
            if letter is None:
                raise Unsupported(f"{call.argv[0]} {word}")
            if letter in valued:
                found.values.setdefault(letter, []).append(value if given else _following(call, rest, word))
            else:
                found.flags.add(letter)
        elif word.startswith("-") and len(word) > 1:
            _letters(call, word[1:], rest, found, (flags, valued))
        else:
            found.operands.append(word)
            if stop:
                found.operands += rest
                break
    return found


def _letters(call: Call, letters: str, rest: list[str], found: Options, known: tuple[str, str]) -> None:
    flags, valued = known
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter in valued:
            found.values.setdefault(letter, []).append(letters or _following(call, rest, f"-{letter}"))
            return
        if letter not in flags:
            raise Unsupported(f"{call.argv[0]} -{letter}")
        found.flags.add(letter)


def _following(call: Call, rest: list[str], option: str) -> str:
    if not rest:
        raise Unsupported(f"{call.argv[0]} {option} without its value")
    return rest.pop(0)
