"""Rules about the source text, as functions over a parsed module.

Each rule returns findings, so that one test applies it to ``src`` and another proves on bad examples that it
bites. Names are resolved through the module's imports: ``from time import monotonic as now`` is still
``time.monotonic``.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "tessera"


@dataclass(frozen=True, order=True)
class Finding:
    """One line that breaks a rule, and the full name of what stands there."""

    line: int
    name: str


def source_files() -> list[Path]:
    """Every module of the distribution."""
    return sorted(SOURCE.rglob("*.py"))


def parse(path: Path) -> ast.Module:
    """The syntax tree of one file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


# ------------------------------------------------------------------ names


def imported_names(tree: ast.AST) -> dict[str, str]:
    """Local name -> full dotted name, for every import of the module, wherever it stands."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname is None:
                    top = alias.name.partition(".")[0]
                    names[top] = top
                else:
                    names[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def imported_modules(tree: ast.AST) -> Iterator[Finding]:
    """Every module named by an import statement, or by ``import_module`` with a literal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Finding(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield Finding(node.lineno, module)
            for alias in node.names:
                yield Finding(node.lineno, f"{module}.{alias.name}")
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield Finding(node.lineno, str(first.value))


def _dotted(node: ast.AST, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, names)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def used_names(tree: ast.AST) -> Iterator[Finding]:
    """Full name of everything imported that the code uses. Annotations use nothing and are left out."""
    names = imported_names(tree)
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        found = _dotted(node, names)
        if found is not None:
            yield Finding(getattr(node, "lineno", 0), found)
            continue
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns"):
                continue
            children = value if isinstance(value, list) else [value]
            todo.extend(child for child in children if isinstance(child, ast.AST))


def _is_or_is_in(name: str, owners: frozenset[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:n]) in owners for n in range(1, len(parts) + 1))


# ------------------------------------------------------------------ what only the seam may do

SEAM_ONLY_MODULES = frozenset({"time", "random", "secrets", "subprocess", "multiprocessing", "sched"})
"""Modules of which nothing at all is used outside the seam: the simulator could not replace it."""

SEAM_ONLY_NAMES = frozenset(
    {
        "asyncio.create_subprocess_exec",
        "asyncio.create_subprocess_shell",
        "asyncio.create_task",
        "asyncio.ensure_future",
        "asyncio.sleep",
        "asyncio.to_thread",
        "concurrent.futures.ProcessPoolExecutor",
        "concurrent.futures.ThreadPoolExecutor",
        "concurrent.futures.process.ProcessPoolExecutor",
        "concurrent.futures.thread.ThreadPoolExecutor",
        "datetime.date.today",
        "datetime.datetime.now",
        "datetime.datetime.today",
        "datetime.datetime.utcnow",
        "os.fork",
        "os.forkpty",
        "os.getrandom",
        "os.posix_spawn",
        "os.posix_spawnp",
        "os.urandom",
        "threading.Thread",
        "threading.Timer",
        # uuid3 and uuid5 are left out: they are pure functions of their arguments, and rules may be too.
        "uuid.getnode",
        "uuid.uuid1",
        "uuid.uuid4",
        "uuid.uuid6",
        "uuid.uuid7",
        "uuid.uuid8",
    }
)


def seam_leaks(tree: ast.AST) -> list[Finding]:
    """Uses of the clock, of randomness, of sleep and of spawning: they belong in ``seam.py``."""
    owners = SEAM_ONLY_MODULES | SEAM_ONLY_NAMES
    leaks = {found for found in used_names(tree) if _is_or_is_in(found.name, owners)}
    leaks |= {
        found
        for found in imported_modules(tree)
        if found.name.endswith(".*") and found.name.removesuffix(".*") in SEAM_ONLY_MODULES
    }
    return sorted(leaks)


# ------------------------------------------------------------------ what nobody may do

