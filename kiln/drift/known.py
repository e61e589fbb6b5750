"""What is known of names from outside vLLM: Python's own, and those of common bases."""

from __future__ import annotations

import ast
import builtins
import re

from kiln.drift.bindings import dotted
from kiln.drift.syntax import Class

BUILTINS = frozenset(dir(builtins))
MODULE_NAMES = frozenset(
    ("__name__", "__file__", "__doc__", "__path__", "__package__", "__spec__", "__dict__",
     "__all__", "__loader__", "__annotations__", "__builtins__")
)  # fmt: skip
_COMPILED = re.compile(r"_(?:\w+_)?C(?:_\w+)?")
OBJECT_NAMES = frozenset(dir(object)) | {
    "__annotations__", "__bases__", "__dataclass_fields__", "__dict__", "__module__", "__mro__",
    "__name__", "__qualname__", "__subclasses__", "__wrapped__",
}  # fmt: skip
PLAIN_BASES = frozenset(("object", "ABC", "abc.ABC", "Generic", "Protocol", "typing.Generic",
                          "typing.Protocol"))  # fmt: skip
_PLAIN_DECORATORS = frozenset(("config", "dataclass", "final", "runtime_checkable"))
_TORCH_MODULE = frozenset(
    ("T_destination", "_apply", "_buffers", "_call_impl", "_compiled_call_impl", "_forward_hooks",
     "_forward_pre_hooks", "_get_name", "_load_from_state_dict", "_load_state_dict_post_hooks",
     "_load_state_dict_pre_hooks", "_modules", "_named_members", "_non_persistent_buffers_set",
     "_parameters", "_register_load_state_dict_pre_hook", "_register_state_dict_hook",
     "_save_to_state_dict", "_slow_forward", "_state_dict_hooks", "_state_dict_pre_hooks",
     "_version", "_wrapped_call_impl", "add_module", "apply", "bfloat16", "buffers",
     "call_super_init", "children",
     "compile", "cpu", "cuda", "double", "dump_patches", "eval", "extra_repr", "float", "forward",
     "get_buffer", "get_extra_state", "get_parameter", "get_submodule", "half", "ipu",
     "load_state_dict", "modules", "mtia", "named_buffers", "named_children", "named_modules",
     "named_parameters", "parameters", "register_backward_hook", "register_buffer",
     "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
     "register_full_backward_pre_hook", "register_load_state_dict_post_hook",
     "register_load_state_dict_pre_hook", "register_module", "register_parameter",
     "register_state_dict_post_hook", "register_state_dict_pre_hook", "requires_grad_",
     "set_extra_state", "set_submodule", "share_memory", "state_dict", "to", "to_empty", "train",
     "training", "type", "xpu", "zero_grad")
)  # fmt: skip


def may_be_compiled(name: str) -> bool:
    """Whether a module of this name may be a compiled one, of which each platform has
    others: "_C", "_moe_C", "_C_stable_libtorch"."""
    return _COMPILED.fullmatch(name.rpartition(".")[2]) is not None


def outside_names(base: str) -> frozenset[str]:
    """The names that a class from outside vLLM has; empty where that is not known."""
    if base.rpartition(".")[2] == "Module" and base in ("nn.Module", "torch.nn.Module"):
        return _TORCH_MODULE
    found = getattr(builtins, base, None)
    return frozenset(dir(found)) if isinstance(found, type) else frozenset()


def plain_decorators(cls: Class) -> bool:
    """Whether the decorators of a class put no names on it that matter."""
    names = (dotted(d.func if isinstance(d, ast.Call) else d) for d in cls.node.decorator_list)
    return all(name.rpartition(".")[2] in _PLAIN_DECORATORS for name in names)
