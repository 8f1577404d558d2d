"""An in-memory file system: enough of modes, owners, times, links and a disk that can fill up.

Paths and names are *byte text*, one character a byte, as in the lab's shell. Every refusal carries the message
that the C library prints, because tools repeat it word for word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

ROOT = "root"


class FsError(Exception):
    """A refusal; `str()` is the text of the C library's error."""


class NotFound(FsError):
    """No such file or directory."""

    def __init__(self) -> None:
        super().__init__("No such file or directory")


class Denied(FsError):
    """The user lacks the right."""

    def __init__(self) -> None:
        super().__init__("Permission denied")


class Full(FsError):
    """The disk has no room."""

    def __init__(self) -> None:
        super().__init__("No space left on device")


@dataclass(slots=True)
class Node:
    """What a name stands for. `mtime` is seconds since the epoch, `mode` the permission bits."""

    owner: str
    group: str
    mode: int
    mtime: float
    inode: int


@dataclass(slots=True)
class File(Node):
    """Bytes; `source` makes them up at each read, as files under /proc do."""

    content: bytes = b""
    source: Callable[[], bytes] | None = None

    def read(self) -> bytes:
        """The content as it is now."""
        return self.source() if self.source is not None else self.content


@dataclass(slots=True)
class Directory(Node):
    """Names and what they stand for."""

    entries: dict[str, Node] = field(default_factory=dict)


@dataclass(slots=True)
class Link(Node):
    """A symbolic link."""

    target: str = ""


@dataclass(slots=True, kw_only=True)
class Disk:
    """One mounted file system, sizes in KiB. `full` makes every growth fail while reads go on.

    `arriving` tells what is being written just now and is not charged yet.
    """

    mount: str
    total_kib: int
    used_kib: int
    full: bool = False
    arriving: Callable[[], int] = lambda: 0

    @property
    def free_kib(self) -> int:
        """What `df` calls available."""
        return 0 if self.full else max(0, self.total_kib - self.used_kib)


_MADE_UP = ("/proc/", "/sys/", "/dev/")


def normal(path: str, cwd: str = "/") -> str:
    """An absolute path without `.`, `..` and doubled slashes."""
    if not path.startswith("/"):
        path = f"{cwd}/{path}"
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if parts:
                parts.pop()
        elif part and part != ".":
            parts.append(part)
    return "/" + "/".join(parts)


def split(path: str) -> tuple[str, str]:
    """Parent directory and last name of a normal path."""
    head, _, tail = path.rpartition("/")
    return head or "/", tail


