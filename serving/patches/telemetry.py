"""The engine's /metrics carries the patch table, and stays what it was with hooks."""

from serving.patches.patch import Hook, Patch, Upstream

PATCH = Patch(
    name="telemetry",
    defect=(
        "a hook that SGLang could not apply is a line in its log and nothing else: no metric says what runs; and a "
        "hook into a module that imports prometheus_client leaves /metrics empty"
    ),
    safe_because=(
        "it adds a gauge after SGLang has made its own metrics, on ranks that export any; and it has prometheus_client "
        "decide as it would if it were imported when SGLang expects it to be"
    ),
    needed_by=">=0.5.15",
    made_for=">=0.5.15,<=0.5.23",
    delete_when="never, as long as the engine is patched",
    hooks=(
        Hook(
            "sglang.srt.utils.common.set_prometheus_multiproc_dir", "after", "serving.telemetry:share_between_processes"
        ),
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.init_metrics_collector",
            "after",
            "serving.telemetry:export_patch_info",
        ),
    ),
    upstream=(
        Upstream("sglang.srt.managers.scheduler", "Scheduler.init_metrics_collector", ("aa57d860af4c", "63658e4fdedf")),
        Upstream("sglang.srt.observability.metrics_collector", "SchedulerMetricsCollectorContext", ("ea3cfc064f9a",)),
        Upstream("sglang.srt.utils.common", "set_prometheus_multiproc_dir", ("1f7bf2199d60",)),
    ),
    required=False,
)
