"""Shell patterns: pieces of quoted and unquoted text to a regular expression, and to the names it matches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from gpufleet.lab.simfs import Directory, FsError, SimFs, normal

_CLASSES = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "space": r"\s",
    "upper": "A-Z",
    "lower": "a-z",
    "xdigit": "0-9a-fA-F",
    "blank": r" \t",
    "punct": r"!-/:-@\[-`{-~",
}


@lru_cache(maxsize=1024)
def translate(pieces: tuple[tuple[str, bool], ...], *, slash: bool = True, lazy: bool = False) -> str:
    """Regular expression for (text, quoted) pieces; `*` and `?` cross a `/` only when `slash` is True.

    With `lazy` each `*` takes as little as it can, which makes a match from the left the shortest one.
    """
    out: list[str] = []
    any_one = "." if slash else "[^/]"
    for text, quoted in pieces:
        if quoted:
            out.append(re.escape(text))
            continue
        at = 0
        while at < len(text):
            character = text[at]
            at += 1
            if character == "*":
                out.append(f"{any_one}*?" if lazy else f"{any_one}*")
            elif character == "?":
                out.append(any_one)
            elif character == "\\" and at < len(text):
                out.append(re.escape(text[at]))
                at += 1
            elif character == "[":
                found, at = _bracket(text, at)
                out.append(found)
            else:
                out.append(re.escape(character))
    return "".join(out)


def _bracket(text: str, at: int) -> tuple[str, int]:
    """The set that begins behind `[`, and where it ends; a lone bracket stands for itself."""
    end = at + 1 if text[at : at + 1] in {"!", "^"} else at
    end = text.find("]", end + 1)
    while end >= 0 and text.count("[:", at, end) > text.count(":]", at, end + 1):
        end = text.find("]", end + 1)
    if end < 0:
        return r"\[", at
    inner = text[at:end]
    negated = inner[:1] in {"!", "^"}
    inner = re.sub(r"([\\\[\]&~|^])(?!:)", r"\\\1", inner[1:] if negated else inner)
    for name, characters in _CLASSES.items():
        inner = inner.replace(rf"\[:{name}:\]", characters).replace(f"[:{name}:\\]", characters)
        inner = inner.replace(f"[:{name}:]", characters)
    return f"[{'^' if negated else ''}{inner}]", end + 1


def matches(pieces: Sequence[tuple[str, bool]], subject: str) -> bool:
    """Whether the whole subject matches, as `case` asks."""
    return re.fullmatch(translate(tuple(pieces)), subject, re.DOTALL) is not None


def strip(operator: str, pieces: Sequence[tuple[str, bool]], subject: str) -> str:
    """`#` `##` `%` `%%` of a value."""
    expression = translate(tuple(pieces), lazy=operator == "#")
    match operator:
        case "#" | "##":
            found = re.match(expression, subject, re.DOTALL)
            return subject[found.end() :] if found else subject
        case "%":
            found = re.match(rf"(.*)(?:{expression})\Z", subject, re.DOTALL)
            return found[1] if found else subject
        case _:
            found = re.search(rf"(?:{expression})\Z", subject, re.DOTALL)
            return subject[: found.start()] if found else subject


def names(fs: SimFs, cwd: str, user: str, pieces: Sequence[tuple[str, bool]]) -> list[str]:
    """Sorted paths that a field matches, written as the field is (relative stays relative)."""
    levels: list[list[tuple[str, bool]]] = [[]]
    for text, quoted in pieces:
        for index, part in enumerate(text.split("/")):
            if index:
                levels.append([])
            if part:
                levels[-1].append((part, quoted))
    found = [""]
    for index, level in enumerate(levels):
        last = index == len(levels) - 1
        found = [entry for prefix in found for entry in _below(fs, cwd, user, prefix, level, last=last)]
    return sorted(found)


def _below(
    fs: SimFs, cwd: str, user: str, prefix: str, level: list[tuple[str, bool]], *, last: bool
) -> list[str]:
    closing = "" if last else "/"
    if not level:
        return [prefix + closing]
    if not any(not quoted and re.search(r"[*?\[]", text) for text, quoted in level):
        name = "".join(text for text, _ in level)
        here = prefix + name
        node = fs.seek(normal(here, cwd), user, follow=not last)
        return [here + closing] if node is not None and (last or isinstance(node, Directory)) else []
    expression = re.compile(translate(tuple(level), slash=False), re.DOTALL)
    hidden = level[0][0].startswith(".")
    try:
        candidates = fs.names(normal(prefix or ".", cwd), user)
    except FsError:
        return []
    hits = [name for name in candidates if (hidden or name[0] != ".") and expression.fullmatch(name)]
    if last:
        return [prefix + name for name in hits]
    inside = [name for name in hits if isinstance(fs.seek(normal(prefix + name, cwd), user), Directory)]
    return [f"{prefix}{name}/" for name in inside]
