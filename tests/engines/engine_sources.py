"""What an adapter uses of a serving engine, by name and signature, and the check that it is there.

It reads the sources, of a published wheel or of what is installed, and imports none of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

_ENTRY = re.compile(r"(= )?([\w.]+)(?:: (.*)|\((.*)\)(?: -> (.*))?)")
_NAMED = (type, ModuleType)


class Hook(NamedTuple):
    """A function with its parameters, or a class with attributes that are read or replaced.

    Attributes:
        module: where it is defined.
        name: `function`, `Class` or `Class.method`.
        parameters: of a function, in order, with `self`; None for a class, or for any. Others may
            follow if they have defaults.
        attributes: of a class: annotated in its body, defined in it, or assigned to `self`.
        calls: of a function: what it has to call, by the last part of the name.
        replaced: of a function: ours stands in its place, and the engine may pass it all
            parameters that there are. So none may be added.
    """

    module: str
    name: str
    parameters: tuple[str, ...] | None = None
    attributes: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    replaced: bool = False


def hooks(package: str, table: str) -> tuple[Hook, ...]:
    """Those of a table: a module's name, and below it what is used of it, four spaces further in.

    `Class: attributes`, or `function(parameters) -> calls`; `...` stands for any parameters, and a
    function with `=` before it is replaced. Eight spaces continue a line.
    """
    found, module = [], ""
    for line in re.sub(r"\n {8}", " ", table).strip().splitlines():
        if not line.startswith(" "):
            module = f"{package}.{line}"
        elif entry := _ENTRY.fullmatch(line.strip()):
            replaced, name, *parts = entry.groups(default="")
            attributes, given, calls = (tuple(part.split()) for part in parts)
            named = None if attributes or given == ("...",) else given
            found.append(Hook(module, name, named, attributes, calls, bool(replaced)))
        else:
            raise ValueError(f"not an entry of a table of hooks: {line}")
    return tuple(found)


def differences(hooks: tuple[Hook, ...], source: Callable[[str], str | None]) -> list[str]:
    """What of `hooks` is not in the sources, one sentence each.

    Args:
        hooks: of the engine.
        source: the text of a module by its dotted name; None where there is none.
    """
    modules: dict[str, ast.Module | None] = {}
    for module in {hook.module for hook in hooks}:
        text = source(module)
        modules[module] = None if text is None else ast.parse(text)
    return [said for hook in hooks for said in _differences(hook, modules[hook.module])]


def _differences(hook: Hook, module: ast.Module | None) -> Iterator[str]:
    if module is None:
        yield f"there is no {hook.module}"
        return
    node = _find(module, hook.name)
    if node is None:
        yield f"{hook.module} has no {hook.name}"
        return
    if isinstance(node, ast.ClassDef) != bool(hook.attributes):
        is_what = "a class" if isinstance(node, ast.ClassDef) else "a function"
        yield f"{hook.module}.{hook.name} is {is_what}"
        return
    if isinstance(node, ast.ClassDef):
        for name in sorted(set(hook.attributes) - _declared(node)):
            yield f"{hook.module}.{hook.name} has no {name}"
        return
    known = hook.parameters
    if known is not None:
        parameters, optional = _parameters(node)
        added = parameters[len(known) :]
        may_be_added = set() if hook.replaced else optional
        if parameters[: len(known)] != known or not may_be_added.issuperset(added):
            yield (
                f"{hook.module}.{hook.name} takes ({', '.join(parameters)}) and not "
                f"({', '.join(known)})"
            )
    for name in sorted(set(hook.calls) - _called(node)):
        yield f"{hook.module}.{hook.name} does not call {name}"


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _find(module: ast.Module, name: str) -> ast.ClassDef | _Function | None:
    found: ast.Module | ast.ClassDef | _Function = module
    for part in name.split("."):
        named = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        inside = [n for n in found.body if isinstance(n, named) and n.name == part]
        if not inside:
            return None
        found = inside[-1]
    return None if isinstance(found, ast.Module) else found


def _parameters(function: _Function) -> tuple[tuple[str, ...], set[str]]:
    """All names in order, and which of them have defaults."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    by_keyword = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    optional = positional[len(positional) - len(given.defaults) :]
    optional += [parameter for parameter, default in by_keyword if default is not None]
    return tuple(p.arg for p in [*positional, *given.kwonlyargs]), {p.arg for p in optional}


def _declared(node: ast.ClassDef) -> set[str]:
    """Names in the class's body, and those that its methods assign to `self`."""
    names = set()
    for inside in ast.walk(node):
        if isinstance(inside, ast.FunctionDef):
            names.add(inside.name)
        for target in _targets(inside):
            if isinstance(target, ast.Name):
                names.add(target.id)
            elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                names.add(target.attr if target.value.id == "self" else "")
    return names


def _called(function: _Function) -> set[str]:
    called = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    names = {node.id for node in called if isinstance(node, ast.Name)}
    return names | {node.attr for node in called if isinstance(node, ast.Attribute)}


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [t for target in node.targets for t in getattr(target, "elts", [target])]
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def is_data(hook: Hook, source: Callable[[str], str | None]) -> bool:
    """Whether a class is declared as data: a dataclass, a named tuple, or one of pydantic's."""
    node = _find(ast.parse(source(hook.module) or ""), hook.name)
    if not isinstance(node, ast.ClassDef):
        return False
    parts = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    said = {ast.unparse(each) for each in (*parts, *node.bases)}
    return bool(said & {"dataclass", "config", "NamedTuple", "msgspec.Struct"})


def declared(texts: Iterable[str]) -> set[str]:
    """The names of functions, classes and attributes that sources define."""
    names = set()
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.ClassDef):
            names |= {node.name} | _declared(node)
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


def used(texts: Iterable[str]) -> set[str]:
    """The attributes that sources use, also by `getattr`, and what they import of vLLM.

    Without those of what else they import, and of the types and modules in it.
    """
    names, modules = set(), {"builtins", "torch.nn", "torch.nn.functional"}
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        match node:
            case ast.Attribute(attr=name):
                names.add(name)
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(str(name)), *_]
            ):
                names.add(name)
            case ast.ImportFrom(module=str(module), names=found) if module.startswith("vllm"):
                names |= {each.name for each in found}
            case ast.ImportFrom(module=str(module), level=0):
                modules.add(module)
            case ast.Import(names=found):
                modules |= {each.name for each in found if each.name != "vllm"}
    others: list[object] = [import_module(name) for name in modules]
    others += [of for own in others for of in vars(own).values() if isinstance(of, _NAMED)]
    return names.difference(*map(dir, others))


def installed_source(module: str) -> str | None:
    """The text of a module of what is installed; None where there is none."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # of a package above it
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).read_text(encoding="utf-8")
