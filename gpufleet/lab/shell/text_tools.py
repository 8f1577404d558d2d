"""Utilities that turn text into text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpufleet.lab.shell.arithmetic import ArithmeticFault, number
from gpufleet.lab.shell.call import Call, Program
from gpufleet.lab.shell.options import Options, read_options
from gpufleet.lab.shell.printf import escapes
from gpufleet.lab.shell.syntax import Unsupported
from gpufleet.lab.simfs import FsError


def lines_of(text: str) -> list[str]:
    """Lines without their ends; only a line feed ends a line."""
    pieces = text.split("\n")
    if pieces[-1] == "":
        pieces.pop()
    return pieces


def inputs(call: Call, names: list[str]) -> Iterator[tuple[str, str | None]]:
    """(name, content) of each operand, standard input without one; None after a complaint."""
    for name in names or ["-"]:
        if name == "-":
            yield name, call.stdin.rest()
            continue
        if name in {"/dev/null", "/dev/stdin"}:
            yield name, call.stdin.rest() if name == "/dev/stdin" else ""
            continue
        try:
            content = call.host.fs.read(call.host.fs_path(name, call.cwd), call.user).decode("latin-1")
        except FsError as refused:
            call.complain(f"{call.argv[0]}: {name}: {refused}")
            yield name, None
        else:
            yield name, content


def _cat(call: Call) -> int:
    status = 0
    for _, content in inputs(call, read_options(call).operands):
        if content is None:
            status = 1
        else:
            call.out.write(content)
    return status


def _head_tail(call: Call) -> int:
    words = list(call.argv)
    if len(words) > 1 and re.fullmatch(r"-\d+", words[1]):
        words[1:2] = ["-n", words[1][1:]]
    call.argv = words
    options = read_options(call, "q", "nc")
    head = call.argv[0].endswith("head")
    unit = "c" if "c" in options else "n"
    count = options.last(unit, "10")
    if not re.fullmatch(r"[-+]?\d+", count):
        return call.complain(f"{call.argv[0]}: invalid number of lines: '{count}'")
    if len(options.operands) > 1:
        raise Unsupported(f"{call.argv[0]} of several files")
    if head and unit == "n" and count.isdigit() and options.operands in ([], ["-"]):
        for _ in range(int(count)):
            call.out.write(call.stdin.line() or "")
        return 0
    if head and unit == "c" and count.isdigit() and options.operands in ([], ["-"]):
        call.out.write(call.stdin.take(int(count)))
        return 0
    status = 0
    for _, content in inputs(call, options.operands):
        if content is None:
            status = 1
            continue
        pieces: list[str] = re.findall(r"[^\n]*\n|[^\n]+", content) if unit == "n" else list(content)
        call.out.write("".join(_cut_out(pieces, count, head=head)))
    return status


def _cut_out(pieces: list[str], count: str, *, head: bool) -> list[str]:
    size = int(count.lstrip("+-"))
    if head:
        return pieces[: max(0, len(pieces) - size)] if count.startswith("-") else pieces[:size]
    if count.startswith("+"):
        return pieces[max(0, size - 1) :]
    return pieces[len(pieces) - size :] if size and size < len(pieces) else (pieces if size else [])


def _basic(pattern: str) -> str:
    """A POSIX basic regular expression as Python's."""
    out, at = [], 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "\\" and at < len(pattern):
            following = pattern[at]
            at += 1
            out.append(following if following in "(){}|+?" else re.escape(following))
        elif character == "[":
            end = pattern.find("]", at + 1 + (pattern[at : at + 1] == "^"))
            while end >= 0 and pattern.count("[:", at, end) > pattern.count(":]", at, end + 1):
                end = pattern.find("]", end + 1)
            if end < 0:
                raise Unsupported(f"grep {pattern}")
            out.append(pattern[at - 1 : end + 1])
            at = end + 1
        elif character in "(){}|+?" or (character == "*" and not out):
            out.append(re.escape(character))
        else:
            out.append(character)
    return "".join(out)


_CLASSES = {
    "space": r"\s",
    "digit": "0-9",
    "alpha": "a-zA-Z",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "xdigit": "0-9a-fA-F",
    "blank": r" \t",
}


