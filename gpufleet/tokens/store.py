"""The tokens on disk: one SQLite file, written by the command line, read by proxies.

The rollback journal is used and not WAL: a proxy then needs nothing but to read one file, and each commit changes
the counter in that file's header, by which a reader sees cheaply that something changed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from gpufleet.errors import Refused, UsageError
from gpufleet.tokens.model import Principal, Token

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    hint TEXT NOT NULL,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    grp TEXT NOT NULL,
    team TEXT NOT NULL,
    class TEXT NOT NULL,
    models TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    revoked_at REAL
);
CREATE UNIQUE INDEX IF NOT EXISTS one_active_name ON tokens (name) WHERE revoked_at IS NULL;
PRAGMA user_version = 1;
"""
_COLUMNS = "id, digest, hint, name, tenant, grp, team, class, models, created_at, expires_at, revoked_at"


class TokenStore:
    """Read and write. Each call is one transaction; several processes may work on the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> tuple[Token, ...]:
        """Every token ever made, oldest first; nothing when there is no store yet."""
        if not self._is_there():
            return ()
        with self._connection(create=False) as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM tokens ORDER BY created_at, id")  # noqa: S608 - a constant
            return tuple(_token(row) for row in rows)

    def add(self, token: Token) -> None:
        """Raises `Refused` when a token of that name is active."""
        with self._connection(create=True) as connection:
            _insert(connection, token)

    def revoke(self, name: str, at: float) -> Token:
        """Ends the active token of that name, or with that id, and its predecessors that still run out their grace.

        Raises `UsageError` when there is none.
        """
        with self._connection(create=False) as connection:
            token = _active(connection, name)
            connection.execute(
                "UPDATE tokens SET revoked_at = ?1 WHERE revoked_at IS NULL AND (id = ?2 OR name GLOB ?3)",
                (at, token.id, f"{token.principal.name}~*"),
            )
            return replace(token, revoked_at=at)

    def rotate(self, name: str, successor: Token, *, grace: float) -> Token:
        """The active token of that name ends after `grace` seconds and `successor` takes its name and scope."""
        with self._connection(create=False) as connection:
            old = _active(connection, name)
            ends = successor.created_at + grace
            ends = ends if old.expires_at is None else min(ends, old.expires_at)
            if grace > 0:
                retired = f"{old.principal.name}~{old.id}"
                connection.execute(
                    "UPDATE tokens SET expires_at = ?, name = ? WHERE id = ?", (ends, retired, old.id)
                )
            else:
                connection.execute(
                    "UPDATE tokens SET revoked_at = ? WHERE id = ?", (successor.created_at, old.id)
                )
            fresh = replace(successor, principal=old.principal, expires_at=old.expires_at)
            _insert(connection, fresh)
            return fresh

    def _is_there(self) -> bool:
        """Raises OSError when that cannot be known: a place that cannot be read is not an empty one."""
        try:
            self.path.stat()
        except FileNotFoundError:
            return False
        return True

    @contextlib.contextmanager
    def _connection(self, *, create: bool) -> Iterator[sqlite3.Connection]:
        if create:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_there():
                os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))
        elif not self._is_there():
            raise UsageError("there are no tokens yet", hints=("make one with `gpufleet token create NAME`",))
        connection = sqlite3.connect(self.path, timeout=10.0, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = DELETE")
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0 and create:
                connection.executescript(_SCHEMA)
            connection.execute("BEGIN IMMEDIATE")
            with connection:  # commits, or rolls back on an exception
                yield connection
        except sqlite3.DatabaseError as error:
            raise Refused(
                f"the token store cannot be used: {error}",
                where=str(self.path),
                hints=("check the file and its permissions; `token create` makes a new one when it is gone",),
            ) from error
        finally:
            connection.close()


class TokenReader:
    """What a proxy needs: all tokens by their digest, and whether they changed. Never writes."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seen: object = None

    def changed(self) -> bool:
        """Something was committed since `read`, the file came or went, or it cannot be told: then `read` says why."""
        try:
            return self._mark() != self._seen
        except OSError:
            return True

    def read(self) -> dict[bytes, Token]:
        """Raises `OSError` or `sqlite3.Error`; nothing when there is no file."""
        mark = self._mark()
        if mark is None:
            self._seen = None
            return {}
        with contextlib.closing(
            sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)
        ) as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM tokens").fetchall()  # noqa: S608 - a constant
        self._seen = mark
        return {token.digest: token for token in map(_token, rows)}

    def _mark(self) -> tuple[int, int, bytes] | None:
        """Inode, time of change, and SQLite's own change counter (bytes 24 to 27 of the file)."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                return status.st_ino, status.st_mtime_ns, file.read(28)[24:]
        except FileNotFoundError:
            return None


def _insert(connection: sqlite3.Connection, token: Token) -> None:
    principal = token.principal
    values = (
        token.id,
        token.digest,
        token.hint,
        principal.name,
        principal.tenant,
        principal.group,
        principal.team,
        principal.class_,
        msgspec.json.encode(sorted(principal.models)).decode(),
        token.created_at,
        token.expires_at,
        token.revoked_at,
    )
    marks = ", ".join("?" * len(values))
    try:
        connection.execute(f"INSERT INTO tokens ({_COLUMNS}) VALUES ({marks})", values)  # noqa: S608 - constants
    except sqlite3.IntegrityError:
        raise Refused(
            f"a token named `{principal.name}` is active",
            hints=(f"replace it with `gpufleet token rotate {principal.name}`, or revoke it first",),
        ) from None


def _active(connection: sqlite3.Connection, name: str) -> Token:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM tokens WHERE (name = ? OR id = ?) AND revoked_at IS NULL",  # noqa: S608 - a constant
        (name, name),
    ).fetchone()
    if row is None:
        raise UsageError(f"no active token is named `{name}`", hints=("see `gpufleet token list`",))
    return _token(row)


def _token(row: tuple[object, ...]) -> Token:
    id_, digest, hint, name, tenant, group, team, class_, models, created_at, expires_at, revoked_at = row
    return msgspec.convert(
        {
            "id": id_,
            "digest": digest,
            "hint": hint,
            "principal": Principal(
                name=str(name),
                tenant=str(tenant),
                group=str(group),
                team=str(team),
                class_=str(class_),
                models=frozenset(msgspec.json.decode(str(models), type=list[str])),
            ),
            "created_at": created_at,
            "expires_at": expires_at,
            "revoked_at": revoked_at,
        },
        type=Token,
        builtin_types=(bytes,),
    )
