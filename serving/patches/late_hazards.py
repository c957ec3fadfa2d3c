"""Hazards are looked for in what an engine really starts with, also where its command line does not show it."""

from serving.patches.patch import Hook, Patch, Upstream

_ARGUMENTS = "sglang.srt.server_args"

PATCH = Patch(
    name="late-hazards",
    defect=(
        "when plugins are loaded SGLang has not read its arguments: what a file says (--config), or a program "
        "(sglang.Engine), or SGLang itself makes of them, is not on the command line, and a hazard in it goes unseen"
    ),
    safe_because=(
        "the settled arguments are read and not changed, before SGLang checks them itself and before any process of "
        "the engine is started; one that is refused ends as it would by the command line"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="SGLang loads plugins after its arguments are settled, or never as long as there are hazards",
    hooks=(Hook(f"{_ARGUMENTS}.ServerArgs.check_server_args", "before", "serving.plugin:look_at_configuration"),),
    upstream=(
        Upstream(_ARGUMENTS, "ServerArgs.check_server_args", ("0df85e2ceca2",)),
        Upstream("sglang.srt.arg_groups.model_override_base", "resolving_view", ("7a70d26c00df",)),
        Upstream("sglang.srt.entrypoints.engine", "Engine._launch_subprocesses", ("3e5f860ec52b",)),
    ),
    # Without it hazards are looked for in the command line alone.
    required=False,
)
