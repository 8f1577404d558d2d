"""Utilities over files."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from gpufleet.lab.shell.call import Call, Program
from gpufleet.lab.shell.options import Options, read_options
from gpufleet.lab.shell.syntax import Unsupported
from gpufleet.lab.simfs import Directory, File, FsError, Link, Node, SimFs, split


def _path(call: Call, name: str) -> str:
    return call.host.fs_path(name, call.cwd)


def _mode(text: str, before: int) -> int:
    """An octal mode or a symbolic one."""
    if re.fullmatch("[0-7]{1,4}", text):
        return int(text, 8)
    mode = before
    for clause in text.split(","):
        found = re.fullmatch("([ugoa]*)([-+=])([rwxXt]*)", clause)
        if found is None:
            raise Unsupported(f"mode {text}")
        bits = sum({"r": 4, "w": 2, "x": 1, "X": 1}.get(letter, 0) for letter in found[3])
        who = found[1].replace("a", "ugo") or "ugo"
        mask = sum(bits << {"u": 6, "g": 3, "o": 0}[letter] for letter in set(who))
        every = sum(7 << {"u": 6, "g": 3, "o": 0}[letter] for letter in set(who))
        mode = {"+": mode | mask, "-": mode & ~mask, "=": mode & ~every | mask}[found[2]]
    return mode


def _mkdir(call: Call) -> int:
    options = read_options(call, "p", "m")
    status = 0
    fs = call.host.fs
    plain = 0o777 & ~call.shell.umask
    for name in options.operands:
        path = _path(call, name)
        try:
            there = fs.seek(path, call.user)
            if "p" in options and isinstance(there, Directory):
                continue
            if "p" in options:
                fs.make_directories(split(path)[0], call.user, plain)
            fs.mkdir(path, call.user, _mode(options.last("m"), plain) if "m" in options else plain)
        except FsError as refused:
            status = call.complain(f"mkdir: cannot create directory '{name}': {refused}")
    return status


def _rmdir(call: Call) -> int:
    status = 0
    for name in read_options(call).operands:
        try:
            call.host.fs.rmdir(_path(call, name), call.user)
        except FsError as refused:
            status = call.complain(f"rmdir: failed to remove '{name}': {refused}")
    return status


def _rm(call: Call) -> int:
    options = read_options(call, "rfR")
    status = 0
    fs = call.host.fs
    for name in options.operands:
        path = _path(call, name)
        node = fs.seek(path, call.user, follow=False)
        if node is None:
            if "f" not in options:
                status = call.complain(f"rm: cannot remove '{name}': No such file or directory")
            continue
        try:
            fs.remove(path, call.user, recursive=bool({"r", "R"} & options.flags))
        except FsError as refused:
            status = call.complain(f"rm: cannot remove '{name}': {refused}")
    return status


def _target(call: Call, source: str, target: str, *, whole: bool) -> str:
    """Where a source lands: inside a directory, unless the target is meant as a name (`-T`)."""
    path = _path(call, target)
    if not whole and isinstance(call.host.fs.seek(path, call.user), Directory):
        return f"{path.rstrip('/')}/{split(_path(call, source))[1]}"
    return path


def _mv(call: Call) -> int:
    options = read_options(call, "fTn")
    *sources, target = options.operands
    status = 0
    for source in sources:
        place = _target(call, source, target, whole="T" in options)
        if "n" in options and call.host.fs.seek(place, call.user) is not None:
            continue
        try:
            call.host.fs.rename(_path(call, source), place, call.user)
        except FsError as refused:
            status = call.complain(f"mv: cannot move '{source}' to '{target}': {refused}")
    return status


def _cp(call: Call) -> int:
    options = read_options(call, "fprRaT")
    *sources, target = options.operands
    status = 0
    for source in sources:
        try:
            _copy(call, source, _target(call, source, target, whole="T" in options), options)
        except FsError as refused:
            status = call.complain(f"cp: cannot copy '{source}' to '{target}': {refused}")
    return status


def _copy(call: Call, source: str, place: str, options: Options) -> None:
    fs: SimFs = call.host.fs
    path = _path(call, source)
    node = fs.find(path, call.user)
    if isinstance(node, Directory):
        if not {"r", "R", "a"} & options.flags:
            raise FsError("-r not specified; omitting directory")
        if fs.seek(place, call.user) is None:
            fs.mkdir(place, call.user, node.mode)
        for name in fs.names(path, call.user):
            _copy(call, f"{path}/{name}", f"{place}/{name}", options)
        return
    content = fs.read(path, call.user)
    fs.extend(place, fs.open_write(place, call.user, append=False, mode=node.mode), content)


def _kind(node: Node) -> str:
    return "d" if isinstance(node, Directory) else "l" if isinstance(node, Link) else "-"


def _rights(node: Node) -> str:
    letters = "".join(letter if node.mode >> (8 - at) & 1 else "-" for at, letter in enumerate("rwxrwxrwx"))
    return _kind(node) + letters


def _size(node: Node) -> int:
    if isinstance(node, File):
        return len(node.read())
    return len(node.target) if isinstance(node, Link) else 4096


def _ls(call: Call) -> int:
    options = read_options(call, "1aAldntr")
    fs = call.host.fs
    status = 0
    rows: list[tuple[str, Node]] = []
    folders: list[tuple[str, str, Directory]] = []
    for name in options.operands or ["."]:
        path = _path(call, name)
        node = fs.seek(path, call.user, follow="d" not in options and "l" not in options)
        if node is None:
            status = call.complain(f"ls: cannot access '{name}': No such file or directory", 2)
        elif isinstance(node, Directory) and "d" not in options:
            folders.append((name, path, node))
        else:
            rows.append((name, node))
    _ls_rows(call, rows, options)
    for at, (name, path, node) in enumerate(sorted(folders, key=lambda row: row[0])):
        try:
            names = fs.names(path, call.user)
        except FsError as refused:
            status = call.complain(f"ls: cannot open directory '{name}': {refused}", 2)
            continue
        if len(options.operands) > 1:
            call.say(*([""] if rows or at else []), f"{name}:")
        hidden = bool({"a", "A"} & options.flags)
        _ls_rows(
            call, [(entry, node.entries[entry]) for entry in names if hidden or entry[0] != "."], options
        )
    return status


def _ls_rows(call: Call, rows: list[tuple[str, Node]], options: Options) -> None:
    if "t" in options:
        rows.sort(key=lambda row: row[1].mtime, reverse=True)
    for name, node in reversed(rows) if "r" in options else rows:
        call.say(_ls_row(name, node) if "l" in options or "n" in options else name)


def _ls_row(name: str, node: Node) -> str:
    when = datetime.fromtimestamp(node.mtime, UTC)
    arrow = f" -> {node.target}" if isinstance(node, Link) else ""
    return f"{_rights(node)} 1 {node.owner} {node.group} {_size(node)} {when:%b %e %H:%M} {name}{arrow}"


def _chmod(call: Call) -> int:
    options = read_options(call, "R")
    wanted, *names = options.operands
    status = 0
    for name in names:
        path = _path(call, name)
        try:
            node = call.host.fs.find(path, call.user)
            call.host.fs.chmod(path, _mode(wanted, node.mode), call.user)
        except FsError as refused:
            status = call.complain(f"chmod: cannot access '{name}': {refused}")
    return status


def _chown(call: Call) -> int:
    owner, *names = read_options(call, "R").operands
    if call.user != "root":
        return call.complain(f"chown: changing ownership of '{names[0]}': Operation not permitted")
    for name in names:
        node = call.host.fs.find(_path(call, name))
        user, _, group = owner.partition(":")
        node.owner, node.group = user or node.owner, group or node.group
    return 0


def _touch(call: Call) -> int:
    options = read_options(call, "cm", "d")
    if "d" in options:
        raise Unsupported("touch -d")
    status = 0
    for name in options.operands:
        path = _path(call, name)
        try:
            there = call.host.fs.seek(path, call.user) is not None
            if not there and "c" not in options:
                call.host.fs.open_write(path, call.user, append=True, mode=0o666 & ~call.shell.umask)
            call.host.fs.find(path, call.user).mtime = call.host.clock.now().timestamp()
        except FsError as refused:
            status = call.complain(f"touch: cannot touch '{name}': {refused}")
    return status


def _readlink(call: Call) -> int:
    options = read_options(call, "fe")
    for name in options.operands:
        path = _path(call, name)
        node = call.host.fs.seek(path, call.user, follow=False)
        if {"f", "e"} & options.flags:
            depth = 0
            while isinstance(node, Link) and depth < 20:
                path = call.host.fs_path(node.target, split(path)[0])
                node = call.host.fs.seek(path, call.user, follow=False)
                depth += 1
            if node is None and ("e" in options or not call.host.fs.exists(split(path)[0])):
                return 1
            call.say(path)
        elif isinstance(node, Link):
            call.say(node.target)
        else:
            return 1
    return 0


def _ln(call: Call) -> int:
    options = read_options(call, "sfnT")
    if "s" not in options:
        raise Unsupported("ln without -s")
    target, name = options.operands
    path = _path(call, name)
    try:
        if "f" in options and call.host.fs.seek(path, call.user, follow=False) is not None:
            call.host.fs.unlink(path, call.user)
        call.host.fs.link(target, path, call.user)
    except FsError as refused:
        return call.complain(f"ln: failed to create symbolic link '{name}': {refused}")
    return 0


def _mktemp(call: Call) -> int:
    options = read_options(call, "d", "p")
    template = options.operands[0] if options.operands else "tmp.XXXXXXXXXX"
    found = re.search("X{3,}$", template)
    if found is None:
        return call.complain(f"mktemp: too few X's in template '{template}'")
    folder = options.last("p") or ("" if options.operands else call.env.get("TMPDIR", "/tmp"))
    name = template[: found.start()] + f"{call.host.serial():0{len(found.group())}d}"
    path = f"{folder}/{name}" if folder else name
    try:
        if "d" in options:
            call.host.fs.mkdir(_path(call, path), call.user, 0o700)
        else:
            call.host.fs.open_write(_path(call, path), call.user, append=False, mode=0o600)
    except FsError as refused:
        kind = "directory" if "d" in options else "file"
        return call.complain(f"mktemp: failed to create {kind} via template '{template}': {refused}")
    call.say(path)
    return 0


def _stat(call: Call) -> int:
    options = read_options(call, "L", "c", words={"format": "c"})
    template = options.last("c")
    if not template:
        raise Unsupported("stat without -c")
    status = 0
    for name in options.operands:
        node = call.host.fs.seek(_path(call, name), call.user, follow="L" in options)
        if node is None:
            status = call.complain(f"stat: cannot statx '{name}': No such file or directory")
            continue
        uid = call.host.users[node.owner].uid if node.owner in call.host.users else 65534
        values = {
            "a": f"{node.mode & 0o7777:o}",
            "A": _rights(node),
            "U": node.owner,
            "G": node.group,
            "u": str(uid),
            "g": str(uid),
            "s": str(_size(node)),
            "Y": str(int(node.mtime)),
            "Z": str(int(node.mtime)),
            "n": name,
            "i": str(node.inode),
            "F": {"d": "directory", "l": "symbolic link"}.get(_kind(node), "regular file"),
        }
        call.say(_filled(template, values))
    return status


def _filled(template: str, values: dict[str, str]) -> str:
    return re.sub("%(.)", lambda found: _directive(found[1], values), template)


def _directive(letter: str, values: dict[str, str]) -> str:
    if letter == "%":
        return "%"
    if letter not in values:
        raise Unsupported(f"stat -c %{letter}")
    return values[letter]


def _df(call: Call) -> int:
    options = read_options(call, "Pkm", "B")
    unit = 1024 if "m" in options or options.last("B") == "1M" else 1
    rows = [f"Filesystem     {'1M' if unit > 1 else '1024'}-blocks      Used Available Capacity Mounted on"]
    status = 0
    disks = call.host.fs.disks
    if options.operands:
        disks = []
        for name in options.operands:
            path = _path(call, name)
            if call.host.fs.seek(path, "root") is None:
                status = call.complain(f"df: {name}: No such file or directory")
            else:
                disks.append(call.host.fs.disk_of(path))
    for index, disk in enumerate(disks):
        used = disk.total_kib if disk.full else disk.used_kib + disk.arriving()
        share = f"{-(-used * 100 // disk.total_kib)}%"
        total, taken, free = (value // unit for value in (disk.total_kib, used, disk.free_kib))
        rows.append(f"/dev/nvme{index}n1p1 {total:>14} {taken:>9} {free:>9} {share:>8} {disk.mount}")
    if len(rows) > 1:
        call.say(*rows)
    return status


def _du(call: Call) -> int:
    options = read_options(call, "skm")
    if "s" not in options:
        raise Unsupported("du without -s")
    for name in options.operands:
        try:
            total = sum(_size(node) for _, node in call.host.fs.walk(_path(call, name)))
        except FsError as refused:
            return call.complain(f"du: cannot access '{name}': {refused}")
        call.say(f"{-(-total // (1 << 20 if 'm' in options else 1024))}\t{name}")
    return 0


def _sync(call: Call) -> int:
    read_options(call, "df")
    return 0


FILE_TOOLS: dict[str, Program] = {
    "mkdir": _mkdir,
    "rmdir": _rmdir,
    "rm": _rm,
    "mv": _mv,
    "cp": _cp,
    "ls": _ls,
    "chmod": _chmod,
    "chown": _chown,
    "touch": _touch,
    "readlink": _readlink,
    "ln": _ln,
    "mktemp": _mktemp,
    "stat": _stat,
    "df": _df,
    "du": _du,
    "sync": _sync,
}
