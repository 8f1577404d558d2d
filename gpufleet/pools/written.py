"""Changing a definition that a person wrote: comments, order and everything else stay as they are."""

from __future__ import annotations

import difflib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpufleet import whole_file, yaml_source
from gpufleet.errors import DocumentError, UsageError
from gpufleet.located import Located, Problems
from gpufleet.pools.document import from_model, to_model
from gpufleet.pools.model import Pool


def edit(path: Path, name: str, before: Pool, after: Pool) -> bool:
    """Turn the definition of a pool in a file from `before`, which it says now, into `after`; whether it was written.

    The new text is read again before it is put in place: it is written only when it then says exactly `after`.

    Raises:
        DocumentError: the change cannot be made in this file's form; it is as it was.
        UsageError: the file cannot be written.
    """
    from ruamel.yaml import YAML  # noqa: PLC0415  # heavy, and only a few commands write
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415  # with it

    path = path.resolve()
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    try:
        text = path.read_text(encoding="utf-8")
        mapping, offset = _indents(text)
        yaml.indent(mapping=mapping, sequence=offset + 2, offset=offset)
        root = yaml.load(text)
        untouched = io.StringIO()
        yaml.dump(root, untouched)
        changed = _turn(_definition(root, name), _explicit(before), _explicit(after))
        out = io.StringIO()
        yaml.dump(root, out)
        new = _patched(text, untouched.getvalue(), out.getvalue())
        again = _reads_as(new, str(path), name)
    except (YAMLError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise _unwritable(path, name) from error
    except OSError as error:
        raise _failed(path, error) from error
    if not changed:
        return False
    if again is None or _plain(again) != _plain(after):
        raise _unwritable(path, name)
    try:
        whole_file.write(path, new.encode(), path.stat().st_mode & 0o777)
    except OSError as error:
        raise _failed(path, error) from error
    return True


def _indents(text: str) -> tuple[int, int]:
    """Blanks by which this file indents a mapping, and the dash of a list below its key."""
    mapping, offset = 0, -1
    above = 0
    for line in text.splitlines():
        words = line.lstrip(" ")
        depth = len(line) - len(words)
        if not words or words.startswith("#"):
            continue
        if words.startswith("- "):
            offset = depth - above if offset < 0 else offset
        elif depth > above:
            mapping = mapping or depth - above
        above = depth if not words.startswith("- ") else above
    return mapping or 2, max(offset, 0)


def _patched(text: str, untouched: str, new: str) -> str:
    """The lines that the change made, put into the person's own text; all of `new` when lines do not correspond."""
    own, before, after = (item.splitlines(keepends=True) for item in (text, untouched, new))
    if len(own) != len(before):
        return new
    out: list[str] = []
    for kind, first, last, start, end in difflib.SequenceMatcher(None, before, after).get_opcodes():
        out += own[first:last] if kind == "equal" else after[start:end]
    return "".join(out)


def _turn(node: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Change what differs between two plain definitions, and nothing else; whether anything did."""
    changed = False
    for key in (*before, *(key for key in after if key not in before)):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        changed = True
        if isinstance(new, Mapping) and isinstance(node.get(key), Mapping):
            _turn(node[key], old if isinstance(old, Mapping) else {}, new)
        elif key in after:
            node[key] = new
        else:
            node.pop(key, None)
    return changed


def _explicit(pool: Pool) -> dict[str, Any]:
    """A definition with what people look for first, even where it is as by default."""
    return {**from_model(pool), "replicas": pool.replicas, "algorithm": pool.algorithm}


def _plain(pool: Pool) -> dict[str, Any]:
    """What a definition says, whatever the order of its members; one that is as by default needs no entry."""
    plain = from_model(pool)
    members = {name: said for name, said in sorted(plain.pop("members", {}).items()) if said}
    return {**plain, "members": members}


def _definition(root: Any, name: str) -> Any:
    pools = root.get("pools")
    if isinstance(pools, Mapping) and name in pools:
        return pools[name]
    if root.get("pool") == name:
        return root
    raise KeyError(name)


def _reads_as(text: str, where: str, name: str) -> Pool | None:
    problems = Problems()
    source = yaml_source.parse(text.encode(), where, problems)
    if source is None:
        return None
    pools = source.at("pools").value
    inner = pools.get(name) if isinstance(pools, dict) else None
    return to_model(inner if isinstance(inner, Located) else source, problems, name)


def _unwritable(path: Path, name: str) -> DocumentError:
    return DocumentError(
        f"the definition of pool {name} cannot be changed in this form; the file is as it was",
        where=str(path),
        hints=("change it by hand and run `gpufleet pool deploy`",),
    )


def _failed(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"the definition was not written: {(error.strerror or str(error)).lower()}", where=str(path)
    )
