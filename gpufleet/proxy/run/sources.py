"""The two files that a proxy lives by, routes and tokens: read at the start, and again whenever they change.

At the start a bad file ends the proxy before it listens; later it is refused, said once, and what is in use stays.
"""

from __future__ import annotations

import logging
import sqlite3

from gpufleet.errors import CannotServe
from gpufleet.proxy.decide.auth import Directory
from gpufleet.proxy.run.fleet import TableRefused
from gpufleet.proxy.run.routes_file import RoutesFile, RoutesUnreadable
from gpufleet.proxy.run.state import ProxyState
from gpufleet.tokens.store import TokenReader

_LOG = logging.getLogger("gpufleet.proxy")


class Sources:
    """Reads into `state`."""

    def __init__(self, state: ProxyState) -> None:
        self._state = state
        self._config = state.config
        self._routes = RoutesFile(state.config.routes)
        self._tokens = TokenReader(state.config.tokens)
        self._token_trouble = ""

    def first(self) -> None:
        """Raises `CannotServe`: there is nothing to serve, or the tokens cannot be read."""
        self._first_routes()
        self._read_tokens(say=False)
        if self._token_trouble:  # tokens that cannot be read are not no tokens
            raise CannotServe(f"the tokens cannot be read: {self._token_trouble}", where=self._config.tokens)

    def look(self) -> None:
        """Read what has changed."""
        if self._routes.changed():
            self._read_routes()
        if self._tokens.changed():
            self._read_tokens()

    def reload(self) -> None:
        """Read both, changed or not."""
        self._read_routes()
        self._read_tokens()

    def _first_routes(self) -> None:
        config = self._config
        try:
            table = self._routes.read()
            self._state.fleet.replace(table)
        except (RoutesUnreadable, TableRefused) as error:
            if not config.wait_for_routes:
                raise _nothing_to_serve(config.routes, str(error)) from None
            _LOG.warning("waiting for routes at %s: %s", config.routes, error)
            return
        if not table.pools and not config.wait_for_routes:
            raise _nothing_to_serve(config.routes, "the route table names no pool")

    def _read_routes(self) -> None:
        """A bad file changes nothing: the generation in use stays."""
        state = self._state
        try:
            state.fleet.replace(self._routes.read())
        except (RoutesUnreadable, TableRefused) as error:
            state.metrics.reloads.add(("refused",))
            _LOG.error("new routes refused, generation %d stays: %s", state.fleet.table.generation, error)
        else:
            state.metrics.reloads.add(("read",))
            _LOG.info("routes of generation %d in use", state.fleet.table.generation)

    def _read_tokens(self, *, say: bool = True) -> None:
        """Whatever keeps them from being read changes nothing, and is said once."""
        trouble = ""
        try:
            tokens = self._tokens.read()
        except (OSError, sqlite3.Error) as error:
            trouble = str(error)
        else:
            self._state.directory = Directory(tokens, anonymous=self._config.allow_anonymous)
        if trouble and say and trouble != self._token_trouble:
            _LOG.error("tokens not read, those in use stay: %s", trouble)
        self._token_trouble = trouble


def _nothing_to_serve(path: str, why: str) -> CannotServe:
    return CannotServe(
        f"there is nothing to serve: {why}",
        where=path,
        hints=("deploy a pool first (`gpufleet pool deploy`), or start with --wait-for-routes",),
    )
