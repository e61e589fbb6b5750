"""config.json of a bundle (OCI runtime spec 1.0, config.md and config-linux.md).

What works everywhere Kiln has been: no rlimits and no cgroup namespace (sandboxes that
are containers themselves refuse both), and no network namespace here, because the
runtime is started inside one (kiln.run.isolate).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kiln.canonical import JSON
from kiln.errors import BadInput
from kiln.image.read import Image
from kiln.run.gpu import LIBRARY_PATH, TARGET, Gpu
from kiln.run.runner import SOCKET_FOLDER, Launch

_CAPABILITIES = ("bounding", "effective", "inheritable", "permitted", "ambient")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# As in runc's and containerd's default configuration.
_MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi",
    "/sys/firmware",
)  # fmt: skip
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def user_of(image: Image, launch: Launch, root: Path) -> tuple[int, int]:
    """(uid, gid) that the image, or the launch, wants; names are looked up in the root.

    "" is root, a lone uid has the group that /etc/passwd gives it, else 0 (config.md).
    Raises BadInput("run.unknown-user").
    """
    user, _, group = (launch.user or image.user or "0").partition(":")
    passwd, groups = _table(root, "passwd"), _table(root, "group")
    row = next((r for r in passwd if user in (r[0], r[2])), None)
    uid = user if user.isdecimal() else row[2] if row else ""
    if not group:
        gid = row[3] if row else "0"
    elif group.isdecimal():
        gid = group
    else:
        gid = next((r[2] for r in groups if r[0] == group), "")
    if not (uid.isdecimal() and gid.isdecimal()):
        raise BadInput(
            "run.unknown-user",
            f"the image does not know its own user {launch.user or image.user!r}",
            where=str(image),
            fix="name users by number in the recipe: uid:gid",
        )
    return int(uid), int(gid)


def _table(root: Path, name: str) -> list[list[str]]:
    path = root / "etc" / name
    if (root / "etc").is_symlink() or path.is_symlink() or not path.is_file():
        return []
    rows = [line.split(":") for line in path.read_text(errors="replace").splitlines()]
    return [row for row in rows if len(row) >= 4]


def process(
    argv: Sequence[str], env: Mapping[str, str], user: tuple[int, int], workdir: str
) -> dict[str, JSON]:
    """The `process` object: of the server, or of a command beside it (`exec --process`)."""
    return {
        "terminal": False,
        "user": {"uid": user[0], "gid": user[1], "umask": 0o22},
        "args": list(argv),
        "env": [f"{name}={value}" for name, value in {"PATH": _PATH, **env}.items()],
        "cwd": workdir,
        "capabilities": {name: [] for name in _CAPABILITIES},
        "noNewPrivileges": True,
    }


def config(
    image: Image,
    launch: Launch,
    root: Path,
    socket: Path,
    user: tuple[int, int],
    gpu: Gpu | None = None,
) -> dict[str, JSON]:
    """The whole config.json. root: the unpacked image. socket: the folder for the socket.

    Raises BadInput("run.writable-root"): the root is shared with other starts and images.
    """
    if not launch.read_only:
        raise BadInput(
            "run.writable-root",
            "without an engine, an image's root is always read-only",
            why="it is a cache that other starts and images share",
            fix="declare what must be writable as the image's volume, or use --runner docker",
        )
    env = launch.environment(image)
    mounts = [
        _mount("/proc", "proc"),
        _mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=0755", "size=64k"),
        _mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666",
               "mode=0620"),
        _mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777",  # noqa: S108
               f"size={launch.shm_bytes}"),
        _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        _mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        # Compilers load from there what they just wrote, so it must be executable.
        _mount("/tmp", "tmpfs", "nosuid", "nodev", "exec", "mode=1777"),  # noqa: S108
        _mount("/run", "tmpfs", "nosuid", "nodev", "mode=0755"),
        # The owner too: runc gives a tmpfs the mode of the folder below it.
        *(_mount(path, "tmpfs", "nosuid", "nodev", "exec", "mode=1777", f"uid={user[0]}")
          for path in image.volumes),
        _bind(socket, SOCKET_FOLDER, "rw"),
        _bind(launch.model, launch.model_path, "ro"),
    ]  # fmt: skip
    linux: dict[str, JSON] = {
        "namespaces": [{"type": name} for name in ("pid", "ipc", "uts", "mount")],
        "maskedPaths": list(_MASKED),
        "readonlyPaths": list(_READ_ONLY),
    }
    if gpu is not None:
        linux["devices"] = gpu.device_specs()
        linux["resources"] = {"devices": gpu.device_rules()}
        # The mount points lie in memory: nothing is made in the shared root but a folder.
        mounts.append(_mount(TARGET, "tmpfs", "nosuid", "nodev", "mode=0755"))
        mounts += [_bind(path, f"{LIBRARY_PATH}/{path.name}", "ro") for path in gpu.libraries]
        own = env.get("LD_LIBRARY_PATH")
        env["LD_LIBRARY_PATH"] = f"{LIBRARY_PATH}:{own}" if own else LIBRARY_PATH
    return {
        "ociVersion": "1.0.2",
        "process": process((*image.entrypoint, *launch.command()), env, user, image.workdir),
        "root": {"path": str(root), "readonly": True},
        "hostname": "kiln",
        "mounts": mounts,
        "linux": linux,
    }


def _mount(target: str, kind: str, *options: str) -> dict[str, JSON]:
    return {"destination": target, "type": kind, "source": kind, "options": list(options)}


def _bind(source: Path, target: str, mode: str) -> dict[str, JSON]:
    options = ["bind", "nosuid", "nodev", "private", mode]
    return {"destination": target, "type": "bind", "source": str(source), "options": options}
