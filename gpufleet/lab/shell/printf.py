"""`printf`: formats, and the escapes of `%b`."""

from __future__ import annotations

import re

from gpufleet.lab.shell.arithmetic import ArithmeticFault, number

_SPEC = re.compile(r"%([-+ 0#]*)(\d+|\*)?(?:\.(\d+))?([a-zA-Z%])")
_ESCAPE = re.compile(r"\\(?:([abfnrtv\\\"'])|0?([0-7]{1,3})|(.)|$)", re.DOTALL)
_LETTERS = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    '"': '"',
    "'": "'",
}


class PrintfFault(Exception):
    """A format that is not in the dialect."""


def escapes(text: str) -> str:
    """Backslash escapes of a format."""

    def replaced(found: re.Match[str]) -> str:
        if found.group(1):
            return _LETTERS[found.group(1)]
        if found.group(2):
            return chr(int(found.group(2), 8) & 255)
        return found.group(0)

    return _ESCAPE.sub(replaced, text) if "\\" in text else text


def printf(template: str, arguments: list[str]) -> tuple[str, int]:
    """The text and the exit status; the format is used again while arguments are left."""
    left = list(arguments)
    out: list[str] = []
    faults: list[str] = []
    while True:
        before = len(left)
        at = 0
        for found in _SPEC.finditer(template):
            out.append(escapes(template[at : found.start()]))
            out.append(_one(found, left, faults))
            at = found.end()
        out.append(escapes(template[at:]))
        if "%" in _SPEC.sub("", template):
            raise PrintfFault(f"{template}: invalid format")
        if not left or len(left) == before:
            return "".join(out), 1 if faults else 0


def _one(found: re.Match[str], left: list[str], faults: list[str]) -> str:
    flags, width, precision, kind = found.groups()
    if kind == "%":
        return "%"
    if width == "*":
        raise PrintfFault("%*: not in the dialect")
    value = left.pop(0) if left else ""
    if kind in {"s", "b"}:
        text = escapes(value) if kind == "b" else value
        text = text if precision is None else text[: int(precision)]
        return text.ljust(int(width or 0)) if "-" in flags else text.rjust(int(width or 0))
    if kind == "c":
        return value[:1]
    if kind not in "diuoxX":
        raise PrintfFault(f"%{kind}: not in the dialect")
    try:
        whole = number(value)
    except ArithmeticFault:
        faults.append(value)
        whole = int((re.match(r"\s*[-+]?\d*", value) or [""])[0] or 0)
    spec = f"%{flags}{width or ''}{'.' + precision if precision else ''}{kind}"
    return spec % whole
