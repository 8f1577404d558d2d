"""What is wrong with a pool definition beyond its shape: words that would be read as options, secrets in plain text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpufleet.located import Located, Problems
from gpufleet.pools import members_document
from gpufleet.pools.slice_document import check_slice
from gpufleet.pools.weights_document import check_weights
from gpufleet.redact import scrub

if TYPE_CHECKING:
    from gpufleet.pools.document import PoolDocument

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}")
REFERENCE = re.compile(r"\$\{(?:env|file|cmd):[^}]+\}")
ADAPTER = re.compile(r"[A-Za-z0-9][\w.:/-]{0,127}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(r"(?i)(?:token|secret|password|passwd|api_?key)$")
_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII)
_SIZE = re.compile(r"[0-9]+[bkmgBKMG]?")
_CPUS = re.compile(r"[0-9]+(?:\.[0-9]+)?")

WORD = 64 * 1024
"""Bytes of one argument or variable: docker reads no longer line of an environment file, and Linux gives a program
no word of more than 128 KiB."""

WORDS = 512 * 1024
"""Bytes of all arguments together; Linux gives a program at most 2 MiB, its environment included."""


def check(source: Located, document: PoolDocument, problems: Problems, name: str) -> None:
    """Add every mistake to `problems`, with its line."""
    _check_name(source, document, problems, name)
    _check_words(source, document, problems)
    check_weights(source.at("weights"), document.weights, problems)
    check_slice(source.at("slice"), document.slice, problems)
    _check_environment(source, document, problems)
    _check_limits(source, document, problems)
    _check_adapters(source, document, problems)
    members_document.check(source, document.members, problems)


def _check_name(source: Located, document: PoolDocument, problems: Problems, name: str) -> None:
    place = source.at("pool")
    if name and document.pool and document.pool != name:
        problems.add(place, f"this is pool `{document.pool}`, not `{name}`")
    wanted = name or document.pool
    if not wanted:
        problems.add(source, "`pool` is missing", "give the pool a name: `pool: chat`")
    elif not NAME.fullmatch(wanted):
        problems.add(
            place,
            f"`{wanted}` is no pool name",
            "letters, digits, `-`, `_` and `.`, 48 at most, first a letter or digit",
        )


def check_text(source: Located, problems: Problems) -> None:
    """A command line may hold any bytes; what is journalled and sent is text."""
    for key, item in source.entries():
        check_text(Located(key, item.file, item.line), problems)
        check_text(item, problems)
    for item in source.items():
        check_text(item, problems)
    if isinstance(source.value, str):
        try:
            source.value.encode()
        except UnicodeEncodeError:
            problems.add(source, "a value holds bytes that are not UTF-8", "write it in UTF-8")


def _check_words(source: Located, document: PoolDocument, problems: Problems) -> None:
    """What becomes a word of a command line: never a NUL, never something that reads as an option."""
    texts = [
        ("model", document.model),
        ("served_name", document.served_name),
    ]
    for key, text in texts:
        if text.startswith("-"):
            problems.add(source.at(key), f"`{key}` starts with `-`", "it would be read as an option")
        if _unprintable(text):
            problems.add(source.at(key), f"`{key}` contains a control character")
        if len(text.encode()) > WORD:
            problems.add(source.at(key), f"`{key}` is longer than {WORD // 1024} KiB")
    image = document.engine.image
    if image and not _IMAGE.fullmatch(image):
        problems.add(source.at("engine", "image"), f"`{scrub(image)}` is no image reference")
    if sum(len(str(word).encode()) + 1 for word in document.engine.args) > WORDS:
        problems.add(source.at("engine", "args"), f"the arguments are longer than {WORDS // 1024} KiB in all")
    for number, word in enumerate(str(item) for item in document.engine.args):
        place = source.at("engine", "args", number)
        if "\0" in word:
            problems.add(place, "an argument contains a NUL character")
        if len(word.encode()) > WORD:
            problems.add(
                place,
                f"an argument is longer than {WORD // 1024} KiB",
                "put it into a file below `weights` and name the file",
            )
            continue
        if word.startswith("--") and re.search(r"\s", word.partition("=")[0]):
            option, _, value = word.partition(" ")
            problems.add(
                place,
                f"`{scrub(word)}` is two words in one item",
                f"write them as two: `{option}` and `{scrub(value)}`",
            )
        if scrub(f" {word}") != f" {word}":
            problems.add(
                place, "an argument looks like a secret", "pass it by engine.env as a reference: ${env:NAME}"
            )


def _check_environment(source: Located, document: PoolDocument, problems: Problems) -> None:
    """One line each in an environment file, and no secret in plain text."""
    for key, value in document.engine.env.items():
        place, text = source.at("engine", "env", key), str(value)
        if not _VARIABLE.fullmatch(key):
            problems.add(place, f"`{key}` is no name of a variable")
        if len(key.encode()) + len(text.encode()) > WORD - 2:
            problems.add(place, f"a variable is longer than {WORD // 1024} KiB")
            continue
        if "\n" in text or "\r" in text or "\0" in text:
            problems.add(place, f"`{key}` contains a line break or NUL, which no environment file can hold")
        if REFERENCE.fullmatch(text):
            continue
        if text and (_SECRET_NAME.search(key) or scrub(text) != text):
            problems.add(
                place,
                f"`{key}` holds a secret in plain text",
                "write a reference: ${env:NAME} or ${file:PATH}",
            )


def adapter_mistake(name: str, path: str) -> str:
    """What is wrong with an adapter; empty when nothing is. vLLM splits `NAME=PATH` at the sign, and lists at commas."""
    if not ADAPTER.fullmatch(name):
        return f"`{scrub(name)}` is no name of an adapter: letters, digits, `-`, `_`, `.`, `:` and `/`"
    if (
        not path
        or path.startswith("-")
        or set(path) & set('=," ')
        or _unprintable(path)
        or ".." in path.split("/")
    ):
        return f"`{scrub(path)}` is no place of an adapter: an absolute directory, or ORGANISATION/NAME on the hub"
    return ""


def _check_adapters(source: Located, document: PoolDocument, problems: Problems) -> None:
    for name, path in document.lora.items():
        mistake = adapter_mistake(name, path)
        if not mistake and name == (document.served_name or document.model):
            mistake = f"adapter `{name}` has the name of the model itself"
        if mistake:
            problems.add(source.at("lora", name), mistake)
    root = document.lora_from
    if root is not None and (not root.startswith("/") or set(root) & set(',"') or _unprintable(root)):
        problems.add(
            source.at("lora_from"), "`lora_from` is an absolute path without commas and double quotes"
        )


def _check_limits(source: Located, document: PoolDocument, problems: Problems) -> None:
    limits = document.limits
    for key, text, pattern, example in (
        ("memory", limits.memory, _SIZE, "64g"),
        ("cpus", None if limits.cpus is None else str(limits.cpus), _CPUS, "8"),
        ("shm", limits.shm, _SIZE, "16g"),
    ):
        if text is not None and (not pattern.fullmatch(text) or not text.strip("0.bkmgBKMG")):
            problems.add(source.at("limits", key), f"`{key}: {text}` is no limit", f"for example {example}")


def _unprintable(text: str) -> bool:
    return any(ord(letter) < 32 or ord(letter) == 127 for letter in text)
