"""House rules that a machine can check, also about the pages; CONTRIBUTING.md has the others."""

from __future__ import annotations

import ast
import gc
import inspect
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from keyword import kwlist
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from typer.main import get_command

from appliance.cli import command_tree
from appliance.config import KEYS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "appliance"
LAYERS = [  # a module may import from its own package and from lower layers
    {"clock", "errors", "extras", "kafka_settings", "libc"},
    {"names", "addresses", "die_with", "durable_files", "launch", "machine_limits", "owners", "partition_states"}
    | {"proc_net", "reserve", "table_faults", "topic_rules", "units", "value_faults"},
    {"alert_settings", "config_keys", "connected_clients", "disk_settings", "security"},
    {"input_settings", "topic_patterns", "web"},
    {"config", "catalog"},
    {"records", "retention"},
    {"wire"},
    {"shared", "log"},
    {"broker", "zookeeper", "groups", "status", "health"},
    {"transactions"},
    {"kafka_apis", "data_directory"},
    {"processes", "client"},
    {"log_access"},
    {"metrics", "spark", "inputs"},
    {"sql"},
    {"console"},
    {"bench"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
BANNED = {  # pattern -> (where it may stand, what to do instead)
    r"\.pack_into\(": ({"records/", "log/"}, "store through shared.table: pack_into shows readers a zero"),
    r"\bimport socket\b|\bimport select\b": (
        {"processes/", "client/", "zookeeper/", "bench/", "inputs/", "console/web_server.py", "web/"}
        | {"wire/sockets.py", "wire/transport.py"},
        "codecs, logs and plans are without I/O",
    ),
    r"\btime\.(time|monotonic|sleep)\(": (
        {"processes/", "client/", "zookeeper/", "cli/", "log_access/", "spark/", "bench/"},
        "take a clock as an argument",
    ),
    r"except( Exception( as \w+)?)?:|except BaseException": (
        {"processes/", "sql/beside.py", "table_faults.py"}
        | {f"spark/pipeline/{name}.py" for name in ("event_questions", "iceberg_table", "letters", "view_keeper")},
        "catch one branch of errors.py",
    ),
    r"\bimport ctypes\b(?!\.util)|\bfrom ctypes\b": ({"libc.py"}, "one module calls the C library"),
    r"\bmultiprocessing\b": ({"spark/"}, "an attacher's exit unlinks the segment: use shared.memory"),
    r"posix_ipc\.Semaphore": (set(), "a killed holder keeps it: one storing process per cell"),
    r"\bprint\(": (
        {"cli/", "processes/supervisor/"}
        | {f"bench/{name}.py" for name in ("limits", "python_kafka_client", "group_members", "connection_crowd")},
        "log it, or return it",
    ),
    r"\b(import|from) kazoo\b": ({"zookeeper/"}, "one package hides the library"),
    r"\b(import|from) kafka\b": ({"wire/kafka/"}, "one module hides the library"),
    r"\basyncio\.wait_for\(": (
        set(),
        "async with asyncio.timeout(...): up to Python 3.11 a cancellation is lost in wait_for when the end of what it "
        "waits for comes in the same turn of the loop, and whoever cancelled waits for ever",
    ),
}
FUNCTION_LINES_MAX = 60
PLACES = ("appliance", "perf", "systemd", "tests")
PAGES = sorted([*ROOT.glob("*.md"), *(path for place in PLACES for path in (ROOT / place).rglob("*.md"))])
README_LINES_MAX = 150
FOREIGN = {"call_soon_threadsafe", "send_with_data_passthrough", "rdkafka_performance"} | {"dev", "ps", "srvr"}
"""Names of asyncio, h11 and librdkafka that texts mention; an extra, a program, a word of ZooKeeper."""
OLD_WORDS = re.compile(r"\b(doors?|loan(?:ed|s)?|lend|borrow(?:er|ed)?|errands?)\b", re.IGNORECASE)
LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


@cache
def sources() -> tuple[tuple[str, str], ...]:
    """Path inside the package, and text, of every module."""
    return tuple((str(path.relative_to(PACKAGE)), path.read_text()) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def trees() -> dict[str, ast.Module]:
    """By the text of a module; whoever reads them changes nothing in them."""
    gc.disable()  # millions of nodes that stay: looking through them again and again takes longer than parsing
    try:
        return {text: ast.parse(text, name) for name, text in sources()}
    finally:
        gc.enable()


def tree(text: str) -> ast.Module:
    return trees().get(text) or ast.parse(text)


@cache
def code_only(text: str) -> str:
    """The source without docstrings and comments, so that prose may name what code may not do."""
    return ast.unparse(_DropDocstrings().visit(ast.parse(text)))


class _DropDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Pass() if is_text else node


def imported(name: str, text: str) -> list[str]:
    """First words of what a module imports from this package: ``errors``, ``wire``..."""
    package = ["appliance", *name.split("/")[:-1]]
    found: list[str] = []
    for node in ast.walk(tree(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, node.module] if node.module else base)
            found += [f"{stem}.{alias.name}" for alias in node.names]
    words = [full.split(".") for full in found]
    return [parts[1] for parts in words if parts[0] == "appliance" and len(parts) > 1]


def test_imports_point_downward() -> None:
    for name, text in sources():
        own = name.split("/")[0].removesuffix(".py")
        for target in imported(name, text) if own != "__init__" else []:
            if target in RANK and target != own:
                assert RANK[target] < RANK[own], f"{name} imports upward or sideways: {target}"


def test_every_module_has_a_layer() -> None:
    for name, _ in sources():
        assert name == "__init__.py" or name.split("/")[0].removesuffix(".py") in RANK, f"{name}: no layer"


@pytest.mark.parametrize("banned", BANNED)
def test_banned_text(banned: str) -> None:
    allowed, instead = BANNED[banned]
    for name, text in sources():
        if not any(name.startswith(place) for place in allowed):
            found = re.search(banned, text) and re.search(banned, code_only(text))
            assert not found, f"{name}: {found and found[0]!r}: {instead}"


def test_functions_fit_on_a_screen() -> None:
    for name, text in sources():
        for node in ast.walk(tree(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                assert length <= FUNCTION_LINES_MAX, f"{name}: {node.name} is {length} lines"


def test_every_key_of_the_configuration_is_read() -> None:
    """Read through its table, or through a variable that holds it: ``limits``, ``settings``, ``config``."""
    code = "\n".join(code_only(text) for name, text in sources() if name not in ("config.py", "config_keys.py"))
    read = set(re.findall(r"\b(?=(\w+)\.(\w+))", code)) | set(re.findall(r"(getattr)\([^()]*\)\.(\w+)", code))
    for key in KEYS.values():
        holders = (key.table, "limits", "settings", "_settings", "config", "_config", "getattr")
        assert any((holder, key.attribute) in read for holder in holders), f"nothing reads {key.name}"


def test_every_module_says_what_it_is() -> None:
    for name, text in sources():
        docstring = ast.get_docstring(tree(text)) or ""
        assert re.match(r"\S.*[.:]", docstring, re.DOTALL) or text == "", f"{name}: no docstring"


def test_one_thing_has_one_word() -> None:
    """Words that stood for listener, handoff and background requests."""
    for name, text in sources():
        found = OLD_WORDS.search(text)
        assert not found, f"{name}: {found and found[0]!r}: see the glossary in appliance/README.md"


def test_nothing_is_left_for_later() -> None:
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "perf").rglob("*.py"), *PAGES, ROOT / "Makefile"]:
        left = LEFTOVERS.search(path.read_text())
        assert not left, f"{path.relative_to(ROOT)}: {left and left[0]}"


def test_tests_do_not_sleep() -> None:
    for path in set((ROOT / "tests").rglob("*.py")) - {Path(__file__)}:
        text = path.read_text()
        assert "time.sleep(" not in text or "time.sleep(" not in code_only(text), f"{path.name}: wait on a condition"


# ---- the pages


def blocks(page: Path, language: str) -> Iterator[str]:
    """The code blocks of a page in a language."""
    yield from re.findall(rf"^ *```{language}\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)


def inline_code(page: Path) -> list[str]:
    """What stands in backticks in the text, outside of code blocks."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command in a console block that is the appliance's, without the name of the program."""
    for line in text.splitlines():
        words = shlex.split(line.strip().removeprefix("$ "), comments=True)
        while words:
            end = next((index for index, word in enumerate(words) if word in ("|", "&&", "&", ";", ">")), len(words))
            if end and words[0].split("/")[-1] == "appliance":
                yield words[1:end]
            del words[: end + 1]


the_command = cache(lambda: get_command(command_tree.tree()))


def unknown_word(words: list[str]) -> str:
    """The first word that is neither a command nor an option of the command before it; "" if there is none."""
    command: Any = the_command()
    rest = iter(words)
    for word in rest:
        if word.startswith("-") and len(word) > 1:
            name = word.split("=")[0]
            found = [each for each in command.params if name in (*each.opts, *each.secondary_opts)]
            if not found and name not in ("--help", "-h", "--install-completion"):
                return word
            if found and not found[0].is_flag and "=" not in word:
                next(rest, None)
        elif hasattr(command, "commands"):
            if word not in command.commands:
                return word
            command = command.commands[word]
    return ""


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX


def test_python_on_pages_parses() -> None:
    for page in PAGES:
        for block in blocks(page, "python"):
            ast.parse(block, f"{page.relative_to(ROOT)}")


def test_commands_on_pages_exist() -> None:
    for page in PAGES:
        shown = [words for block in blocks(page, "console") for words in commands(block)]
        shown += [words for code in inline_code(page) if code.startswith("appliance ") for words in commands(code)]
        for words in shown:
            wrong = unknown_word(words)
            assert not wrong, f"{page.relative_to(ROOT)}: appliance {' '.join(words)}: no {wrong!r}"


def test_links_on_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            assert found.exists(), f"{page.relative_to(ROOT)}: no {target}"
            if anchor:
                titles = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
                assert anchor in anchors, f"{page.relative_to(ROOT)}: no {target}"


def test_the_reading_order_is_that_of_the_layers() -> None:
    """The page's table has a row per layer, from the bottom up."""
    page = (PACKAGE / "README.md").read_text()
    section = page.split("## Reading order")[1].split("\n## ")[0]
    rows = [set(re.findall(r"`(\w+)`", line.split("|")[1])) for line in section.splitlines() if line.startswith("| `")]
    assert rows == [layer for layer in LAYERS if layer != {"__main__"}]


@cache
def defined() -> dict[str, set[str]]:
    """What each class of the package defines: methods, fields, and attributes that its methods assign to self."""
    found: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for _, text in sources():
        for node in ast.walk(tree(text)):
            if isinstance(node, ast.ClassDef):
                names = found.setdefault(node.name, set())
                bases.setdefault(node.name, set()).update(base.id for base in node.bases if isinstance(base, ast.Name))
                for inner in ast.walk(node):
                    match inner:
                        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.Name(id=name):
                            names.add(name)
                        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                            names.add(name)
    return {name: names.union(*(found.get(base, set()) for base in bases[name])) for name, names in found.items()}


@cache
def identifiers() -> frozenset[str]:
    """Every name in the code of the package, its tests and its benchmarks: what the compiler finds."""
    found: set[str] = set()
    for path in [path for place in ("appliance", "tests", "perf") for path in (ROOT / place).rglob("*.py")]:
        codes = [compile(path.read_text(), str(path), "exec", dont_inherit=True)]
        for code in codes:
            found.update(code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
            for constant in code.co_consts:  # keyword arguments are a tuple, a field without a value is its name
                if isinstance(constant, CodeType):
                    codes.append(constant)
                else:
                    names = constant if isinstance(constant, tuple) else (constant,)
                    found.update(name for name in names if isinstance(name, str) and name.isidentifier())
    return frozenset(found)


@cache
def module_names() -> frozenset[str]:
    """The last words of the modules' and packages' names."""
    return frozenset(name.removesuffix(".py").removesuffix("/__init__").split("/")[-1] for name, _ in sources())


@cache
def paths() -> tuple[str, ...]:
    """All files of the tree; none of hidden directories."""
    return tuple(f"/{path.relative_to(ROOT)}" for path in ROOT.glob("[!.]*/**/*"))


FOREIGN_CLASSES = {"ConfigDef"}
"""Classes of others, of which texts name a member."""


def missing(code: str, where: Path) -> str:
    """Why ``code``, which looks like a file, a class's member or a name of the package, is none; "" if all is well."""
    plain = code.removesuffix("()")
    if re.fullmatch(r"[\w./-]+\.(py|md|toml|conf|yml|service)", plain):
        places = (where.parent, ROOT, PACKAGE, PACKAGE / "processes")
        known = any((place / plain).exists() for place in places) or any(path.endswith(f"/{plain}") for path in paths())
        return "" if known or plain.startswith("/") else "no such file"
    member = re.fullmatch(r"([A-Z]\w*[a-z]\w*)\.(\w+)", plain)
    if member and member[1] not in FOREIGN_CLASSES:
        return "" if member[2] in defined().get(member[1], ()) else f"there is no {member[1]} with {member[2]}"
    for_developers = where.suffix == ".py" or where == PACKAGE / "README.md"  # what is one word there is a name
    if re.fullmatch(r"_?[a-z][a-z0-9]*" if for_developers else "", plain) and plain not in kwlist:
        return "" if plain in identifiers() | module_names() | FOREIGN else "no such name"
    if re.fullmatch(r"_?[a-z]+(_[a-z0-9]+)+", plain):
        keys = {part for key in KEYS for part in key.split(".")}
        return "" if plain in identifiers() | module_names() | keys | FOREIGN else "no such name"
    return ""


def test_a_name_that_exists_nowhere_is_found() -> None:
    page = PACKAGE / "README.md"
    name = "".join(("qua", "gga"))  # in one piece it would exist here
    for code in (
        name,
        f"_{name}",
        f"{name}()",
        f"qua_{name}",
        f"Connections.{name}",
        f"Quagg{name}.start",
        f"{name}.py",
    ):
        assert missing(code, page) and missing(code, PACKAGE / "units.py"), code
    for code in ("offset", "_start", "with", "Connections._start", "units.py", "2"):
        assert not missing(code, page), code
    assert not missing(name, ROOT / "README.md"), "there it may be anything, such as a program"


def test_names_on_pages_exist() -> None:
    for page in PAGES:
        for code in inline_code(page):
            why = missing(code, page)
            assert not why, f"{page.relative_to(ROOT)}: `{code}`: {why}"


def docstrings(text: str) -> Iterator[str]:
    """Docstrings of modules, classes and functions, and the texts that stand behind an attribute."""
    for node in ast.walk(tree(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def examples(docstring: str) -> Iterator[str]:
    """Indented blocks behind a double colon that look like Python, and all that begin with a statement."""
    statement = r"(?:from|import|with|for|def|class|async|try|while|>>>)\b.*"
    text = inspect.cleandoc(docstring) + "\n"
    for lead, block in re.findall(r"(?:^|\n)([^\n]*)\n\n((?:(?:    [^\n]*)?\n)+)", text):
        code = textwrap.dedent(block).strip("\n")
        first = code.partition("\n")[0]
        call = r"[A-Za-z_][\w.\[\]]*(?:, \w+)* = .*|[A-Za-z_][\w.]*\(.*\).*"
        if re.fullmatch(statement, first) or (lead.endswith("::") and re.fullmatch(call, first)):
            yield code


def test_examples_in_docstrings_parse() -> None:
    count = 0
    for name, text in sources():
        for docstring in docstrings(text):
            for code in examples(docstring):
                count += 1
                try:
                    ast.parse(code)
                except SyntaxError as error:
                    raise AssertionError(f"{name}: an example that is not Python: {error}\n{code}") from None
    assert count >= 10, "examples are found"


def test_tables_in_docstrings_are_marked_as_such() -> None:
    """An indented block follows a line that ends with ``::``: else a tool that wraps or renders text destroys it.

    Except for sections such as ``Raises:``, and for the help texts of commands, which have a markup of their own.
    """
    for name, text in sources():
        for docstring in docstrings(text) if not name.startswith("cli/") else ():
            for lead, first in re.findall(r"(?:^|\n)(\S[^\n]*)\n\n(    [^\n]*)", inspect.cleandoc(docstring)):
                assert lead.endswith("::"), f"{name}: {lead!r} before {first!r}"


def test_names_in_docstrings_exist() -> None:
    """Files, members of classes, and names in double backticks."""
    for name, text in sources():
        for docstring in docstrings(text):
            for code in re.findall(r"(?<!`)``([^`\n]+)``(?!`)", docstring):
                why = missing(code, PACKAGE / name)
                assert not why, f"{name}: ``{code}``: {why}"


ROLE = re.compile(r":(?:mod|class|func|meth|data|attr):`~?([^`]+)`")


def bound_by(node: ast.AST) -> Iterator[str]:
    """The names that a statement of a module or a class binds."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Assign(targets=targets):
            yield from (inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name))
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in aliases)
        case ast.If() | ast.Try():
            for inner in ast.iter_child_nodes(node):
                yield from bound_by(inner)


@cache
def names_by_module() -> dict[str, frozenset[str]]:
    """What is bound in each module, by its whole name."""
    bound = {}
    for name, text in sources():
        module = "appliance/" + name.removesuffix(".py").removesuffix("__init__")
        bound[module.strip("/").replace("/", ".")] = frozenset(
            each for node in tree(text).body for each in bound_by(node)
        )
    return bound


@cache
def whole_names() -> frozenset[str]:
    """All modules, and what is bound in each."""
    return frozenset(names_by_module()) | {
        f"{module}.{name}" for module, names in names_by_module().items() for name in names
    }


def leads_somewhere(target: str, module: str, class_name: str = "") -> bool:
    """Whether Sphinx would find what a role points at.

    With a dot in front it may be anywhere.  Else it is a whole name, or bound in the module or the class where the text
    is, or of a module that is imported there.
    """
    words = target.strip(".").split(".")
    if len(words) > 1 and words[0] in sys.stdlib_module_names:
        return True
    anywhere = target.startswith(".") or words[0] in names_by_module()[module]
    ends = f".{'.'.join(words)}", f".{'.'.join(words[:-1])}"
    if (anywhere and len(words) > 1) or target.startswith("."):
        is_name = any(name.endswith(ends[0]) for name in whole_names())
        is_member = len(words) > 1 and words[-1] in defined().get(words[-2], ())
        return is_name or (is_member and any(name.endswith(ends[1]) for name in whole_names()))
    if words[0] == "appliance":
        is_member = words[-1] in defined().get(words[-2], ()) and ends[1][1:] in whole_names()
        return target in whole_names() or is_member
    return anywhere or (len(words) == 1 and words[0] in defined().get(class_name, ()))


def test_a_reference_that_leads_nowhere_is_found() -> None:
    module = "appliance.log.compaction"
    for target in ("Pass", ".Pass", "run", ".compaction.Pass", "LogCompactor.run", "appliance.log.Pass", "log.Pass"):
        assert not leads_somewhere(target, module), target
    for target in ("run_pass", ".LogReader.locate_kept", "LogCompactor.compact_segment", "functools.cache"):
        assert leads_somewhere(target, module), target
    assert leads_somewhere("compact_segment", module, "LogCompactor") and leads_somewhere(module, module)


def references(node: ast.AST, class_name: str = "") -> Iterator[tuple[str, str]]:
    """What roles in docstrings point at, each with the class in which it is."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant) and isinstance(inner.value.value, str):
            yield from ((target, class_name) for target in ROLE.findall(inner.value.value))
        yield from references(inner, inner.name if isinstance(inner, ast.ClassDef) else class_name)


def test_references_in_docstrings_lead_somewhere() -> None:
    modules = dict(zip((name for name, _ in sources()), names_by_module(), strict=True))
    for name, text in sources():
        for target, class_name in references(tree(text)):
            assert leads_somewhere(target, modules[name], class_name), f"{name}: `{target}`: no such name"
