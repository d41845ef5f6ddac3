"""Every flag, error, claim and public name is in the reference, and the generated pages are up to date."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

from assay.cli import main
from assay.core.catalog import catalog

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "errors.md", "claims.md", "python.md"])
def test_generated_pages_are_up_to_date(generate, name):
    stale = "run python docs/generate.py and commit what it writes"
    assert (REFERENCE / name).read_text(encoding="utf-8") == generate.pages()[name], stale


def test_every_flag_is_documented_under_its_verb():
    sections = dict(
        re.findall(r"^## `(assay[ \w]*)`$(.*?)(?=^## |\Z)", _text("cli.md"), flags=re.MULTILINE | re.DOTALL)
    )
    with click.Context(main, info_name="assay") as root:
        for verb in main.list_commands(root):
            command = main.get_command(root, verb)
            assert command is not None
            for parameter in command.params:
                if isinstance(parameter, click.Option):
                    for flag in parameter.opts:
                        assert re.search(rf"[`, ]{re.escape(flag)}[`, ]", sections[f"assay {verb}"]), (
                            verb,
                            flag,
                        )


def test_every_flag_has_a_sentence_of_help():
    with click.Context(main, info_name="assay") as root:
        for verb in main.list_commands(root):
            command = main.get_command(root, verb)
            assert command is not None
            assert command.help
            for parameter in command.params:
                if isinstance(parameter, click.Option):
                    assert parameter.help, (verb, parameter.opts)
                    assert parameter.help.endswith("."), (verb, parameter.opts)


def test_every_error_is_documented(generate):
    for kind in generate.error_classes():
        assert f"| `{kind.__name__}` | {kind.exit_code} | " in _text("errors.md")


def test_every_claim_is_documented():
    text = _text("claims.md")
    for claim in catalog().values():
        assert f"### `{claim.id}`" in text
        assert claim.statement in text


def test_every_public_name_is_documented_and_has_a_docstring(generate):
    text = _text("python.md")
    for package in generate.PACKAGES:
        section = text.partition(f"## `{package}`\n")[2].partition("\n## ")[0]
        names = generate.public_names(package)
        assert names, package
        for name, value in names:
            assert f"### `{name}`\n" in section, f"{package}.{name}"
            if isinstance(value, type) or callable(value):
                assert value.__doc__, f"{package}.{name} has no docstring"


def test_every_code_of_the_exit_contract_is_documented():
    for code in ("0", "1", "2", "3", "130", "141"):
        assert f"\n| {code} | " in _text("cli.md")


def _text(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")
