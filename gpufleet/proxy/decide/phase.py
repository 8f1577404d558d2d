"""The phases of one request.

CHOOSING --rank--> CONNECTING --connected--> WAITING --head--> RELAYING --last byte--> ENDED
^                  |                         |                 |
+--- failure before the first byte to the client; the rules are `decide.retry`
any phase --client leaves, deadline, loss--> ENDED
"""

from __future__ import annotations

from enum import Enum, auto


class Phase(Enum):
    """See the module."""

    CHOOSING = auto()
    CONNECTING = auto()
    WAITING = auto()
    RELAYING = auto()
    ENDED = auto()
