"""The scripts that carry an image, in real shells, with a real curl and a real giver; the runtime is a stand-in.

The stand-in keeps an image as a file whose SHA-256 is its id, so that what was loaded is what was saved or another one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.change.model import CannotTell, Fails, Holds
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.staging import archive, images, looks
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.framing import frame, unframe
from gpufleet.remote.result import Exit
from tests.kit import weight_sources
from tests.kit.givers import giver

SHELLS = {"dash": ("dash",), "bash": ("bash",), "busybox": ("busybox", "sh")}
RUNTIME = """#!/bin/sh
images=$(dirname "$0")/images users=$(dirname "$0")/users
mkdir -p "$images"
id_of() { if [ -f "$images/$1" ]; then sha256sum <"$images/$1" | cut -c 1-64; fi; }
find_it() { for file in "$images"/*; do name=${file##*/}; case sha256:$(id_of "$name") in "$1"|"sha256:$1") echo "$name" ;; esac; done; }
case "$1 $2" in
"image inspect")
  name=$5
  [ -f "$images/$name" ] || name=$(find_it "$name")
  [ -n "$name" ] || { echo "Error: No such image" >&2; exit 1; }
  echo "sha256:$(id_of "$name")" ;;
save*) cat "$images/$2" ;;
load*) cat >"$images/loaded.new" && mv "$images/loaded.new" "$images/loaded" && echo "Loaded image: loaded" ;;
ps*) cat "$users" 2>/dev/null; exit 0 ;;
rmi*) rm -f "$images/$(find_it "$2")" ;;
*) exit 9 ;;
esac
"""
CONTENT = bytes(range(256)) * 2000
ID = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class House:
    """One host: a home, and a runtime of its own."""

    def __init__(self, path: Path, shell: tuple[str, ...] = ("/bin/sh",)) -> None:
        self.home, self.shell = path, shell
        path.mkdir()
        (path / "runtime").write_text(RUNTIME)
        (path / "runtime").chmod(0o755)
        self.dialect = Dialect(
            path=str(path / "runtime"), kind="docker", root=False, updates=True, rootless=False
        )
        self.final = str(path / "store" / "image")
        (path / "images").mkdir()

    def run(self, command: Command) -> Exit:
        ended = subprocess.run(
            [*self.shell, "-s"],
            input=frame(command, "marker"),
            capture_output=True,
            env={"HOME": str(self.home), "PATH": "/usr/local/bin:/usr/bin:/bin"},
            timeout=120,
            check=False,
        )
        answer = unframe(ended.stdout, ended.stderr, "marker").exit
        assert answer is not None, ended.stderr
        return answer

    def images(self) -> set[str]:
        return {one.name for one in (self.home / "images").iterdir()}


@pytest.fixture
def one(tmp_path: Path) -> House:
    house = House(tmp_path / "one")
    (house.home / "images" / "engine").write_bytes(CONTENT)
    return house


def saved(house: House) -> Exit:
    return house.run(archive.save(house.dialect, house.final, "engine", ID, 1))


def taken(house: House, url: str) -> Exit:
    return house.run(archive.take(house.dialect, house.final, Secret(f"{url}/word"), "gpu-02", size=1))


def loaded(house: House, owner: str = "run-1") -> Exit:
    return house.run(archive.load(house.dialect, house.final, ID, owner, 1))


@pytest.mark.parametrize("shell", SHELLS)
def test_an_image_goes_from_one_host_to_another_and_is_undone(tmp_path: Path, shell: str):
    one, two = House(tmp_path / "one", SHELLS[shell]), House(tmp_path / "two", SHELLS[shell])
    (one.home / "images" / "engine").write_bytes(CONTENT)
    assert saved(one) == Exit(code=0)
    assert saved(one) == Exit(code=0)
    with giver(Path(one.final), "word") as url:
        assert taken(two, url) == Exit(code=0)
        assert taken(two, url) == Exit(code=0)
    assert looks.whole(two.run(archive.there(two.dialect, two.final)), (two.final,)) == Holds()
    assert loaded(two) == Exit(code=0)
    look = archive.loaded(two.dialect, two.final, ID, "run-1")
    assert looks.image_loaded(two.run(look), (ID,)) == Holds()
    assert looks.image_unloaded(two.run(look), ()) == Fails("an image that this run loaded is left")
    assert two.run(archive.drop(two.dialect, two.final)) == Exit(code=0)
    assert looks.archive_gone(two.run(archive.there(two.dialect, two.final)), ()) == Holds()
    assert two.run(archive.unload(two.dialect, two.final, ID, "run-1")) == Exit(code=0)
    assert two.images() == set()
    assert looks.image_unloaded(two.run(look), ()) == Holds()


def test_a_copy_that_broke_off_goes_on_where_it_was(tmp_path: Path, one: House):
    saved(one)
    two = House(tmp_path / "two")
    files = {f"word/{file.name}": file.read_bytes() for file in Path(one.final).iterdir()}
    with weight_sources.plain(files, cut={"word/image.tar": [100_000, 50_000]}) as served:
        assert taken(two, served.url) == Exit(code=0)
        starts = [headers.get("range", "") for _, path, headers in served.asked if path.endswith("image.tar")]
    assert starts == ["", "bytes=100000-", "bytes=150000-"]
    assert (Path(two.final) / "image.tar").read_bytes() == CONTENT


def test_a_flipped_byte_on_the_way_is_no_image(tmp_path: Path, one: House):
    saved(one)
    two = House(tmp_path / "two")
    files = {f"word/{file.name}": file.read_bytes() for file in Path(one.final).iterdir()}
    flipped = bytearray(CONTENT)
    flipped[4711] ^= 1
    with weight_sources.plain({**files, "word/image.tar": bytes(flipped)}) as served:
        answer = taken(two, served.url)
        assert served.reads("image.tar") == 2
    assert answer.code == 1
    assert "and gpu-02 tells" in answer.stderr
    assert not Path(two.final).exists()


def test_an_archive_with_another_image_in_it_is_not_what_was_wanted_and_is_removed(tmp_path: Path):
    two = House(tmp_path / "two")
    Path(two.final).mkdir(parents=True)
    (Path(two.final) / "image.tar").write_bytes(b"another image")
    answer = loaded(two)
    assert answer.code == 1
    assert f"what was loaded is not {ID}" in answer.stderr
    assert "use a registry, or one kind of store" in answer.stderr.splitlines()[-1]


def test_an_image_that_was_there_or_is_used_is_never_removed(tmp_path: Path, one: House):
    two = House(tmp_path / "two")
    shutil.copytree(one.home / "images", two.home / "images", dirs_exist_ok=True)
    assert loaded(two) == Exit(code=0)
    assert two.run(archive.unload(two.dialect, two.final, ID, "run-1")) == Exit(code=0)
    assert two.images() == {"engine"}
    (two.home / "images" / "engine").unlink()
    Path(two.final).mkdir(parents=True)
    (Path(two.final) / "image.tar").write_bytes(CONTENT)
    assert loaded(two, "run-2") == Exit(code=0)
    assert two.run(archive.unload(two.dialect, two.final, ID, "another-run")) == Exit(code=0)
    (two.home / "users").write_text("0123456789ab\n")
    assert two.run(archive.unload(two.dialect, two.final, ID, "run-2")) == Exit(code=0)
    assert two.images() == {"loaded"}


def test_an_image_that_is_another_by_now_is_not_saved(one: House):
    (one.home / "images" / "engine").write_bytes(b"moved")
    answer = saved(one)
    assert answer.code == 1
    assert f"not {ID}" in answer.stderr
    assert not Path(one.final).exists()
    (one.home / "images" / "engine").unlink()
    assert "not there any more" in saved(one).stderr


def test_a_runtime_that_is_gone_says_nothing(tmp_path: Path):
    two = House(tmp_path / "two")
    Path(two.final).mkdir(parents=True)
    (Path(two.final) / "image.tar").write_bytes(CONTENT)
    assert loaded(two) == Exit(code=0)
    (two.home / "runtime").write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2; exit 1\n")
    assert not two.run(archive.unload(two.dialect, two.final, ID, "run-1")).ok
    answer = two.run(archive.loaded(two.dialect, two.final, ID, "run-1"))
    assert isinstance(looks.image_loaded(answer, (ID,)), CannotTell)
    assert looks.image_unloaded(answer, ()) == Fails("an image that this run loaded is left")
    assert not two.run(images.look(two.dialect, "engine")).ok


def test_a_giver_that_does_not_answer_is_named(tmp_path: Path):
    two = House(tmp_path / "two")
    command = archive.take(two.dialect, two.final, Secret("http://127.0.0.1:9/word"), "gpu-02", size=1)
    answer = two.run(replace(command, script=command.script.replace("sleep", ":")))
    assert "gpu-02 does not give the image" in answer.stderr
    assert "word" not in answer.stderr


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_image_that_is_not_there_is_known_not_to_be(text: str):
    assert images.read_look(text) == images.ImageOnHost()
    assert images.read_look("?") is None


def test_podmans_ids_are_named_as_dockers():
    seen = images.read_look(f"{'7' * 64} 1024\n[]\n")
    assert seen == images.ImageOnHost(id=f"sha256:{'7' * 64}", size=1024)


UNREACHED = 'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io: no such host'


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ('answer\n{"Descriptor":{"digest":"sha256:1"}}\n200', ""),
        (f"answer\n{json.dumps({'message': UNREACHED})}\n500", "it does not reach the registry"),
        ('answer\n{"message":"manifest unknown: manifest unknown"}\n404', "the registry does not have it"),
        ('answer\n{"message":"errors: denied: requested access"}\n403', ""),
        ('answer\n{"message":"page not found"}\n404', ""),
        ("refused 504", "its registry did not answer within 15 s"),
        (
            'refused 500\ntime="..." level=fatal msg="pinging container registry r: dial tcp: i/o timeout"',
            "it does not reach the registry",
        ),
        ("refused 500\nunauthorized: authentication required", ""),
        ("given", ""),
        ("unknown", ""),
        ("?", ""),
        ("", ""),
    ],
)
def test_what_a_registry_says_decides_only_where_it_is_clear(text: str, refusal: str):
    assert images.refusal_of(text) == refusal
