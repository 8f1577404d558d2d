"""Selector expressions to hosts.

A selector is a list of words, or one word with commas:

    all   gpu-01   gpu-0*   group=a100   rack=r1   !gpu-03   !group=spare

Words add up; words with `!` take away, wherever they stand; with nothing but `!` words everything is there to
take away from. Values of groups and labels may be globs too. The answer keeps the order of the inventory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from gpufleet.errors import ErrorRow, SelectionError
from gpufleet.inventory.model import Host, Inventory
from gpufleet.located import did_you_mean
from gpufleet.names import HostName


def select(inventory: Inventory, words: Sequence[str], *, where: str = "") -> tuple[Host, ...]:
    """The hosts that `words` name; no word at all names none. `where` is `file:line` of a selector in a file.

    Raises:
        SelectionError: a word that matches nothing, also behind `!`, or an empty selection.
    """
    terms = [term.strip() for word in words for term in word.split(",") if term.strip()]
    if not terms:
        raise SelectionError("no host is selected", where=where, hints=("`all` selects every host",))
    taken: set[HostName] = set()
    removed: set[HostName] = set()
    rows: list[ErrorRow] = []
    for term in terms:
        bare = term.removeprefix("!").strip()
        found = _matching(inventory, bare)
        if not found:
            rows.append(_nothing(inventory, bare))
        (removed if term.startswith("!") else taken).update(found)
    if rows:
        raise _unknown(rows, where)
    if all(term.startswith("!") for term in terms):
        taken = set(inventory.hosts)
    hosts = tuple(host for name, host in inventory.hosts.items() if name in taken - removed)
    if not hosts:
        raise SelectionError(
            f"`{','.join(terms)}` leaves no host",
            where=where,
            hints=("every host was taken away again: take a `!` word out",),
        )
    return hosts


def surviving(inventory: Inventory, words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words of a selector that still mean something, and those that match nothing any more.

    Where a selector names hosts and none of them is left, nothing survives: what it takes away would select all others.
    """
    terms = [term.strip() for word in words for term in word.split(",") if term.strip()]
    lost = tuple(term for term in terms if not _matching(inventory, term.removeprefix("!").strip()))
    kept = tuple(term for term in terms if term not in lost)
    named = any(not term.startswith("!") for term in terms)
    if named and all(term.startswith("!") for term in kept):
        return (), lost
    return kept or (() if named else ("all",)), lost


def _unknown(rows: Sequence[ErrorRow], where: str) -> SelectionError:
    if len(rows) == 1:
        hints = (rows[0].hint,) if rows[0].hint else ()
        return SelectionError(rows[0].message, where=where, hints=hints)
    return SelectionError(f"{len(rows)} words of the selector match nothing", where=where, rows=tuple(rows))


def _matching(inventory: Inventory, term: str) -> set[HostName]:
    if term == "all":
        return set(inventory.hosts)
    return {name for name, host in inventory.hosts.items() if _test(term)(host)}


def _test(term: str) -> Callable[[Host], bool]:
    key, equals, value = term.partition("=")
    if not equals:
        return lambda host: fnmatchcase(host.name, term)
    if key == "group":
        return lambda host: any(fnmatchcase(group, value) for group in host.groups)
    return lambda host: key in host.labels and fnmatchcase(host.labels[key], value)


def _nothing(inventory: Inventory, term: str) -> ErrorRow:
    """Why a word matches nothing, with the nearest that would."""
    key, equals, value = term.partition("=")
    if not equals:
        if any(sign in term for sign in "*?["):
            return ErrorRow(term, f"no host matches `{term}`", _some("hosts", inventory.hosts))
        return ErrorRow(term, f"unknown host `{term}`", _nearest("hosts", term, inventory.hosts))
    if key == "group":
        return ErrorRow(term, f"unknown group `{value}`", _nearest("groups", value, inventory.groups))
    labels = {label for host in inventory.hosts.values() for label in host.labels}
    if key not in labels:
        return ErrorRow(term, f"no host has a label `{key}`", _nearest("labels", key, {"group", *labels}))
    values = {host.labels[key] for host in inventory.hosts.values() if key in host.labels}
    return ErrorRow(term, f"no host has `{key}={value}`", _nearest("values", value, values))


def _nearest(what: str, word: str, known: Iterable[str]) -> str:
    names = list(known)
    return did_you_mean(word, names) or _some(what, names)


def _some(what: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return f"there are no {what}"
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{what}: {', '.join(names[:8])}{more}"
