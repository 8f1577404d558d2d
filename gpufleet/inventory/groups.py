"""Which hosts belong to which groups: said by the group (names, globs, children) or by the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from gpufleet.located import Located, Problems, did_you_mean


@dataclass(frozen=True, slots=True)
class Wish:
    """What the file says of one group.

    Attributes:
        hosts: names and globs that the group lists.
        children: groups whose hosts belong to this one too.
        joined: hosts that name the group themselves.
        declared: it stands under `groups`, not only in a host.
    """

    hosts: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    declared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Membership, worked out.

    Attributes:
        members: hosts of each group, those of its children included, in the order of the file.
        of_host: all groups of each host.
        ranks: for each group how far it is from the top, then its place in the file: the nearest is the largest.
    """

    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    of_host: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ranks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def nearest_last(self, host: str) -> list[str]:
        """The host's groups in the order in which they are laid over each other."""
        return sorted(self.of_host.get(host, ()), key=lambda group: self.ranks[group])


def resolve(wishes: Mapping[str, Wish], source: Located, hosts: Sequence[str], problems: Problems) -> Groups:
    """Work out membership; unknown members and circles are reported at their lines."""
    children = {name: _known_children(name, wish, wishes, source, problems) for name, wish in wishes.items()}
    circle = _circle(children)
    if circle:
        place = source.at("groups", circle[0])
        problems.add(place, f"groups contain each other: {' -> '.join(circle)}")
        children = dict.fromkeys(children, ())
    direct = {
        name: {*_listed(name, wish, source, hosts, problems), *wish.joined} for name, wish in wishes.items()
    }
    members = {}
    for name in wishes:
        within = set().union(*(direct[group] for group in _below(name, children)))
        members[name] = tuple(host for host in hosts if host in within)
    of_host = {host: frozenset(name for name, inside in members.items() if host in inside) for host in hosts}
    order = {name: place for place, name in enumerate(wishes)}
    ranks = {name: (_depth(name, children), order[name]) for name in wishes}
    return Groups(members=members, of_host=of_host, ranks=ranks, warnings=_suspicious(wishes))


def _known_children(
    name: str, wish: Wish, wishes: Mapping[str, Wish], source: Located, problems: Problems
) -> tuple[str, ...]:
    for place, child in enumerate(wish.children):
        if child not in wishes:
            close = did_you_mean(child, wishes)
            problems.add(
                source.at("groups", name, "children", place),
                f"group `{name}` has an unknown child `{child}`{', ' + close if close else ''}",
            )
    return tuple(child for child in wish.children if child in wishes)


def _listed(name: str, wish: Wish, source: Located, hosts: Sequence[str], problems: Problems) -> list[str]:
    found = []
    for place, pattern in enumerate(wish.hosts):
        matches = [host for host in hosts if fnmatchcase(host, pattern)]
        if not matches:
            close = did_you_mean(pattern, hosts)
            problems.add(
                source.at("groups", name, "hosts", place),
                f"group `{name}` lists an unknown host `{pattern}`{', ' + close if close else ''}",
            )
        found += matches
    return found


def _below(name: str, children: Mapping[str, Sequence[str]]) -> set[str]:
    """The group and everything under it."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        group = waiting.pop()
        if group not in found:
            found.add(group)
            waiting.extend(children[group])
    return found


def _circle(children: Mapping[str, Sequence[str]]) -> list[str]:
    """One way from a group back to itself, or nothing."""
    for start in children:
        ways = [[start]]
        seen: set[str] = set()
        while ways:
            way = ways.pop()
            for child in children[way[-1]]:
                if child == start:
                    return [*way, child]
                if child not in seen:
                    seen.add(child)
                    ways.append([*way, child])
    return []


def _depth(name: str, children: Mapping[str, Sequence[str]]) -> int:
    """The longest way down to `name` from a group that is nobody's child."""
    parents = [group for group, inside in children.items() if name in inside]
    return 1 + max((_depth(parent, children) for parent in parents), default=-1)


def _suspicious(wishes: Mapping[str, Wish]) -> tuple[str, ...]:
    declared = [name for name, wish in wishes.items() if wish.declared]
    lines = []
    for name, wish in wishes.items():
        close = "" if wish.declared else did_you_mean(name, declared)
        if close:
            lines.append(f"group `{name}` of host `{wish.joined[0]}` is not under `groups`: {close}")
    return tuple(lines)