def _expression(pattern: str, options: Options) -> re.Pattern[str]:
    if "F" in options:
        source = re.escape(pattern)
    else:
        source = pattern if "E" in options else _basic(pattern)
        for name, characters in _CLASSES.items():
            source = source.replace(f"[:{name}:]", characters)
    if "x" in options:
        source = rf"\A(?:{source})\Z"
    elif "w" in options:
        source = rf"(?<!\w)(?:{source})(?!\w)"
    return re.compile(source, re.IGNORECASE if "i" in options else 0)


def _grep(call: Call) -> int:
    options = read_options(call, "qFEvcixwosnlh", "em")
    operands = options.operands
    patterns = options.values.get("e") or operands[:1]
    files = operands if "e" in options else operands[1:]
    if not patterns:
        return call.complain("Usage: grep [OPTION]... PATTERNS [FILE]...", 2)
    expressions = [_expression(line, options) for pattern in patterns for line in pattern.split("\n")]
    found = fault = False
    for name, content in inputs(call, files):
        if content is None:
            fault = True
            continue
        prefix = f"{name}:" if len(files) > 1 and "h" not in options else ""
        found = _grep_one(call, options, expressions, content, (prefix, name)) or found
        if found and "q" in options:
            return 0
    return 2 if fault else int(not found)


def _grep_one(
    call: Call, options: Options, expressions: list[re.Pattern[str]], content: str, names: tuple[str, str]
) -> bool:
    prefix, name = names
    limit = int(options.last("m", "0"))
    count = 0
    for index, line in enumerate(lines_of(content), 1):
        hits = [found for expression in expressions for found in expression.finditer(line)]
        if bool(hits) == ("v" in options):
            continue
        count += 1
        if not {"q", "c", "l"} & options.flags:
            place = f"{prefix}{index}:" if "n" in options else prefix
            shown = [hit.group() for hit in hits if hit.group()] if "o" in options else [line]
            call.say(*(f"{place}{text}" for text in shown))
        if limit and count >= limit:
            break
    if "c" in options and "q" not in options:
        call.say(f"{prefix}{count}")
    if "l" in options and count:
        call.say(name)
    return count > 0


def _ranges(text: str) -> list[tuple[int, int]]:
    out = []
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        low = int(first or 1)
        out.append((low, (int(last) if last else 1 << 60) if dash else low))
    return out


def _cut(call: Call) -> int:
    options = read_options(call, "s", "dfcb")
    wanted = _ranges(options.last("f") or options.last("c") or options.last("b"))
    delimiter = options.last("d", "\t")
    for _, content in inputs(call, options.operands):
        if content is None:
            return 1
        for line in lines_of(content):
            units: list[str] = line.split(delimiter) if "f" in options else list(line)
            if "f" in options and len(units) == 1:
                if "s" not in options:
                    call.say(line)
                continue
            kept = [
                unit for at, unit in enumerate(units, 1) if any(low <= at <= high for low, high in wanted)
            ]
            call.say((delimiter if "f" in options else "").join(kept))
    return 0


def _tr_set(text: str) -> str:
    for name, characters in {
        "upper": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "lower": "abcdefghijklmnopqrstuvwxyz",
        "digit": "0123456789",
        "space": " \t\n\r\f\v",
    }.items():
        text = text.replace(f"[:{name}:]", characters)
    if "[:" in text or "[=" in text:
        raise Unsupported(f"tr {text}")
    text = escapes(text)
    return re.sub(
        r"(.)-(.)", lambda f: "".join(map(chr, range(ord(f[1]), ord(f[2]) + 1))), text, flags=re.DOTALL
    )


def _tr(call: Call) -> int:
    options = read_options(call, "dsc", stop=True)
    sets = [_tr_set(operand) for operand in options.operands]
    text = call.stdin.rest()
    first = sets[0]
    if "c" in options:
        first = "".join(chr(code) for code in range(256) if chr(code) not in first)
    if "d" in options:
        text = text.translate(str.maketrans("", "", first))
    elif len(sets) == 2:
        second = sets[1].ljust(len(first), sets[1][-1:])[: len(first)]
        text = text.translate(str.maketrans(first, second))
    if "s" in options:
        text = re.sub(f"([{re.escape(sets[-1] if len(sets) == 2 else first)}])\\1+", r"\1", text)
    call.out.write(text)
    return 0


