"""Loading a profile it with everything it extends, and the layers that make up a worker's settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from dsv4ctl.errors import UsageError
from dsv4ctl.profile.checks import check, host_problems, worker_path
from dsv4ctl.profile.explain import explain
from dsv4ctl.profile.keys import DEFAULT, KeyPath, Origin, Problem, ProfileError, Valued
from dsv4ctl.profile.lookup import Found, available, builtin_profiles, find_profile, resolve, shown_path
from dsv4ctl.profile.overrides import Override, apply_patches, parse_sets
from dsv4ctl.profile.schema import ROUTER, ArgScalar, EnvScalar, NamedWorker, Profile
from dsv4ctl.profile.sources import (
    Document,
    merge,
    parse_document,
    prune,
    read_text,
    split_key,
    take_file_keys,
    without,
)

if TYPE_CHECKING:
    from dsv4ctl.facts import HostFacts


@dataclass(frozen=True)
class LoadedProfile:
    """A checked profile, with the origin of everything in it and what the command line sets on top.

    `set_values` holds the overrides of `--set` for environment and flags; its other keys are already in `profile`.
    `sets` are all of them as they were typed.
    """

    profile: Profile
    found: Found
    document: Document
    set_values: tuple[Override, ...] = ()
    sets: tuple[str, ...] = ()

    def origin(self, *path: str | int) -> Origin:
        """Where the value at a key path was set; `default` when no file set it."""
        return self.document.origins.get(path, DEFAULT)

    def worker_env(self, worker: NamedWorker) -> dict[str, Valued[str]]:
        """Environment of one engine worker: [env], its role's, its own, then `--set`; the last one wins.

        It is what the profile says, and all of it: what follows from other keys (such as GPUs) is not in it.
        """
        role = self.profile.roles[worker.role]
        layers = (
            (("env",), self.profile.env),
            ((worker.role.value, "env"), role.env),
            ((*worker_path(worker), "env"), worker.spec.env),
        )
        chosen = [item for item in self.set_values if item.table == "env" and item.applies_to(worker)]
        return _env(self._merged(layers), chosen)

    def worker_args(self, worker: NamedWorker) -> dict[str, Valued[ArgScalar]]:
        """Flags of one engine worker, layered as its environment. `false` (the flag is absent) is still in it."""
        role = self.profile.roles[worker.role]
        layers = (
            (("args",), self.profile.args),
            ((worker.role.value, "args"), role.args),
            ((*worker_path(worker), "args"), worker.spec.args),
        )
        chosen = [item for item in self.set_values if item.table == "args" and item.applies_to(worker)]
        return _overridden(self._merged(layers), chosen)

    def router_env(self) -> dict[str, Valued[str]]:
        """Environment of the router: its own table, then `--set router.NAME=...`; [env] is the engine's alone."""
        assert self.profile.router is not None
        chosen = [item for item in self.set_values if item.table == "env" and item.for_router]
        return _env(self._merged(((("router", "env"), self.profile.router.env),)), chosen)

    def router_args(self) -> dict[str, Valued[ArgScalar]]:
        """Flags of the router: its own table, then `--set router.args.FLAG=...`."""
        assert self.profile.router is not None
        chosen = [item for item in self.set_values if item.table == "args" and item.for_router]
        return _overridden(self._merged(((("router", "args"), self.profile.router.args),)), chosen)

    def host_problems(self, host: str, facts: "HostFacts") -> tuple[Problem, ...]:
        """What the profile asks of `host` that it does not have."""
        return host_problems(self.profile, self.document, host, facts)

    def _merged(self, layers: Sequence[tuple[KeyPath, Mapping[str, ArgScalar]]]) -> dict[str, Valued[ArgScalar]]:
        return {
            name: Valued(value, self.origin(*path, name)) for path, table in layers for name, value in table.items()
        }


def _overridden(merged: Mapping[str, Valued[ArgScalar]], overrides: Sequence[Override]) -> dict[str, Valued[ArgScalar]]:
    both = dict(merged)
    for item in overrides:
        if item.value is None:
            both.pop(item.name, None)
        else:
            both[item.name] = Valued(item.value, item.origin)
    return both


def _env(merged: Mapping[str, Valued[ArgScalar]], overrides: Sequence[Override]) -> dict[str, Valued[str]]:
    env: dict[str, Valued[str]] = {}
    for name, valued in _overridden(merged, overrides).items():
        assert isinstance(valued.value, str | int)
        env[name] = Valued(env_text(valued.value), valued.origin)
    return env


def env_text(value: EnvScalar) -> str:
    """The exact text of an environment value: true is `1`, false is `0`, an integer is decimal, a string is itself."""
    return str(int(value)) if isinstance(value, bool | int) else value


