"""The house rules that no other tool checks."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_room_answers_the_four_questions(generator: ModuleType) -> None:
    missing = [
        (str(room.relative_to(ROOT)), question)
        for room in generator.rooms()
        for question, answer in generator.answers(room).items()
        if not answer
    ]
    assert missing == []


def test_generated_pages_are_fresh(generator: ModuleType) -> None:
    assert generator.main("--check") == 0, "run: python docs/generate.py --write"


def test_every_error_has_its_own_code_and_a_docstring(generator: ModuleType) -> None:
    classes = generator.error_classes()
    codes = [item.code for item in classes]
    assert len(codes) == len(set(codes))
    assert all(item.__doc__ for item in classes)


def test_every_command_and_option_has_help(generator: ModuleType) -> None:
    silent = []
    for name, command in generator.commands():
        if not (command.help or "").strip():
            silent.append(name)
        silent += [
            f"{name} {item.opts}"
            for item in command.params
            if item.param_type_name == "option" and not getattr(item, "help", None)
        ]
    assert silent == []


def test_no_file_is_longer_than_four_hundred_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in (ROOT / "gpufleet").rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}


def test_functions_fit_a_screen() -> None:
    """Sixty lines with the docstring: a screen, not the forty that a reviewer hopes for."""
    long = []
    for path in (ROOT / "gpufleet").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 60:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} {lines}")
    assert long == []


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_command_and_option_stands_in_a_guide(generator: ModuleType) -> None:
    pages = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", *(ROOT / "docs" / "guides").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    missing = []
    for name, command in generator.commands():
        group, _, verb = name.rpartition(" ")
        if not re.search(rf"\b{re.escape(name)}\b|`{re.escape(verb)}` of `{re.escape(group)}`", text):
            missing.append(name)
        missing += [
            f"{name} {item.opts[0]}"
            for item in command.params
            if item.param_type_name == "option" and item.name != "help" and not set(item.opts) & _words(text)
        ]
    assert missing == [], f"tell of them in docs/guides: {', '.join(missing)}"


def test_every_finding_and_every_global_option_stands_in_a_guide() -> None:
    from gpufleet.cli import settings
    from gpufleet.hosts.symptoms import SYMPTOMS

    hosts, line = (
        (ROOT / "docs" / "guides" / f"{name}.md").read_text(encoding="utf-8")
        for name in ("hosts", "command-line")
    )
    source = (ROOT / "gpufleet" / "hosts" / "doctor.py").read_text(encoding="utf-8")
    computed = re.findall(r'"((?:mig|cdi|gpu|disk|noisy|open|sudo|\w+)-[a-z-]+)"', source)
    assert len(computed) > 10
    codes = {*SYMPTOMS, *computed} - {"runtime-", "driver-"}
    assert sorted(code for code in codes if f"`{code}`" not in hosts) == []
    assert sorted({*settings.VALUED, *settings.FLAGS} - _words(line)) == []


def _words(text: str) -> set[str]:
    """Options as a page writes them."""
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))


HEAVY = {"paramiko", "asyncio", "httpx"}


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        ["inventory", "validate", "-i", str(ROOT / "inventory.example.yaml")],
        ["explain", str(ROOT / "tests" / "tables" / "failure_samples.yaml")],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_start_up_imports_nothing_heavy(words: list[str]) -> None:
    """`--version`, `--help` and `inventory validate` must answer before a person notices a wait."""
    probe = (
        "import sys\n"
        "from gpufleet.cli.app import main\n"
        f"code = main({words!r})\n"
        f"print('HEAVY', sorted({HEAVY!r} & set(sys.modules)), code, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert "HEAVY [] 0" in done.stderr, done.stderr