def _wc(call: Call) -> int:
    options = read_options(call, "lcwm")
    if len(options.operands) > 1 or len(options.flags) != 1:
        raise Unsupported("wc without exactly one of -l -c -w, or of several files")
    for name, content in inputs(call, options.operands):
        if content is None:
            return 1
        flag = next(iter(options.flags))
        count = {"l": content.count("\n"), "w": len(content.split())}.get(flag, len(content))
        call.say(f"{count}" if name == "-" else f"{count} {name}")
    return 0


def _sort(call: Call) -> int:
    options = read_options(call, "nru", "kt")
    pieces = []
    for _, content in inputs(call, options.operands):
        if content is None:
            return 2
        pieces += lines_of(content)
    call.say(*_sorted(pieces, options))
    return 0


def _sorted(pieces: list[str], options: Options) -> list[str]:
    found = re.fullmatch(r"(\d+)(?:,(\d+))?(n?)(r?)", options.last("k", "1"))
    if found is None:
        raise Unsupported(f"sort -k {options.last('k')}")
    first, last = int(found[1]), int(found[2] or 1 << 30)
    numeric = "n" in options or bool(found[3])

    def key(line: str) -> float | str:
        field = line
        if "k" in options:
            cells = line.split(options.last("t")) if "t" in options else line.split()
            field = " ".join(cells[first - 1 : last])
        if not numeric:
            return field
        value = re.match(r"\s*-?\d*\.?\d*", field)
        text = value.group().strip() if value else ""
        return float(text) if text not in {"", "-", "."} else 0.0

    reverse = "r" in options or bool(found[4])
    if "u" in options:
        pieces = list({key(line): line for line in reversed(pieces)}.values())
    return sorted(sorted(pieces, reverse=reverse), key=key, reverse=reverse)


def _uniq(call: Call) -> int:
    options = read_options(call, "cdu")
    before: str | None = None
    groups: list[tuple[str, int]] = []
    for _, content in inputs(call, options.operands):
        for line in lines_of(content or ""):
            if line == before:
                groups[-1] = (line, groups[-1][1] + 1)
            else:
                groups.append((line, 1))
            before = line
    for line, count in groups:
        if ("d" in options and count == 1) or ("u" in options and count > 1):
            continue
        call.say(f"{count:7d} {line}" if "c" in options else line)
    return 0


def _seq(call: Call) -> int:
    try:
        values = [number(word) for word in call.arguments]
    except ArithmeticFault as fault:
        return call.complain(f"seq: {fault}")
    first, step, last = {1: (1, 1, values[0]), 2: (values[0], 1, values[-1])}.get(
        len(values), (values[0], values[1] if len(values) > 1 else 1, values[-1])
    )
    call.say(*(str(value) for value in range(first, last + (1 if step > 0 else -1), step)))
    return 0


def _tee(call: Call) -> int:
    options = read_options(call, "a")
    text = call.stdin.rest()
    call.out.write(text)
    for name in options.operands:
        path = call.host.fs_path(name, call.cwd)
        try:
            node = call.host.fs.open_write(path, call.user, append="a" in options)
            call.host.fs.extend(path, node, text.encode("latin-1"))
        except FsError as refused:
            return call.complain(f"tee: {name}: {refused}")
    return 0


def _basename(call: Call) -> int:
    words = call.arguments
    name = words[0].rstrip("/").rpartition("/")[2] or "/"
    if len(words) > 1 and name != words[1]:
        name = name.removesuffix(words[1])
    call.say(name)
    return 0


def _dirname(call: Call) -> int:
    name = call.arguments[0]
    head, slash, _ = name.rstrip("/").rpartition("/")
    call.say(head.rstrip("/") or ("/" if slash or name.startswith("/") else "."))
    return 0


TEXT_TOOLS: dict[str, Program] = {
    "cat": _cat,
    "head": _head_tail,
    "tail": _head_tail,
    "grep": _grep,
    "cut": _cut,
    "tr": _tr,
    "wc": _wc,
    "sort": _sort,
    "uniq": _uniq,
    "seq": _seq,
    "tee": _tee,
    "basename": _basename,
    "dirname": _dirname,
}
