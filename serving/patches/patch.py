"""What a patch says of itself. Importing a patch needs neither SGLang nor torch: its hooks are named, not imported."""

from dataclasses import dataclass
from typing import Literal

HookKind = Literal["before", "after", "around", "replace"]


@dataclass(frozen=True)
class Hook:
    """`function` ("module:name", of ours) hooked to `target`, a dotted path in SGLang, as SGLang's registry has it.

    before: (*arguments) -> (args, kwargs) or None; after: (result, *arguments) -> result or None; around: (original,
    *arguments) -> result; replace: (*arguments) -> result, or a class.
    """

    target: str
    kind: HookKind
    function: str


@dataclass(frozen=True)
class Upstream:
    """A function or class of the engine that a patch was written against: `module`, `qualname` within it.

    `fingerprints` are those of `serving.patches.fingerprint` that the patch is known to fit, one per shape of the code.
    `versions` are the SGLang versions, as a PEP 440 specifier set, that have it; the patch does without it on others.
    """

    module: str
    qualname: str
    fingerprints: tuple[str, ...]
    versions: str = ""


@dataclass(frozen=True)
class Patch:
    """One change to the engine.

    `needed_by` and `made_for` are PEP 440 specifier sets of SGLang versions: those that have the defect, and those
    that the change fits. A version that needs it and that it does not fit makes the patch FAILED, and so does any
    version that nobody has looked at (`registry.LOOKED_AT`). `upstream` has what the change hooks, calls or takes for
    granted. `only_if` names a switch of ours without which the patch is not needed. `relies_on` names the patches
    without which this one does harm: it is FAILED when one of them is switched off or FAILED. A `required` patch that
    FAILED stops the engine, unless SGLANG_DSV4_PATCH_POLICY=warn.
    """

    name: str
    defect: str
    safe_because: str
    needed_by: str
    made_for: str
    delete_when: str
    hooks: tuple[Hook, ...]
    upstream: tuple[Upstream, ...]
    required: bool = True
    only_if: str | None = None
    relies_on: tuple[str, ...] = ()
