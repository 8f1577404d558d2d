"""`gpufleet inventory` as a process: exit codes, messages with file and line, JSON, nothing heavy imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "inventory.example.yaml"


def gpufleet(*words: str, folder: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpufleet", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE.parent), "NO_COLOR": "1", **env},
    )


def refused(tmp_path: Path, content: str | bytes, *words: str) -> str:
    """The error text of a command on an inventory that is wrong; nothing else may have happened."""
    path = tmp_path / "inventory.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    ended = gpufleet(*(words or ("inventory", "validate")), folder=tmp_path)
    assert ended.returncode == 2, ended
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert [item.name for item in tmp_path.iterdir()] == ["inventory.yaml"]
    return ended.stderr


FLEET = "hosts:\n  gpu-01: {groups: [a100], labels: {rack: r1}}\n  gpu-02: {groups: [a100]}\n  edge:\n"


def test_the_example_is_valid():
    ended = gpufleet("inventory", "validate", "-i", str(EXAMPLE))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"{EXAMPLE}: 5 hosts, 4 groups, no mistakes\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("hosts:\n  a: {user: x}\n  a: {user: y}\n", "inventory.yaml:3: duplicate key `a`, first on line 2"),
        (
            "hosts:\n  a:\n    adress: x\n",
            "inventory.yaml:3: unknown field `adress`, did you mean `address`?",
        ),
        ("hosts:\n  a:\n    port: 70000\n", "inventory.yaml:3: `port`: expected a whole number <= 65535"),
        (
            "hosts:\n  a: {address: 10.0.0.1}\n  b: {address: '10.0.0.1:22'}\n",
            "`b` and `a` (line 2) are one host",
        ),
        ("hosts:\n\ta:\n", "inventory.yaml:2: a tab indents this line"),
        ("", "inventory.yaml: the file is empty"),
        (b"hosts:\n  a: {user: \xe9}\n", "inventory.yaml:2: not UTF-8: byte 0xe9 at offset 19"),
        (b"hosts: {a: }\n" + b"# " + b"x" * 10_000_000, "inventory.yaml: the file is larger than 5 MB"),
        ("hosts:\n  a:\n    user: [x\n", "inventory.yaml:4: not YAML"),
        ("hosts: {a: }\n---\nhosts: {b: }\n", "inventory.yaml:2: a second document begins here"),
        (
            "hosts: {a: }\ngroups:\n  g: {hosts: [b]}\n",
            "inventory.yaml:3: group `g` lists an unknown host `b`",
        ),
    ],
)
def test_bad_input_is_one_clear_error(tmp_path, content, says):
    assert says in refused(tmp_path, content)


def test_all_mistakes_come_at_once(tmp_path):
    text = refused(tmp_path, "hosts:\n  a: {prot: 1}\n  b: {port: 0}\n  c: {address: '1:2:3'}\n")
    assert [line.split(": ")[0].strip() for line in text.splitlines() if line.startswith("  inv")] == [
        "inventory.yaml:2",
        "inventory.yaml:3",
        "inventory.yaml:4",
    ]


@pytest.mark.parametrize(
    ("selector", "says"),
    [
        (["gpu-1"], "unknown host `gpu-1`"),
        (["tpu*"], "no host matches `tpu*`"),
        (["group=h100"], "unknown group `h100`"),
        (["rack=r2"], "no host has `rack=r2`"),
        (["edge", "!edge"], "`edge,!edge` leaves no host"),
        ([","], "no host is selected"),
    ],
)
def test_selectors_that_select_nothing(tmp_path, selector, says):
    assert says in refused(tmp_path, FLEET, "inventory", "show", *selector)


def test_a_missing_inventory_names_the_option(tmp_path):
    ended = gpufleet("inventory", "validate", folder=tmp_path)
    assert ended.returncode == 2
    assert "--inventory" in ended.stderr


def test_errors_in_json_have_rows(tmp_path):
    (tmp_path / "bad.yaml").write_text("hosts:\n  a: {prot: 1}\n  b: {port: 0}\n")
    ended = gpufleet("inventory", "validate", "-i", "bad.yaml", "-o", "json", folder=tmp_path)
    assert ended.returncode == 2
    answer = json.loads(ended.stdout)
    assert (answer["command"], answer["outcome"], answer["exit"]) == ("inventory validate", "failed", 2)
    assert answer["error"]["code"] == "document"
    assert [row["where"] for row in answer["error"]["rows"]] == ["bad.yaml:2", "bad.yaml:3"]


def test_show_prints_inherited_values_and_references_only(tmp_path):
    (tmp_path / "inventory.yaml").write_text(
        "defaults: {user: ops, sudo_password: '${env:SUDO}', passphrase: '${cmd:touch ran}'}\n" + FLEET
    )
    ended = gpufleet(
        "inventory", "show", "group=a100", "!gpu-02", "-o", "json", folder=tmp_path, SUDO="hunter2"
    )
    (host,) = json.loads(ended.stdout)["hosts"]
    assert (host["host"], host["user"], host["groups"], host["labels"]) == (
        "gpu-01",
        "ops",
        ["a100"],
        {"rack": "r1"},
    )
    assert host["secrets"] == {"sudo_password": "${env:SUDO}", "passphrase": "${cmd:touch ran}"}
    assert "hunter2" not in ended.stdout + ended.stderr
    assert not (tmp_path / "ran").exists()
    text = gpufleet("inventory", "show", folder=tmp_path)
    assert text.stdout.splitlines()[0].split() == ["HOST", "ADDRESS", "USER", "GROUPS", "LABELS", "RUNTIME"]
    assert len(text.stdout.splitlines()) == 4


def test_the_schema_is_json():
    ended = gpufleet("inventory", "schema")
    assert json.loads(ended.stdout)["$defs"]["HostDocument"]["additionalProperties"] is False


def test_validate_imports_nothing_heavy():
    code = (
        "import sys\nfrom gpufleet.cli.app import main\n"
        f"main(['inventory', 'validate', '-i', {str(EXAMPLE)!r}])\n"
        "print([name for name in ('paramiko', 'asyncio', 'httpx', 'rich.table', 'uvloop') if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE.parent)},
    )
    assert ended.stdout.splitlines()[-1] == "[]"
