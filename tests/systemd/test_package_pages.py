"""systemd.packages: man pages, configuration, completions and scripts of the packages agree with the program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from appliance.cli.command_tree import tree
from appliance.config import KEYS
from appliance.data_directory import FORMAT
from appliance.input_settings import TYPE_KEYS
from systemd.packages import description, documents, environment, manual_pages
from systemd.packages.__main__ import PACKINGS

from ..support.command_line import succeeding

PAGES = manual_pages.pages("0.1.0")


def commands(group: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, each in group.commands.items():
        if not each.hidden:
            yield from commands(each, *words, name) if hasattr(each, "commands") else [((*words, name), each)]


def test_every_command_and_option_is_in_a_page() -> None:
    for words, command in commands(get_command(tree())):
        page = PAGES[(f"appliance-{words[0]}", 1)].replace("\\-", "-")
        assert f"appliance {' '.join(words)}" in page
        for param in command.params:
            assert all(each in page for each in param.opts if each.startswith("-")), f"{words}: {param.opts}"
        assert f"appliance-{words[0]}" in PAGES[("appliance", 1)].replace("\\-", "-")


def test_every_key_is_in_the_page_of_the_configuration() -> None:
    page = PAGES[("appliance.toml", 5)].replace("\\-", "-")
    assert not [name for name in KEYS if name not in page]


def test_the_pages_are_right_for_man(tmp_path: Path) -> None:
    if shutil.which("man") is None:
        pytest.skip("there is no man")
    for (name, section), text in PAGES.items():
        path = tmp_path / f"{name}.{section}"
        path.write_text(text)
        done = subprocess.run(["man", "--warnings", "-P", "cat", "-l", str(path)], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, f"{path}: {done.stderr}"


def test_texts_cannot_become_requests_of_roff() -> None:
    assert manual_pages._safe(".de x") == "\\&.de x"
    assert manual_pages._safe("'so /etc/passwd") == "\\&'so /etc/passwd"
    assert manual_pages._safe("a\\fBb --set") == "a\\efBb \\-\\-set"


def test_the_configuration_has_all_defaults_as_comments(tmp_path: Path) -> None:
    path = tmp_path / "appliance.toml"
    text = documents.configuration()
    path.write_text(text)
    assert "right, 0 of" in succeeding("config", "check", "--config", str(path)).out
    keys = [line for line in text.splitlines() if line.startswith("#") and not line.startswith(("# ", "#\n"))]
    examples = 1 + sum(1 + len(keys) for keys in TYPE_KEYS.values())  # one of a pattern, and of each input
    assert len([line for line in keys if " = " in line]) == len(KEYS) + examples
    path.write_text("".join(f"{line.removeprefix('#')}\n" for line in text.splitlines() if not line.startswith("# ")))
    assert "right, 0 of" in succeeding("config", "check", "--config", str(path)).out


@pytest.mark.parametrize("shell", documents.COMPLETIONS)
def test_the_shells_can_read_their_completions(shell: str, tmp_path: Path) -> None:
    script = documents.completion(shell)
    assert "_APPLIANCE_COMPLETE" in script
    if shell == "zsh":
        assert script.startswith("#compdef appliance\n") and script.endswith('\n_appliance_completion "$@"\n')
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        assert subprocess.run([shell, "-n", str(tmp_path / "script")]).returncode == 0


def test_the_page_names_the_extras_that_the_packages_have() -> None:
    project = tomllib.loads((environment.ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    assert set(environment.LEFT_OUT) <= extras
    (named,) = re.findall(r"packages have ([^.]*)\.", (environment.ROOT / "systemd/README.md").read_text())
    assert set(re.findall(r"`(\w+)`", named)) == extras - set(environment.LEFT_OUT)


def test_the_links_of_installed_pages_lead_to_installed_files() -> None:
    """Of all pages that a wheel or a package brings; as the package itself, without building it."""
    project = tomllib.loads((environment.ROOT / "pyproject.toml").read_text())
    brought = {environment.ROOT / path for path in project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]}
    pages = [
        page for path in brought for page in (path.rglob("*.md") if path.is_dir() else [path]) if page.suffix == ".md"
    ]
    assert len(pages) > 5
    for page in pages:
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text()):
            path = Path(os.path.normpath(page.parent / target))
            installed = not brought.isdisjoint((path, *path.parents)) or any(path in file.parents for file in brought)
            assert "://" in target or installed, f"{page.relative_to(environment.ROOT)}: {target}"


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("name", description.SCRIPTS)
def test_the_scripts_are_right_for_sh(packing: str, name: str) -> None:
    text = description.script(packing, name, "0.1.0")
    assert subprocess.run(["sh", "-n"], input=text, text=True).returncode == 0
    assert not any(mark in text for mark in ("$SCRIPT", "$VERSION", "$FORMAT"))


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(("format", "status"), [(FORMAT, 0), (FORMAT + 1, 1), (10 * FORMAT + 9, 1), (None, 0)])
def test_preinst_refuses_a_newer_format(tmp_path: Path, packing: str, format: int | None, status: int) -> None:
    if format is not None:
        (tmp_path / "format.json").write_text(f'{{"format":{format},"release":"0.9.0"}}\n')
    text = description.script(packing, "preinst", "0.1.0").replace("/var/lib/appliance", str(tmp_path))
    words = {"deb": ["upgrade", "0.9.0"], "rpm": ["2"]}[packing]
    done = subprocess.run(["sh", "-c", text, "preinst", *words], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert ("stay with 0.9.0 or newer" in done.stderr) == bool(status)


@pytest.mark.parametrize(
    ("name", "remaining", "words"),
    [
        ("preinst", "1", "install"),
        ("preinst", "2", "upgrade"),
        ("postinst", "1", "configure"),
        ("postinst", "2", "configure before"),
        ("prerm", "1", "upgrade"),
        ("prerm", "0", "remove"),
        ("postrm", "1", "upgrade"),
        ("postrm", "0", "remove"),
    ],
)
def test_the_numbers_of_rpm_are_the_words_of_dpkg(name: str, remaining: str, words: str) -> None:
    head = (description.HERE / "rpm/head").read_text().replace("$SCRIPT", name)
    done = subprocess.run(["sh", "-c", head + 'echo "$@"', name, remaining], capture_output=True, text=True)
    assert done.stdout.strip() == words