UNSAFE_MODULES = frozenset(
    {
        "_pickle",
        "cloudpickle",
        "cPickle",
        "dill",
        "jsonpickle",
        "marshal",
        "msgspec.yaml",
        "pickle",
        "ruamel",
        "shelve",
        "yaml",
    }
)
UNSAFE_BUILTINS = frozenset({"__import__", "eval", "exec"})


def unsafe_loading(tree: ast.AST) -> list[Finding]:
    """Imports and calls that can turn stored bytes into running code."""
    findings = {found for found in imported_modules(tree) if _is_or_is_in(found.name, UNSAFE_MODULES)}
    findings |= {found for found in used_names(tree) if _is_or_is_in(found.name, UNSAFE_MODULES)}
    findings |= {
        Finding(node.lineno, node.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in UNSAFE_BUILTINS
    }
    return sorted(findings)


# ------------------------------------------------------------------ SQL

_STATEMENT = re.compile(
    r"""(?:^|[\n;(])\s*(?:
        select\b.+?\bfrom\b
      | select\s+(?:count|max|min|sum|coalesce|exists|1)\b
      | insert\s+(?:or\s+\w+\s+)?into\b
      | replace\s+into\b
      | update\s+(?:only\s+)?\S+\s+set\b
      | delete\s+from\b
      | with\s+(?:recursive\s+)?\w+\s*(?:\([^)]*\)\s*)?as\s+(?:(?:not\s+)?materialized\s+)?\(
      | (?:create|alter|drop)\s+(?:unique\s+|temp\s+|temporary\s+|virtual\s+)*
        (?:table|index|view|trigger|schema)\b
      | pragma\s+\w+
      | begin\s+(?:immediate|exclusive|deferred|transaction)\b
      | rollback\s+to\b
      | savepoint\s+\w+
      | (?:listen|notify|truncate|vacuum)\s+["\w]+\s*(?:;|$)
    )""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


def sql_text(tree: ast.AST) -> list[Finding]:
    """String literals that hold an SQL statement. Docstrings and comments may speak of SQL."""
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    findings: set[Finding] = set()
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        text = _literal_text(node)
        if text is not None and (match := _STATEMENT.search(text)):
            findings.add(Finding(node.lineno, " ".join(match.group().split())))  # type: ignore[attr-defined]
    return sorted(findings)


def _literal_text(node: ast.AST) -> str | None:
    """The text of a literal; the values put into an f-string count as a question mark."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "?" for part in node.values)
    return None


# ------------------------------------------------------------------ the purity of rules

IMPURE_MODULES = frozenset(
    """
    asyncio concurrent contextvars http io logging multiprocessing os pathlib queue random secrets selectors
    shutil signal socket sqlite3 ssl subprocess sys tempfile threading time urllib
    """.split()
)
"""Parts of the standard library that a pure function has no use for."""


def impure_imports(tree: ast.AST, stdlib: frozenset[str]) -> list[Finding]:
    """Imports a rule may not have: all but the model, other rules, msgspec and the pure standard library."""
    findings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
        else:
            continue
        for module in modules:
            top = module.partition(".")[0]
            is_ours = module.startswith(("tessera.model", "tessera.rules"))
            is_pure = top == "msgspec" or (top in stdlib and top not in IMPURE_MODULES)
            if not is_ours and not is_pure:
                findings.add(Finding(node.lineno, module))
    return sorted(findings)


# ------------------------------------------------------------------ __all__


def declared_all(tree: ast.Module) -> list[str] | None:
    """The names in a module's ``__all__``; None where it has none. A computed ``__all__`` is an error."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return list(ast.literal_eval(value))
    return None


def all_problems(tree: ast.Module) -> list[str]:
    """What is wrong with a module's ``__all__``: order, repeats, or a form other than a literal."""
    try:
        names = declared_all(tree)
    except ValueError:
        return ["__all__ is not a plain list of literals"]
    if names is None:
        return []
    problems = []
    if len(set(names)) != len(names):
        problems.append("__all__ names something twice")
    if names != sorted(names):
        problems.append(f"__all__ is not sorted; sorted() gives {sorted(names)}")
    return problems
