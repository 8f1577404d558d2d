"""A directory of safetensors files: the headers are read, the tensors are not.

With an index (`model.safetensors.index.json`) the files that it names are read, and every tensor it promises must
be in the file that it names; without one, every `*.safetensors` in the directory.
"""

from __future__ import annotations

import json
from pathlib import Path

from gpufleet.errors import DocumentError
from gpufleet.models.model import Tensor, Weights
from gpufleet.models.weights import LENGTH, header_length, parse, summed

INDEX = "model.safetensors.index.json"
INDEX_LIMIT = 100_000_000


def read_directory(directory: Path) -> Weights:
    """What the weights in a directory weigh.

    Raises:
        DocumentError: there are none, a file is missing, or one is damaged; the file is named.
    """
    tensors: list[Tensor] = []
    seen: dict[str, str] = {}
    promised = _promised(directory)
    files = sorted(set(promised.values())) if promised is not None else _files(directory)
    for name in files:
        for tensor in read_file(directory / name):
            if tensor.name in seen and promised is None:
                raise DocumentError(
                    f"tensor `{tensor.name}` is in {seen[tensor.name]} too: these are two models, or two copies of one",
                    where=str(directory / name),
                    hints=("keep one set of files in the directory",),
                )
            if promised is None or promised.get(tensor.name) == name:
                seen[tensor.name] = name
                tensors.append(tensor)
    lost = sorted(set(promised or ()) - set(seen))
    if promised and lost:
        raise DocumentError(
            f"{len(lost)} tensors of the index are in no file, first `{lost[0]}`",
            where=str(directory / promised[lost[0]]),
            hints=("copy the files again: index and weights are of two versions",),
        )
    return summed(tensors)


def read_file(path: Path) -> tuple[Tensor, ...]:
    """The tensors of one file, from its header.

    Raises:
        DocumentError: it cannot be read, or is no safetensors file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = header_length(stream.read(LENGTH), size, str(path))
            header = stream.read(length)
    except OSError as error:
        raise DocumentError(
            f"cannot be read: {(error.strerror or str(error)).lower()}", where=str(path)
        ) from error
    return parse(header, size, str(path))


def _files(directory: Path) -> list[str]:
    try:
        found = sorted(path.name for path in directory.iterdir() if path.name.endswith(".safetensors"))
    except OSError as error:
        raise DocumentError(
            f"cannot be read: {(error.strerror or str(error)).lower()}", where=str(directory)
        ) from error
    if not found:
        raise DocumentError(
            "there is no safetensors file in this directory",
            where=str(directory),
            hints=("other formats do not tell their size before they are loaded: give `--parameters N`",),
        )
    return found


def _promised(directory: Path) -> dict[str, str] | None:
    """Tensor to file, by the index; None without one."""
    path = directory / INDEX
    try:
        if not path.exists():
            return None
        if path.stat().st_size > INDEX_LIMIT:
            raise DocumentError(f"the index is larger than {INDEX_LIMIT // 1_000_000} MB", where=str(path))
        named = json.loads(path.read_bytes()).get("weight_map")
    except OSError as error:
        raise DocumentError(
            f"cannot be read: {(error.strerror or str(error)).lower()}", where=str(path)
        ) from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise DocumentError("the index of the weights is damaged: it is not JSON", where=str(path)) from error
    if not isinstance(named, dict) or not named:
        raise DocumentError("the index of the weights names no tensors (`weight_map`)", where=str(path))
    for tensor, file in named.items():
        if not isinstance(file, str) or "/" in file or file in {"", ".", ".."}:
            raise DocumentError(
                f"the index puts tensor `{tensor}` into no file of this directory", where=str(path)
            )
    return dict(named)