def flags(args: Mapping[str, ArgScalar]) -> tuple[str, ...]:
    """Flags as argv, in the order given: true is the bare flag, false is none, a list is the flag and its items."""
    argv: list[str] = []
    for name, value in args.items():
        flag = f"--{name}"
        if isinstance(value, bool):
            argv += [flag] if value else []
        elif isinstance(value, tuple):
            argv += [flag, *(str(item) for item in value)]
        elif str(value).startswith("-"):
            # argparse would take the value for another flag.
            argv.append(f"{flag}={value}")
        else:
            argv += [flag, str(value)]
    return tuple(argv)


def load_profile(
    ref: str | None,
    *,
    environ: Mapping[str, str],
    cwd: Path,
    sets: Sequence[str] = (),
    profiles: Mapping[str, Path] | None = None,
    gpus: Sequence[str] | None = None,
) -> LoadedProfile:
    """Find, read, extend, patch and check a profile. `sets` are the texts that `overrides.parse_sets` reads.

    `profiles` (names with their files) and `gpus` are asked of this machine when they are not given. Names of
    environment variables and flags are not looked up here: that takes the engine's registry (dsv4ctl/knobs.py).

    Raises:
        UsageError: there is no such profile, it cannot be read, or a `--set` means nothing.
        ProfileError: something in it is wrong; it has every problem.
    """
    profiles = available() if profiles is None else profiles
    return load_found(find_profile(ref, environ=environ, cwd=cwd, profiles=profiles, gpus=gpus), cwd=cwd, sets=sets)


def load_found(found: Found, *, cwd: Path, sets: Sequence[str] = (), text: str | None = None) -> LoadedProfile:
    """The same for a file that was found. `text` is taken in place of what the file holds: what it would be with it.

    Raises:
        UsageError, ProfileError: as `load_profile`.
    """
    document = _read_extended(found, cwd, (), text)
    overrides, patches = parse_sets(sets)
    document = apply_patches(document, patches)
    profile = _validated(document)
    loaded = LoadedProfile(profile, found, document, overrides, tuple(sets))
    if stray := _stray(loaded):
        raise ProfileError(stray)
    return loaded


def _read_extended(found: Found, cwd: Path, chain: tuple[Path, ...], text: str | None = None) -> Document:
    if found.path in chain:
        names = " -> ".join(path.name for path in (*chain, found.path))
        raise UsageError(f"{found.shown}: extends goes round in a circle: {names}")
    raw = parse_document(read_text(found.path, shown=found.shown) if text is None else text, shown=found.shown)
    document, extends, left_out = take_file_keys(raw)
    if extends is None:
        return document
    origin = raw.origins[("extends",)]
    # A built-in name means the built-in profile, so that a person's own `cpu` may extend the one it hides.
    base_found = resolve(extends, found.path.parent, builtin_profiles(), f"extends in {origin.place}")
    base_found = Found(base_found.path, shown_path(base_found.path, cwd), base_found.chosen_by)
    base = _read_extended(base_found, cwd, (*chain, found.path))
    for key in left_out:
        path = split_key(key)
        smaller = without(base, path) if path else None
        if smaller is None:
            what = f'names "{key}", which {base_found.shown} does not have'
            raise ProfileError([Problem(raw.origins[("without",)], "without", what)])
        base = smaller
    return merge(base, document)


def _validated(document: Document) -> Profile:
    problems: tuple[Problem, ...] = ()
    try:
        profile: Profile | None = Profile.model_validate(document.data)
    except ValidationError as error:
        problems = explain(error, document)
        profile = _less_unknown(document, error)
    if profile is not None:
        problems += check(profile, document)
    if problems or profile is None:
        raise ProfileError(sorted(problems, key=lambda problem: (problem.origin.source, problem.origin.line or 0)))
    return profile


def _less_unknown(document: Document, error: ValidationError) -> Profile | None:
    """The profile without the keys that nobody knows, so that what else is wrong can be told in the same breath."""
    data = document.data
    for detail in error.errors(include_url=False):
        if detail["type"] == "extra_forbidden":
            data = prune(data, detail["loc"])
    try:
        return Profile.model_validate(data)
    except ValidationError:
        return None


def _stray(loaded: LoadedProfile) -> list[Problem]:
    """`--set` for a target that this profile does not have would silently do nothing."""
    workers = loaded.profile.workers
    known = list(dict.fromkeys([*(w.role.value for w in workers), *(w.name for w in workers)]))
    known += [ROUTER] if loaded.profile.router else []
    return [
        Problem(item.origin, item.origin.key, f"has no target {item.target} here; there are: {', '.join(known)}")
        for item in loaded.set_values
        if item.target is not None and item.target not in known
    ]
