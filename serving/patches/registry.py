"""Which patches this engine needs, what became of each, and the proof that they are in force.

A patch is a module of this package with a `PATCH`; nothing lists them. SGLang applies hooks after all plugins have
run, and only logs one that it cannot apply. So what a patch needs is looked at before its hooks are registered, and
every hook is looked for again once SGLang has applied them, before the process does anything else.
"""

import contextlib
import difflib
import gc
import importlib
import importlib.metadata
import inspect
import multiprocessing
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from serving import patches as package
from serving.patches import source
from serving.patches.fingerprint import fingerprint
from serving.patches.patch import Hook, Patch
from serving.settings import BadSetting, switch
from serving.untyped import Untyped

POLICY = "SGLANG_DSV4_PATCH_POLICY"
DISABLED = "SGLANG_DSV4_DISABLE_PATCHES"
_ALL = "all"
_PINNED = "0.5.23"
_OLDEST = "0.5.15"

LOOKED_AT: Final = SpecifierSet(f">={_OLDEST},<={_PINNED}")
"""The versions of SGLang whose code the authors of the patches have read; of any other nothing can be said."""

Policy = Literal["enforce", "warn"]
Status = Literal["applied", "not needed", "skipped", "FAILED"]


@dataclass(frozen=True)
class Standing:
    """What became of a patch, and why, in a sentence without a full stop. `required` is the patch's own."""

    name: str
    status: Status
    reason: str
    required: bool


@dataclass(frozen=True)
class _Prepared:
    """A hook whose both ends were found."""

    hook: Hook
    function: Untyped


_standings: tuple[Standing, ...] = ()


def standings() -> tuple[Standing, ...]:
    """What became of every patch in this process, by name; empty until SGLang has applied its hooks."""
    return _standings


def discover() -> tuple[Patch, ...]:
    """Every patch there is, by the name of its module.

    Raises:
        Exception: a module of this package cannot be imported.
    """
    modules = (importlib.import_module(found.name) for found in _modules())
    return tuple(patch for module in modules if isinstance(patch := getattr(module, "PATCH", None), Patch))


def _modules() -> list[pkgutil.ModuleInfo]:
    own = (__name__, f"{package.__name__}.fingerprint", source.__name__)
    found = pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    return sorted((module for module in found if module.name not in own), key=lambda module: module.name)


def installed_version() -> Version:
    """That of the SGLang of this interpreter.

    Raises:
        importlib.metadata.PackageNotFoundError: it has none.
    """
    return Version(importlib.metadata.version("sglang"))


def policy_of(environment: Mapping[str, str]) -> Policy:
    """What is done about a required patch that FAILED; enforce where nothing is said.

    Raises:
        BadSetting: the variable says neither.
    """
    policies: dict[str, Policy] = {"enforce": "enforce", "warn": "warn"}
    said = environment.get(POLICY) or "enforce"
    if said not in policies:
        raise BadSetting(f'{POLICY} is "{said}", and must be {" or ".join(policies)}')
    return policies[said]


def judge_all(environment: Mapping[str, str], patches: Sequence[Patch], version: Version) -> tuple[Standing, ...]:
    """What would become of every patch in an engine of that version with this environment, as far as its source tells.

    Raises:
        BadSetting: a patch is switched off that does not exist, or the switch of one says neither yes nor no.
    """
    names = [patch.name for patch in patches]
    disabled = _disabled(environment, names)
    # Hundreds of thousands of nodes are made and dropped, which would have the collector walk the whole engine.
    collecting = gc.isenabled()
    gc.disable()
    try:
        judged = [
            Standing(patch.name, "skipped", f"switched off by {DISABLED}", patch.required)
            if patch.name in disabled
            else Standing(patch.name, *_judge(patch, environment, version), patch.required)
            for patch in patches
        ]
        return _without_support(patches, judged)
    finally:
        source.forget()
        if collecting:
            gc.enable()


def _disabled(environment: Mapping[str, str], names: Sequence[str]) -> frozenset[str]:
    said = [part.strip() for part in environment.get(DISABLED, "").split(",")]
    for name in filter(None, said):
        if name != _ALL and name not in names:
            near = difflib.get_close_matches(name, [*names, _ALL], n=1)
            instead = f"did you mean {near[0]}?" if near else f"there are {', '.join([*names, _ALL])}"
            raise BadSetting(f"{DISABLED} names {name}, which is no patch; {instead}")
    return frozenset(names if _ALL in said else filter(None, said))


