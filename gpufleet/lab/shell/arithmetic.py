"""`$((...))`: integers of 64 bits, C's operators and precedences, assignments to shell variables."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|[0-9]+)|([A-Za-z_][A-Za-z0-9_]*)"
    r"|(<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%&|^~!<>?:()=]))"
)
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)


class ArithmeticFault(Exception):
    """The expression cannot be evaluated."""


def _quotient(left: int, right: int) -> int:
    if right == 0:
        raise ArithmeticFault("division by zero")
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _remainder(left: int, right: int) -> int:
    return left - right * _quotient(left, right)


_APPLY: dict[str, Callable[[int, int], int]] = {
    "|": operator.or_,
    "^": operator.xor,
    "&": operator.and_,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": _remainder,
}


def number(text: str) -> int:
    """Decimal, `0x` hexadecimal or `0` octal; an empty text is 0."""
    text = text.strip()
    sign, digits = (-1, text[1:]) if text[:1] == "-" else (1, text)
    try:
        if digits[:2].lower() == "0x":
            return sign * int(digits, 16)
        return sign * int(digits or "0", 8 if len(digits) > 1 and digits[0] == "0" else 10)
    except ValueError:
        raise ArithmeticFault(f"Illegal number: {text}") from None


def evaluate(text: str, variables: dict[str, str]) -> int:
    """The value of an expression; assignments change `variables`."""
    evaluation = _Evaluation(text, variables)
    value = evaluation.ternary(live=True) if evaluation.tokens else 0
    if evaluation.at < len(evaluation.tokens):
        raise ArithmeticFault(f"arithmetic expression: unexpected {evaluation.tokens[evaluation.at]!r}")
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


class _Evaluation:
    """One expression; a branch that is not `live` is parsed and changes nothing."""

    def __init__(self, text: str, variables: dict[str, str]) -> None:
        self.variables = variables
        self.tokens: list[str] = []
        self.at = 0
        at = 0
        text = text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ArithmeticFault(f"arithmetic expression: unexpected {text[at:]!r}")
            self.tokens.append(found.group().strip())
            at = found.end()

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def ternary(self, *, live: bool) -> int:
        name = self._peek()
        following = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ""
        assigns = following == "=" or (following[-1:] == "=" and following[:-1] in _APPLY)
        if name[:1].isidentifier() and assigns and following not in {"==", "<=", ">=", "!="}:
            return self._assign(name, following, live=live)
        value = self._binary(0, live=live)
        if self._peek() != "?":
            return value
        self.at += 1
        yes = self.ternary(live=live and bool(value))
        if self._peek() != ":":
            raise ArithmeticFault("arithmetic expression: expecting ':'")
        self.at += 1
        no = self.ternary(live=live and not value)
        return yes if value else no

    def _assign(self, name: str, symbol: str, *, live: bool) -> int:
        self.at += 2
        value = self.ternary(live=live)
        if live and symbol != "=":
            value = _APPLY[symbol[:-1]](number(self.variables.get(name, "")), value)
        if live:
            self.variables[name] = str(value)
        return value

    def _binary(self, level: int, *, live: bool) -> int:
        if level == len(_LEVELS):
            return self._unary(live=live)
        left = self._binary(level + 1, live=live)
        while (symbol := self._peek()) in _LEVELS[level]:
            self.at += 1
            if symbol == "&&":
                right = self._binary(level + 1, live=live and bool(left))
                left = int(bool(left) and bool(right))
            elif symbol == "||":
                right = self._binary(level + 1, live=live and not left)
                left = int(bool(left) or bool(right))
            else:
                right = self._binary(level + 1, live=live)
                left = int(_APPLY[symbol](left, right)) if live else 0
        return left

    def _unary(self, *, live: bool) -> int:
        token = self._peek()
        self.at += 1
        match token:
            case "-":
                return -self._unary(live=live)
            case "+":
                return self._unary(live=live)
            case "~":
                return ~self._unary(live=live)
            case "!":
                return int(not self._unary(live=live))
            case "(":
                value = self.ternary(live=live)
                if self._peek() != ")":
                    raise ArithmeticFault("arithmetic expression: expecting ')'")
                self.at += 1
                return value
            case _:
                return self._operand(token)

    def _operand(self, token: str) -> int:
        if token[:1].isdigit():
            return number(token)
        if token[:1].isidentifier():
            return number(self.variables.get(token, ""))
        raise ArithmeticFault("arithmetic expression: expecting primary")
