"""Headers of safetensors files: what they say, and that a damaged one is an error and never a wrong sum."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.errors import DocumentError
from gpufleet.models.model import Weights
from gpufleet.models.weights import BITS, header_length, parse, summed
from gpufleet.models.weights_file import INDEX, read_directory, read_file

Shapes = dict[str, tuple[str, tuple[int, ...]]]

names = st.text("abcdefgh.0123456789_", min_size=1, max_size=20).filter(lambda name: name != "__metadata__")
kinds = st.sampled_from([kind for kind in BITS if BITS[kind] % 8 == 0])
shapes = st.dictionaries(
    names, st.tuples(kinds, st.lists(st.integers(0, 5), max_size=3).map(tuple)), max_size=6
)


def content(tensors: Shapes, *, padding: int = 0) -> bytes:
    """A file as the format describes it, its tensors full of zeros."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, (kind, shape) in tensors.items():
        size = BITS[kind] // 8
        for extent in shape:
            size *= extent
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [place, place + size]}
        place += size
    header = json.dumps(entries).encode() + b" " * padding
    return len(header).to_bytes(8, "little") + header + bytes(place)


def sizes(tensors: Shapes) -> dict[str, int]:
    found = {}
    for name, (kind, shape) in tensors.items():
        size = BITS[kind] // 8
        for extent in shape:
            size *= extent
        found[name] = size
    return found


def parsed(whole: bytes) -> dict[str, int]:
    length = header_length(whole[:8], len(whole), "file")
    return {tensor.name: tensor.size for tensor in parse(whole[8 : 8 + length], len(whole), "file")}


@given(tensors=shapes, padding=st.integers(0, 9))
def test_every_tensor_is_found_with_its_size(tensors: Shapes, padding: int) -> None:
    assert parsed(content(tensors, padding=padding)) == sizes(tensors)


@given(tensors=shapes, place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_an_error_or_changes_no_sum(tensors: Shapes, place: int, bit: int) -> None:
    """A bit inside a name or a type of the same width cannot be seen here; the index sees the name."""
    whole = bytearray(content(tensors))
    whole[place % len(whole)] ^= 1 << bit
    try:
        found = parsed(bytes(whole))
    except DocumentError as error:
        assert str(error).startswith("file: the weights are damaged")
    else:
        assert sum(found.values()) == sum(sizes(tensors).values())


@given(whole=st.binary(max_size=200))
def test_no_bytes_do_more_than_raise_our_error(whole: bytes) -> None:
    try:
        parsed(whole)
    except DocumentError as error:
        assert error.hints


@given(tensors=shapes.filter(lambda made: sum(sizes(made).values()) > 0), cut=st.integers(1, 10_000))
def test_a_file_that_was_cut_short_is_an_error(tensors: Shapes, cut: int) -> None:
    whole = content(tensors)
    with pytest.raises(DocumentError):
        parsed(whole[: len(whole) - 1 - cut % (len(whole) - 1)])


def write(path: Path, tensors: Shapes) -> Path:
    path.write_bytes(content(tensors))
    return path


LAYER: Shapes = {
    "model.embed_tokens.weight": ("BF16", (100, 8)),
    "model.layers.0.self_attn.q_proj.weight": ("BF16", (8, 8)),
    "model.layers.0.input_layernorm.weight": ("BF16", (8,)),
    "model.layers.0.mlp.gate.weight": ("BF16", (4, 8)),
    "model.layers.0.mlp.gate_proj.weight": ("BF16", (16, 8)),
}
HEAD: Shapes = {"lm_head.weight": ("BF16", (100, 8))}


def test_bytes_are_sorted_by_what_becomes_of_them(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", LAYER | HEAD)
    found = read_directory(tmp_path)
    assert found == Weights(
        linear=384, linear_numbers=192, wide=1600, replicated=80, output=1600, experts=0, tensors=6
    )


def test_experts_in_four_bits_are_counted_apart() -> None:
    made = content(
        {
            "model.layers.0.mlp.experts.gate_up_proj_blocks": ("U8", (2, 4, 2, 16)),
            "model.layers.0.mlp.experts.gate_up_proj_scales": ("U8", (2, 4, 2)),
        }
    )
    length = header_length(made[:8], len(made), "file")
    found = summed(parse(made[8 : 8 + length], len(made), "file"))
    assert (found.experts, found.linear_numbers) == (272, None)


def index(folder: Path, places: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_with_an_index_its_files_are_read_and_no_others(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", LAYER)
    write(tmp_path / "b.safetensors", HEAD)
    write(tmp_path / "left-over.safetensors", HEAD)
    index(tmp_path, dict.fromkeys(LAYER, "a.safetensors") | dict.fromkeys(HEAD, "b.safetensors"))
    assert read_directory(tmp_path).tensors == 6


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "b.safetensors").unlink(), "cannot be read"),
        (
            lambda folder: write(folder / "b.safetensors", {"lm_bead.weight": ("BF16", (100, 8))}),
            "are in no file",
        ),
        (lambda folder: (folder / "b.safetensors").write_bytes(b"\xff" * 64), "damaged"),
        (lambda folder: (folder / "b.safetensors").write_bytes(b""), "ends before its header"),
        (lambda folder: (folder / INDEX).write_text("{"), "index of the weights is damaged"),
        (
            lambda folder: (folder / INDEX).write_text('{"weight_map": {"x": "../y"}}'),
            "no file of this directory",
        ),
        (lambda folder: (folder / INDEX).write_text('{"weight_map": {}}'), "names no tensors"),
    ],
)
def test_a_directory_that_does_not_hold_together_is_named(tmp_path: Path, spoil, message: str) -> None:
    write(tmp_path / "a.safetensors", LAYER)
    write(tmp_path / "b.safetensors", HEAD)
    index(tmp_path, dict.fromkeys(LAYER, "a.safetensors") | dict.fromkeys(HEAD, "b.safetensors"))
    spoil(tmp_path)
    with pytest.raises(DocumentError, match=message) as caught:
        read_directory(tmp_path)
    assert str(tmp_path) in caught.value.where


def test_without_an_index_two_copies_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", HEAD)
    write(tmp_path / "b.safetensors", HEAD)
    with pytest.raises(DocumentError, match=r"is in a\.safetensors too"):
        read_directory(tmp_path)


def test_a_directory_without_weights_says_what_to_give_instead(tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as caught:
        read_directory(tmp_path)
    assert "--parameters" in caught.value.hints[0]
    with pytest.raises(DocumentError, match="cannot be read"):
        read_directory(tmp_path / "nowhere")
    with pytest.raises(DocumentError, match="cannot be read"):
        read_file(tmp_path / "nowhere.safetensors")