def _judge(patch: Patch, environment: Mapping[str, str], version: Version) -> tuple[Status, str]:
    if patch.only_if is not None and not switch(patch.only_if, environment):
        return "not needed", f"only with {patch.only_if}=1"
    if not LOOKED_AT.contains(version, prereleases=True):
        return "FAILED", f"nobody has looked at SGLang {version}; the patches know {_OLDEST} to {_PINNED}"
    if not SpecifierSet(patch.needed_by).contains(version, prereleases=True):
        return "not needed", f"SGLang {version} does not have this defect"
    if not SpecifierSet(patch.made_for).contains(version, prereleases=True):
        return "FAILED", f"SGLang {version} needs it, and it is made for {patch.made_for}"
    try:
        misfit = _misfit(patch, version)
    except source.Unreadable as unreadable:
        misfit = str(unreadable)
    if misfit is not None:
        return "FAILED", misfit
    return "applied", f"SGLang {version} has the defect, and the code that it was written against"


def _misfit(patch: Patch, version: Version) -> str | None:
    """What of the installed code is not as the patch takes it to be.

    Raises:
        source.Unreadable: some of it is no Python.
    """
    for upstream in patch.upstream:
        if not SpecifierSet(upstream.versions).contains(version, prereleases=True):
            continue
        try:
            found = fingerprint(upstream.module, upstream.qualname)
        except source.Missing as missing:
            return f"it was written against code that is gone: {missing}"
        if found not in upstream.fingerprints:
            known = " or ".join(upstream.fingerprints)
            return f"{upstream.module}:{upstream.qualname} has changed since it was written ({found}, not {known})"
    for hook in patch.hooks:
        if not source.leads_somewhere(hook.target):
            return f"there is no {hook.target} to hook"
    return None


def _without_support(patches: Sequence[Patch], judged: Sequence[Standing]) -> tuple[Standing, ...]:
    """The same standings, but that no patch is applied without those that it relies on."""
    by_name = {standing.name: standing for standing in judged}
    for patch in patches:
        for other in patch.relies_on:
            if by_name[patch.name].status == "applied" and by_name[other].status in ("skipped", "FAILED"):
                reason = f"it does harm without {other}, which is {by_name[other].status}"
                by_name[patch.name] = replace(by_name[patch.name], status="FAILED", reason=reason)
                return _without_support(patches, tuple(by_name.values()))
    return tuple(by_name.values())


def apply(environment: Mapping[str, str], patches: Sequence[Patch]) -> None:
    """Register the hooks of every patch that this engine needs; what became of each is known once SGLang applied them.

    Raises:
        BadSetting: one of our variables has a value that means nothing.
        SystemExit: a required patch FAILED, now or when SGLang applies the hooks, and the policy is to enforce.
    """
    policy = policy_of(environment)
    judged = judge_all(environment, patches, installed_version())
    _stop_for_failed(judged, policy)
    judged, hooks = _prepared(patches, judged)
    _stop_for_failed(judged, policy)
    _register([prepared for of_patch in hooks.values() for prepared in of_patch])

    def verify() -> None:
        global _standings
        _standings = tuple(_verified(standing, hooks.get(standing.name, ())) for standing in judged)
        _stop_for_failed(_standings, policy)
        _stop_for_unsupported(patches, _standings)
        if multiprocessing.parent_process() is None:
            _say(_standings)

    _after_hooks_are_applied(verify)


def _prepared(
    patches: Sequence[Patch], judged: Sequence[Standing]
) -> tuple[tuple[Standing, ...], dict[str, tuple[_Prepared, ...]]]:
    """The same standings, FAILED where a hook cannot be made, and the hooks of those patches that are still applied."""
    hooks: dict[str, tuple[_Prepared, ...]] = {}
    standings: list[Standing] = []
    for patch, standing in zip(patches, judged, strict=True):
        became = standing
        if standing.status == "applied":
            try:
                hooks[patch.name] = tuple(_prepare(hook) for hook in patch.hooks)
            except Exception as error:  # noqa: BLE001 - importing an engine's module may raise anything; it is reported
                became = replace(standing, status="FAILED", reason=_in_one_line(error))
        standings.append(became)
    settled = _without_support(patches, standings)
    return settled, {standing.name: hooks[standing.name] for standing in settled if standing.status == "applied"}


def _prepare(hook: Hook) -> _Prepared:
    """Both ends of a hook.

    Raises:
        Exception: one of them is not there, or they do not fit.
    """
    if (module := source.module_of(hook.target)) is not None:
        # What resolves the path would take a module that fails to import for one that is not there.
        importlib.import_module(module)
    target, function = pkgutil.resolve_name(hook.target), pkgutil.resolve_name(hook.function)
    if not callable(target):
        raise TypeError(f"{hook.target} is not a function")
    if not callable(function):
        raise TypeError(f"{hook.function} is not a function")
    if isinstance(target, type) and not (hook.kind == "replace" and isinstance(function, type)):
        raise TypeError(f"{hook.target} is a class, which only another class can replace")
    return _Prepared(hook, function)


