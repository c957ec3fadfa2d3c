"""The engine's /metrics carries the patch table."""

from serving.patches.patch import Hook, Patch, Upstream

PATCH = Patch(
    name="telemetry",
    defect="a hook that SGLang could not apply is a line in its log and nothing else: no metric says what runs",
    safe_because="it adds a gauge after SGLang has made its own metrics, on ranks that export any",
    needed_by=">=0.5.15",
    made_for=">=0.5.15,<=0.5.23",
    delete_when="never, as long as the engine is patched",
    hooks=(
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.init_metrics_collector",
            "after",
            "serving.telemetry:export_patch_info",
        ),
    ),
    upstream=(
        Upstream("sglang.srt.managers.scheduler", "Scheduler.init_metrics_collector", ("aa57d860af4c", "63658e4fdedf")),
        Upstream("sglang.srt.observability.metrics_collector", "SchedulerMetricsCollectorContext", ("ea3cfc064f9a",)),
    ),
    required=False,
)
