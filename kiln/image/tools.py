"""bubblewrap and crun from a lock's closure "sandbox", where the host has none."""

from __future__ import annotations

from collections.abc import Sequence

from kiln.compile.root import TreePart
from kiln.compile.sandbox import find_sandbox
from kiln.compile.tools import find_tool, install_tools
from kiln.graph.action import Graph
from kiln.graph.build import Fetcher, build
from kiln.image.roots import Roots
from kiln.lock.model import Resolved
from kiln.pins.load import Project
from kiln.progress import Reporter
from kiln.store import Store

BUBBLEWRAP = ("bwrap",)
RUNTIMES = ("crun", "runc")


def ensure_sandbox(
    project: Project, resolved: Resolved, store: Store, fetcher: Fetcher, reporter: Reporter
) -> None:
    """Have a sandbox that works, before hundreds of megabytes come for what runs in it.

    Raises CannotHere("sandbox.none"). A lock without the closure "sandbox" needs none.
    """
    if "sandbox" in resolved.closures:
        ensure_tool(BUBBLEWRAP, project, resolved, store, fetcher, reporter)
        find_sandbox(store)


def ensure_tool(
    names: Sequence[str],
    project: Project,
    resolved: Resolved,
    store: Store,
    fetcher: Fetcher,
    reporter: Reporter,
) -> None:
    """Have one of these programs: the host's, or unpacked from the closure."""
    closure = resolved.closures.get("sandbox")
    if find_tool(store, names) is not None or closure is None:
        return
    reporter.note(f"this machine has no {' or '.join(names)}: taking it from the lock's closure")
    roots = Roots(project)
    outputs = [roots.deb(deb) for deb in closure.debs]
    graph = Graph(roots.nodes)
    trees = [
        build(store, graph, out.node, fetcher, reporter)[out.node][out.name] for out in outputs
    ]
    install_tools(store, [TreePart(tree) for tree in trees])