def _register(hooks: Sequence[_Prepared]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for prepared in hooks:
        HookRegistry.register(prepared.hook.target, prepared.function, HookType(prepared.hook.kind))


def _after_hooks_are_applied(then: Callable[[], None]) -> None:
    """Have `then` called once, when SGLang has applied all hooks of this process and goes on to what they change."""
    from sglang.srt.plugins import hook_registry

    own = hook_registry.HookRegistry.__dict__["apply_hooks"]

    def apply_hooks() -> None:
        hook_registry.HookRegistry.apply_hooks = own
        with _methods_looked_for_in_their_class_alone(hook_registry):
            hook_registry.HookRegistry.apply_hooks()
        then()

    hook_registry.HookRegistry.apply_hooks = staticmethod(apply_hooks)


@contextlib.contextmanager
def _methods_looked_for_in_their_class_alone(hook_registry: Untyped) -> Iterator[None]:
    """For each hook SGLang goes through every name of every module, for others that stand for what it has wrapped.

    There are none for a method, which hangs on its class; for a few dozen of them the search takes over a second.
    """
    search = hook_registry._propagate_patch

    def search_unless_method(original: Untyped, wrapped: Untyped, owner: Untyped) -> int:
        return 0 if isinstance(owner, type) else int(search(original, wrapped, owner))

    hook_registry._propagate_patch = search_unless_method
    try:
        yield
    finally:
        hook_registry._propagate_patch = search


def _verified(standing: Standing, hooks: Sequence[_Prepared]) -> Standing:
    """The standing of a patch whose hooks should be in force.

    Raises:
        SystemExit: only some of them are: then the engine is neither as it was nor as it should be.
    """
    missing = [prepared.hook.target for prepared in hooks if not _in_force(prepared)]
    if not missing:
        return standing
    reason = f"SGLang did not apply it to {' and '.join(missing)} (its log says why)"
    if len(missing) < len(hooks):
        raise SystemExit(
            f"dsv4: error: patch {standing.name} is in force by half: {reason}; "
            f"switch it off with {DISABLED}={standing.name}"
        )
    return replace(standing, status="FAILED", reason=reason)


def _in_force(prepared: _Prepared) -> bool:
    """Whether the target leads to our function, through all the wrappers that SGLang put around it.

    A wrapper of SGLang's holds the hook in its closure, and names what it wraps.
    """
    owner, _, name = prepared.hook.target.rpartition(".")
    held = inspect.getattr_static(pkgutil.resolve_name(owner), name, None)
    held = getattr(held, "__func__", held)
    while held is not None:
        if held is prepared.function or any(cell.cell_contents is prepared.function for cell in _closure(held)):
            return True
        held = getattr(held, "__wrapped__", None)
    return False


def _closure(function: Untyped) -> tuple[Untyped, ...]:
    return getattr(function, "__closure__", None) or ()


def _stop_for_failed(standings: Sequence[Standing], policy: Policy) -> None:
    failed = [standing for standing in standings if standing.status == "FAILED" and standing.required]
    if failed and policy == "enforce":
        first, *others = failed
        also = f" (so did {', '.join(other.name for other in others)})" if others else ""
        names = ",".join(standing.name for standing in failed)
        raise SystemExit(
            f"dsv4: error: patch {first.name}, which this engine should not run without, FAILED: {first.reason}{also}; "
            f"install sglang=={_PINNED}, or run without it: {DISABLED}={names}, or {POLICY}=warn"
        )


def _stop_for_unsupported(patches: Sequence[Patch], standings: Sequence[Standing]) -> None:
    """Whatever the policy: a patch is in force that does harm without another, which SGLang did not apply."""
    for standing, supported in zip(standings, _without_support(patches, standings), strict=True):
        if standing != supported:
            raise SystemExit(
                f"dsv4: error: patch {standing.name} is in force, and {supported.reason}; "
                f"switch it off with {DISABLED}={standing.name}"
            )


def _say(standings: Sequence[Standing]) -> None:
    """A line on standard error: SGLang has not set up its log yet. More of them for what FAILED and is gone without."""
    counted = Counter(standing.status for standing in standings)
    order: tuple[Status, ...] = ("applied", "not needed", "skipped", "FAILED")
    counts = ", ".join(f"{counted[status]} {status}" for status in order if counted[status])
    sys.stderr.write(f"dsv4 patches: {counts or 'none'}\n")
    for standing in standings:
        if standing.status == "FAILED":
            sys.stderr.write(f"dsv4 patch {standing.name} FAILED, and the engine goes on without: {standing.reason}\n")


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
