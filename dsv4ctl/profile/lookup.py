"""Which profile is meant: the argument, `DSV4CTL_PROFILE`, `./dsv4ctl.toml`, or what fits this machine."""

import importlib.resources
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv4ctl.errors import UsageError
from dsv4ctl.names import did_you_mean

VARIABLE = "DSV4CTL_PROFILE"
LOCAL_FILE = "dsv4ctl.toml"
_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class Found:
    """A profile's file, how messages name it, and what chose it."""

    path: Path
    shown: str
    chosen_by: str


def reference(found: Found) -> str:
    """What names a profile from any directory: its name, where it has one, else its whole path."""
    named = available().get(found.path.stem)
    return found.path.stem if named == found.path else str(found.path.absolute())


def builtin_dir() -> Path:
    """Where the built-in profiles are: inside the package when it is installed, beside it in a checkout."""
    package = Path(str(importlib.resources.files("dsv4ctl")))
    inside = package / "profiles"
    return inside if inside.is_dir() else package.parent / "profiles"


def user_dir() -> Path:
    """Where a person keeps profiles of their own."""
    import platformdirs

    return platformdirs.user_config_path("dsv4ctl") / "profiles"


def builtin_profiles() -> dict[str, Path]:
    """The built-in profiles by name."""
    return {path.stem: path for path in sorted(builtin_dir().glob("*.toml"))}


def available() -> dict[str, Path]:
    """Every profile that can be named, by name; a person's own hides the built-in one of the same name."""
    own = {path.stem: path for path in user_dir().glob("*.toml")}
    return dict(sorted({**builtin_profiles(), **own}.items()))


def local_gpus(root: Path = _NVIDIA_GPUS) -> tuple[str, ...]:
    """The NVIDIA GPUs of this machine as its driver lists them: `MODEL at BUS_ID`. Empty where there is no driver."""
    gpus: list[str] = []
    for path in sorted(root.glob("*/information")):
        fields = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        gpus.append(f"{fields.get('Model', 'NVIDIA GPU').strip()} at {path.parent.name}")
    return tuple(gpus)


def find_profile(
    ref: str | None,
    *,
    environ: Mapping[str, str],
    cwd: Path,
    profiles: Mapping[str, Path] | None = None,
    gpus: Sequence[str] | None = None,
) -> Found:
    """The file that `ref` names, or what stands in for it: the variable, the local file, then the machine.

    Raises:
        UsageError: there is no such profile; or nothing was named on a machine with GPUs, where guessing is wrong.
    """
    profiles = available() if profiles is None else profiles
    if ref:
        return resolve(ref, cwd, profiles, "the command line")
    if named := environ.get(VARIABLE):
        return resolve(named, cwd, profiles, VARIABLE)
    if (cwd / LOCAL_FILE).is_file():
        return Found(cwd / LOCAL_FILE, LOCAL_FILE, f"./{LOCAL_FILE}")
    gpus = local_gpus() if gpus is None else gpus
    if gpus:
        raise UsageError(
            "no profile was named, and this machine has GPUs, so none is assumed",
            why=f"it has {', '.join(gpus)}",
            hint=f"name one of: {', '.join(profiles)}; or set {VARIABLE}, or write ./{LOCAL_FILE}",
        )
    return resolve("cpu", cwd, profiles, "this machine has no NVIDIA GPU")


def resolve(ref: str, cwd: Path, profiles: Mapping[str, Path], chosen_by: str) -> Found:
    """The file of a name, or of a path relative to `cwd`. `chosen_by` says in messages who named it.

    Raises:
        UsageError: there is none.
    """
    if os.sep in ref or ref.endswith(".toml"):
        path = (cwd / Path(ref).expanduser()).resolve()
        if not path.is_file():
            raise UsageError(f"there is no profile file {path}", why=f"{chosen_by} named it")
        return Found(path, shown_path(path, cwd), chosen_by)
    if ref not in profiles:
        guess = did_you_mean(ref, profiles)
        raise UsageError(
            f'there is no profile "{ref}"' + (f'; did you mean "{guess}"?' if guess else ""),
            why=f"{chosen_by} named it",
            hint=f"there are: {', '.join(profiles)}; a file is named with its path, such as ./{ref}.toml",
        )
    return Found(profiles[ref], shown_path(profiles[ref], cwd), chosen_by)


def shown_path(path: Path, cwd: Path) -> str:
    """The path as messages name it: relative where it lies below `cwd`."""
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)
