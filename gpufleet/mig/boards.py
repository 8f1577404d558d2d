"""Shipped tables of boards, for plans without a host and for the lab. A host's own tables are the truth.

Numbers are what `nvidia-smi mig -lgip` and `-lgipp` printed on these boards, or NVIDIA's MIG user guide, "Supported
MIG profiles"; memory is None where only names are public. Names and memory drift between drivers and board
revisions. Boards of which no table is public (RTX PRO 5000 and 4500, Thor) are left out rather than guessed.
"""

from __future__ import annotations

from gpufleet.errors import UsageError
from gpufleet.mig.model import Geometry, Profile
from gpufleet.mig.profile import nearest_words

_SEVEN = (0, 1, 2, 3, 4, 5, 6)
_EIGHT_SLOTS = (
    ("{0}", 19, 7, _SEVEN, 1),
    ("{0}+me", 20, 1, _SEVEN, 1),
    ("{1}", 15, 4, (0, 2, 4, 6), 2),
    ("{2}", 14, 3, (0, 2, 4), 2),
    ("{3}", 9, 2, (0, 4), 4),
    ("{4}", 5, 1, (0,), 4),
    ("{5}", 0, 1, (0,), 8),
)
"""A100, H100, H200 and their kin: 1g, 1g with media, 1g with double memory, 2g, 3g, 4g, 7g."""


def _eight(
    board: str, names: str, memory: tuple[float | None, ...], *, guessed: bool = False
) -> tuple[str, Geometry]:
    """`names` and `memory` in the order 1g, 1g double memory, 2g, 3g, 4g, 7g."""
    words = names.split()
    sizes = dict(zip(words, memory, strict=True))
    profiles = tuple(
        Profile(
            name=(name := pattern.format(*words)),
            id=number,
            total=total,
            memory_gib=sizes[name.removesuffix("+me")],
            starts=starts,
            size=size,
        )
        for pattern, number, total, starts, size in _EIGHT_SLOTS
    )
    return board, Geometry(board=board, slots=8, profiles=profiles, guessed=guessed)


def _rows(*rows: tuple[str, int, int, float, tuple[int, ...], int]) -> tuple[Profile, ...]:
    return tuple(
        Profile(name=name, id=number, total=total, memory_gib=memory, starts=starts, size=size)
        for name, number, total, memory, starts, size in rows
    )


_A30 = _rows(
    ("1g.6gb", 14, 4, 5.81, (0, 1, 2, 3), 1),
    ("1g.6gb+me", 21, 1, 5.81, (0, 1, 2, 3), 1),
    ("2g.12gb", 5, 2, 11.69, (0, 2), 2),
    ("2g.12gb+me", 6, 1, 11.69, (0, 2), 2),
    ("4g.24gb", 0, 1, 23.44, (0,), 4),
)
_RTX_PRO_6000 = _rows(
    *(
        (f"1g.24gb{media}", number, total, 23.62, (0, 3, 6, 9), 3)
        for media, number, total in (
            ("", 14, 4),
            ("+me", 21, 1),
            ("+gfx", 47, 4),
            ("+me.all", 65, 1),
            ("-me", 67, 4),
        )
    ),
    *(
        (f"2g.48gb{media}", number, total, 47.38, (0, 6), 6)
        for media, number, total in (("", 5, 2), ("+gfx", 35, 2), ("+me.all", 64, 1), ("-me", 66, 2))
    ),
    ("4g.96gb", 0, 1, 95.12, (0,), 12),
    ("4g.96gb+gfx", 32, 1, 95.12, (0,), 12),
)

_NONE = (None, None, None)
BOARDS: dict[str, Geometry] = {
    "A30-24GB": Geometry(board="A30-24GB", slots=4, profiles=_A30),
    "RTX-PRO-6000-96GB": Geometry(board="RTX-PRO-6000-96GB", slots=12, profiles=_RTX_PRO_6000),
    **dict(
        (
            _eight(
                "A100-40GB",
                "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
                (4.75, 9.62, 9.62, 19.5, 19.5, 39.25),
            ),
            _eight(
                "A100-80GB",
                "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
                (9.5, 19.5, 19.5, 39.25, 39.25, 79.0),
            ),
            _eight(
                "H100-80GB",
                "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
                (9.75, 19.62, 19.62, 39.5, 39.5, 79.25),
            ),
            _eight(
                "H100-NVL-94GB",
                "1g.12gb 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb",
                (10.75, 21.62, 21.62, 46.38, 46.38, 93.12),
            ),
            _eight("H100-96GB", "1g.12gb 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb", (*_NONE, *_NONE)),
            _eight(
                "GH200-96GB",
                "1g.12gb 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb",
                (11.0, 23.0, 23.0, 46.5, 46.5, 93.0),
            ),
            _eight(
                "GH200-144GB",
                "1g.18gb 1g.36gb 2g.36gb 3g.72gb 4g.72gb 7g.144gb",
                (17.5, 35.25, 35.25, *_NONE),
            ),
            _eight(
                "H20-96GB", "1g.12gb 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb", (11.75, None, None, *_NONE)
            ),
            _eight(
                "H200-141GB",
                "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
                (16.0, 32.5, 32.5, 69.75, 69.75, 140.0),
            ),
            _eight(
                "B200-180GB",
                "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
                (22.0, 44.25, 44.25, *_NONE),
                guessed=True,
            ),
            _eight(
                "GB200-186GB",
                "1g.23gb 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb",
                (22.0, 45.5, 45.5, *_NONE),
                guessed=True,
            ),
            _eight(
                "B300-269GB",
                "1g.34gb 1g.67gb 2g.67gb 3g.135gb 4g.135gb 7g.269gb",
                (*_NONE, *_NONE),
                guessed=True,
            ),
            _eight(
                "GB300-278GB",
                "1g.35gb 1g.70gb 2g.70gb 3g.139gb 4g.139gb 7g.278gb",
                (*_NONE, *_NONE),
                guessed=True,
            ),
        )
    ),
}
"""By the name that `mig plan --model` and `lab up --gpus` take."""


def board(name: str) -> Geometry:
    """A shipped board by its name, letter case apart.

    Raises:
        UsageError: none is called so, with the nearest names.
    """
    found = next((one for key, one in BOARDS.items() if key.lower() == name.lower()), None)
    if found is not None:
        return found
    near = nearest_words(name, BOARDS)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(sorted(BOARDS))}"
    raise UsageError(
        f"no board is called {name[:60]!r}", hints=(hint, "a host's own tables need no name: HOST:INDEX")
    )