class SimFs:
    """One tree of nodes. `now` gives the time of the host; `groups` the groups of a user."""

    def __init__(self, now: Callable[[], float], groups: Callable[[str], frozenset[str]]) -> None:
        self._now = now
        self._groups = groups
        self._inodes = 2
        self.root = Directory(ROOT, ROOT, 0o755, now(), 1)
        self.disks: list[Disk] = [Disk(mount="/", total_kib=400 << 20, used_kib=40 << 20)]
        self._made_up = Disk(mount="/proc", total_kib=4 << 20, used_kib=0)

    # -- looking ---------------------------------------------------------------------------------------------

    def may(self, user: str, node: Node, bits: int) -> bool:
        """Whether `user` has all of `bits` (4 read, 2 write, 1 search or execute) on `node`."""
        if user == ROOT:
            return True
        shift = 6 if node.owner == user else 3 if node.group in self._groups(user) else 0
        return (node.mode >> shift) & bits == bits

    def find(self, path: str, user: str = ROOT, *, follow: bool = True, depth: int = 0) -> Node:
        """The node at a normal absolute path; raises `NotFound`, `Denied` or `FsError`."""
        if depth > 20:
            raise FsError("Too many levels of symbolic links")
        node: Node = self.root
        parts = [part for part in path.split("/") if part]
        for index, part in enumerate(parts):
            if not isinstance(node, Directory):
                raise FsError("Not a directory")
            if not self.may(user, node, 1):
                raise Denied
            child = node.entries.get(part)
            if child is None:
                raise NotFound
            if isinstance(child, Link) and (follow or index < len(parts) - 1):
                here = "/" + "/".join(parts[:index])
                rest = "/".join(parts[index + 1 :])
                target = normal(f"{child.target}/{rest}" if rest else child.target, here)
                return self.find(target, user, follow=follow, depth=depth + 1)
            node = child
        return node

    def seek(self, path: str, user: str = ROOT, *, follow: bool = True) -> Node | None:
        """The node, or None where there is none or the user may not look."""
        try:
            return self.find(path, user, follow=follow)
        except FsError:
            return None

    def exists(self, path: str) -> bool:
        """Whether something stands at the path."""
        return self.seek(path) is not None

    def enter(self, path: str, user: str) -> None:
        """Check that `user` may make this the working directory."""
        node = self.find(path, user)
        if not isinstance(node, Directory):
            raise FsError("Not a directory")
        if not self.may(user, node, 1):
            raise Denied

    def remove(self, path: str, user: str, *, recursive: bool) -> None:
        """What `rm` does with one operand."""
        if not isinstance(self.find(path, user, follow=False), Directory):
            self.unlink(path, user)
        elif recursive:
            self.remove_tree(path, user)
        else:
            raise FsError("Is a directory")

    def names(self, path: str, user: str = ROOT) -> list[str]:
        """Sorted names in a directory."""
        node = self.find(path, user)
        if not isinstance(node, Directory):
            raise FsError("Not a directory")
        if not self.may(user, node, 4):
            raise Denied
        return sorted(node.entries)

    def read(self, path: str, user: str = ROOT) -> bytes:
        """The content of a file."""
        node = self.find(path, user)
        if isinstance(node, Directory):
            raise FsError("Is a directory")
        if not self.may(user, node, 4):
            raise Denied
        return node.read() if isinstance(node, File) else b""

    def walk(self, path: str) -> Iterator[tuple[str, Node]]:
        """The node at `path` and everything under it, parents first, links not followed."""
        node = self.find(path, follow=False)
        yield path, node
        if isinstance(node, Directory):
            for name in sorted(node.entries):
                yield from self.walk(f"{path.rstrip('/')}/{name}")

    def disk_of(self, path: str) -> Disk:
        """The file system that holds `path`; what the kernel makes up is on none that fills."""
        if path.startswith(_MADE_UP):
            return self._made_up
        inside = [d for d in self.disks if path == d.mount or path.startswith(d.mount.rstrip("/") + "/")]
        return max(inside, key=lambda disk: len(disk.mount))

    # -- changing --------------------------------------------------------------------------------------------

    def _parent(self, path: str, user: str) -> tuple[Directory, str]:
        head, name = split(path)
        parent = self.find(head, user)
        if not isinstance(parent, Directory):
            raise FsError("Not a directory")
        if not self.may(user, parent, 3):
            raise Denied
        return parent, name

    def _inode(self) -> int:
        self._inodes += 1
        return self._inodes

    def charge(self, path: str, size: int) -> None:
        """Take `size` bytes (negative gives back) from the disk under `path`; raises `Full`."""
        disk = self.disk_of(path)
        if size > 0 and (disk.full or size > disk.free_kib * 1024):
            raise Full
        disk.used_kib = max(0, disk.used_kib + (size + 1023) // 1024)

    def open_write(
        self, path: str, user: str, *, append: bool, mode: int = 0o644, exclusive: bool = False
    ) -> File:
        """The file made ready for writing: created, or emptied unless `append`."""
        node = self.seek(path, user)
        if node is None:
            parent, name = self._parent(path, user)
            if isinstance(parent.entries.get(name), Link):
                raise NotFound
            if self.disk_of(path).full:
                raise Full
            created = File(user, user, mode, self._now(), self._inode())
            parent.entries[name] = created
            parent.mtime = self._now()
            return created
        if exclusive:
            raise FsError("File exists")
        if isinstance(node, Directory):
            raise FsError("Is a directory")
        if not self.may(user, node, 2) or not isinstance(node, File):
            raise Denied
        if not append:
            self.charge(path, -len(node.content))
            node.content = b""
            node.mtime = self._now()
        return node

    def extend(self, path: str, node: File, content: bytes, at: int | None = None) -> None:
        """Write at the end, or at an offset, of an open file."""
        where = len(node.content) if at is None else at
        growth = where + len(content) - len(node.content)
        if self.disk_of(path).full and content:
            raise Full
        if growth > 0:
            self.charge(path, growth)
        node.content = (
            node.content[:where].ljust(where, b"\0") + content + node.content[where + len(content) :]
        )
        node.mtime = self._now()

    def write(self, path: str, content: bytes, user: str = ROOT, mode: int = 0o644) -> None:
        """A whole file, its directory made when it is missing; for setting up hosts."""
        self.make_directories(split(path)[0], user)
        node = self.open_write(path, user, append=False, mode=mode)
        self.extend(path, node, content)

    def put_process(self, path: str, files: Mapping[str, bytes], owner: str) -> None:
        """The folder of a process: no rights are asked and no disk is charged. Its `fd` is for its owner alone."""
        above, name = split(path)
        parent = self.find(above)
        if isinstance(parent, Directory):
            made = Directory(owner, owner, 0o555, self._now(), self._inode())
            for entry, content in files.items():
                made.entries[entry] = File(owner, owner, 0o444, self._now(), self._inode(), content)
            made.entries["fd"] = Directory(owner, owner, 0o500, self._now(), self._inode())
            parent.entries[name] = made

    def drop(self, path: str) -> None:
        """Take away what the kernel made."""
        folder, name = split(path)
        parent = self.seek(folder)
        if isinstance(parent, Directory):
            parent.entries.pop(name, None)

    def mkdir(self, path: str, user: str = ROOT, mode: int = 0o755) -> None:
        """One directory; atomic, so it serves as a lock."""
        if self.seek(path, user, follow=False) is not None:
            raise FsError("File exists")
        parent, name = self._parent(path, user)
        if self.disk_of(path).full:
            raise Full
        parent.entries[name] = Directory(user, user, mode, self._now(), self._inode())
        parent.mtime = self._now()

    def make_directories(self, path: str, user: str = ROOT, mode: int = 0o755) -> None:
        """A directory and its missing parents."""
        walked = ""
        for part in [part for part in path.split("/") if part]:
            walked += f"/{part}"
            if self.seek(walked, user) is None:
                self.mkdir(walked, user, mode)
        if not isinstance(self.find(path, user), Directory):
            raise FsError("File exists")

    def link(self, target: str, path: str, user: str = ROOT) -> None:
        """A symbolic link."""
        parent, name = self._parent(path, user)
        if name in parent.entries:
            raise FsError("File exists")
        parent.entries[name] = Link(user, user, 0o777, self._now(), self._inode(), target)

    def unlink(self, path: str, user: str = ROOT) -> None:
        """Remove a file or a link."""
        node = self.find(path, user, follow=False)
        if isinstance(node, Directory):
            raise FsError("Is a directory")
        parent, name = self._parent(path, user)
        del parent.entries[name]
        parent.mtime = self._now()
        if isinstance(node, File):
            self.charge(path, -len(node.content))

    def rmdir(self, path: str, user: str = ROOT) -> None:
        """Remove an empty directory."""
        node = self.find(path, user, follow=False)
        if not isinstance(node, Directory):
            raise FsError("Not a directory")
        if node.entries:
            raise FsError("Directory not empty")
        parent, name = self._parent(path, user)
        del parent.entries[name]

    def remove_tree(self, path: str, user: str = ROOT) -> None:
        """Remove a directory and all below it, children first."""
        for below, node in reversed(list(self.walk(path))):
            if isinstance(node, Directory):
                self.rmdir(below, user)
            else:
                self.unlink(below, user)

    def rename(self, source: str, target: str, user: str = ROOT) -> None:
        """Move atomically, over an existing file or empty directory."""
        node = self.find(source, user, follow=False)
        if isinstance(node, Directory) and f"{target}/".startswith(f"{source}/"):
            raise FsError("Invalid argument")
        old_parent, old_name = self._parent(source, user)
        parent, name = self._parent(target, user)
        present = parent.entries.get(name)
        if isinstance(present, Directory):
            if not isinstance(node, Directory):
                raise FsError("Is a directory")
            if present.entries:
                raise FsError("Directory not empty")
        elif present is not None and isinstance(node, Directory):
            raise FsError("Not a directory")
        if isinstance(present, File) and present is not node:
            self.charge(target, -len(present.content))
        del old_parent.entries[old_name]
        parent.entries[name] = node

    def chmod(self, path: str, mode: int, user: str = ROOT) -> None:
        """Change the permission bits."""
        node = self.find(path, user)
        if user not in {ROOT, node.owner}:
            raise FsError("Operation not permitted")
        node.mode = mode
