"""Names of modules, through all imports between them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from kiln.drift.bindings import Binding
from kiln.drift.known import MODULE_NAMES, may_be_compiled
from kiln.drift.syntax import Class, Module, imported
from kiln.drift.tree import PACKAGE, Tree
from kiln.drift.values import EXTERNAL, OPAQUE, Frame, Missing, ModuleValue, Result

DEPTH = 40  # of names that stand for names; of expressions within expressions


class Modules:
    """Looks names up in modules of one tree. busy: what is being looked up, to break circles."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.busy: set[object] = set()

    def bound(self, bound: Sequence[Binding], frame: Frame, owner: Class | None = None) -> Result:
        """What bindings of one name stand for."""
        raise NotImplementedError

    def module(self, name: str) -> Result:
        """A module by its dotted name."""
        if not _ours(name):
            return EXTERNAL
        if self.tree.has(name):
            return ModuleValue(name)
        return None if may_be_compiled(name) else Missing(name)

    def module_attribute(self, name: str, attribute: str) -> Result:
        """A name in a module, or a module in a package."""
        module = self.tree.module(name)
        if module is None:
            found = self.module(f"{name}.{attribute}")
            if self.tree.compiled(name):
                return None
            return found if self.tree.has(name) else self.module(name)
        if module.why:
            return None
        bound = module.scope.get(attribute, ())
        lazy = "__getattr__" in module.scope
        real = tuple(b for b in bound if lazy or not b.typing)
        if real:
            return self.once((module.name, attribute), lambda: self.bound(real, Frame(module)))
        if self.tree.has(f"{name}.{attribute}"):
            return ModuleValue(f"{name}.{attribute}")
        if attribute in MODULE_NAMES:
            return EXTERNAL
        for star in module.stars:
            target = imported(star, module)
            found = self._star(target, attribute) if _ours(target) else None
            if not isinstance(found, Missing):
                return found
        if not lazy:
            package = module.package == module.name
            return None if package and may_be_compiled(attribute) else Missing(name)
        table = _variables(module)
        if table is None:
            return None
        return EXTERNAL if attribute in table else Missing(name)

    def _star(self, name: str, attribute: str) -> Result:
        """What `from name import *` brings; a circle of them brings nothing of its own."""
        key = ("*", name, attribute)
        if key in self.busy:
            return Missing(name)
        self.busy.add(key)
        try:
            return self.module_attribute(name, attribute)
        finally:
            self.busy.discard(key)

    def once(self, key: object, ask: Callable[[], Result]) -> Result:
        """Break circles: a name that is asked for while it is being looked up is OPAQUE."""
        if key in self.busy or len(self.busy) > DEPTH:
            return OPAQUE
        self.busy.add(key)
        try:
            found = ask()
            return OPAQUE if found is None else found
        finally:
            self.busy.discard(key)

    def import_from(self, node: ast.ImportFrom, name: str, module: Module) -> Result:
        """What `from x import name` brings."""
        target = imported(node, module)
        return self.module_attribute(target, name) if _ours(target) else EXTERNAL

    def origin(self, name: str, attribute: str) -> tuple[Module, Binding] | None:
        """The binding that a name of a module comes from, through all imports."""
        for _ in range(DEPTH):
            module = self.tree.module(name)
            bound = module.scope.get(attribute, ()) if module is not None else ()
            if module is None or len(bound) != 1:
                return None
            node = bound[0].node
            if not isinstance(node, ast.ImportFrom):
                return module, bound[0]
            name, attribute = imported(node, module), bound[0].original
        return None


def _ours(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _variables(module: Module) -> frozenset[str] | None:
    """The names that vllm/envs.py's `__getattr__` answers for; None for other modules."""
    for binding in module.scope.get("environment_variables", ()):
        if isinstance(binding.value, ast.Dict):
            keys = [k.value if isinstance(k, ast.Constant) else None for k in binding.value.keys]
            if all(isinstance(key, str) for key in keys):
                return frozenset(str(key) for key in keys)
    return None
