"""Where the watchdog and the engine meet: the functions hooked into SGLang's prefill scheduler."""

from http import HTTPStatus

from serving.inflight import settle, timeout
from serving.inflight.report import Report
from serving.inflight.watchdog import ENDED, Watchdog
from serving.transfer import in_force
from serving.untyped import Untyped


def begin(_: object, scheduler: Untyped) -> None:
    """After the engine prepared its role, or switched it: `scheduler.dsv4_inflight` is its watchdog, None off prefill.

    Raises:
        SystemExit: the timeout in the environment is none.
    """
    from sglang.srt.disaggregation.utils import DisaggregationMode

    from serving import telemetry

    def report() -> Report:
        return telemetry.report_for(scheduler)

    scheduler.dsv4_inflight = None
    if scheduler.disaggregation_mode == DisaggregationMode.PREFILL:
        try:
            scheduler.dsv4_inflight = Watchdog(scheduler, timeout.from_environment(), report)
        except timeout.BadTimeout as error:
            raise SystemExit(f"dsv4: {error}") from error


def prefill_done(original: Untyped, scheduler: Untyped, batch: Untyped, result: Untyped) -> Untyped:
    """Around the end of a prefill batch: who joined the queue in it is stamped."""
    before = len(scheduler.disagg_prefill_inflight_queue)
    returned = original(scheduler, batch, result)
    if entered := scheduler.disagg_prefill_inflight_queue[before:]:
        scheduler.dsv4_inflight.entered(entered)
    return returned


def inflight_pass(original: Untyped, scheduler: Untyped, rids_to_check: list[str] | None = None) -> Untyped:
    """Around every pass over the queue: of the normal loop, of the overlapped one and of the pipeline's."""
    watchdog = scheduler.dsv4_inflight
    queue = scheduler.disagg_prefill_inflight_queue
    if watchdog.has_lease:
        watchdog.mind_lease()
    if not queue:
        if not watchdog.is_shown_empty or settle.here:
            watchdog.nothing_inflight()
        return original(scheduler, rids_to_check)
    if rids_to_check is None:
        watchdog.before_poll(queue)
    else:
        # The stages of a pipeline have agreed on what ended; to end more on one of them now would part them.
        watchdog.look(queue)
    done = original(scheduler, rids_to_check)
    watchdog.after_poll(done, scheduler.disagg_prefill_inflight_queue)
    return done


def before_stage_poll(scheduler: Untyped) -> None:
    """Before a pipeline stage polls what has ended on it, which it does apart from the pass over the queue."""
    if scheduler.dsv4_inflight.has_lease:
        scheduler.dsv4_inflight.mind_lease()
    if queue := scheduler.disagg_prefill_inflight_queue:
        scheduler.dsv4_inflight.before_poll(queue)


def transfer_failed(original: Untyped, scheduler: Untyped, req: Untyped) -> Untyped:
    """Around the end of a request whose transfer failed: the watchdog's own words and status for its client."""
    watchdog = scheduler.dsv4_inflight
    watchdog.joins(req)
    error = original(scheduler, req)
    if message := watchdog.message(req):
        from sglang.srt.disaggregation.utils import prepare_abort

        prepare_abort(req, f"{message}. Request {req.rid}, bootstrap room {req.bootstrap_room}.")
    return error


def prepare_abort(original: Untyped, req: Untyped, error_message: str, status_code: object = None) -> None:
    """Around the engine's preparation of an error: a timeout is a 504, on prefill and on the decode that is told."""
    # A client chooses its request's id, which the engine's messages name.
    is_timeout = ENDED in error_message.replace(req.rid, "")
    original(req, error_message, HTTPStatus.GATEWAY_TIMEOUT if is_timeout else status_code)


def update_handlers(handlers: Untyped, controller: Untyped) -> Untyped:
    """After the engine listed the settings that can be changed while it runs: the timeout is one. The engine lists them
    anew for each request that changes some."""
    from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected, _UpdateHandler

    watchdog = controller.scheduler.dsv4_inflight
    change = timeout.Change(watchdog.in_force) if watchdog is not None else None

    def validate(key: str, value: object) -> None:
        if change is None:
            raise UpdateRejected(f"{key} belongs to prefill, and this engine is none")
        try:
            change.check(key, value)
        except timeout.BadTimeout as error:
            raise UpdateRejected(str(error)) from error

    def apply(_key: str, _value: object) -> None:
        watchdog.set_timeout(change)

    handler = _UpdateHandler(validate, apply)
    return {**handlers, **dict.fromkeys((timeout.CONTROL_KEY, timeout.WAS_KEY, timeout.LEASE_KEY), handler)}


def internal_state(answer: Untyped, controller: Untyped, _: Untyped) -> Untyped:
    """After the engine described itself: what is inflight, and what a quiet engine holds."""
    scheduler = controller.scheduler
    watchdog = scheduler.dsv4_inflight
    figures: dict[str, object] = {
        "kv_available_tokens": scheduler.token_to_kv_pool_allocator.available_size()
        + scheduler.tree_cache.evictable_size(),
        "request_rows_available": scheduler.req_to_token_pool.available_size(),
    }
    allocator = getattr(scheduler, "req_to_metadata_buffer_idx_allocator", None)
    if allocator is not None:
        figures["metadata_buffers_available"] = allocator.available_size()
    queue = getattr(scheduler, "disagg_prefill_bootstrap_queue", None) or getattr(
        scheduler, "disagg_decode_prealloc_queue", None
    )
    if queue is not None:
        # SGLang's backend for benchmarks, `fake`, has no rooms.
        rooms = getattr(queue.kv_manager, "request_status", {})
        # The store that pipeline stages share has no length of its own.
        figures["rooms"] = len(getattr(rooms, "_local_map", rooms))
        figures |= in_force.timers(queue.kv_manager)
    if watchdog is not None:
        figures |= {
            "inflight": len(watchdog.ledger),
            "settling": len(settle.here or ()),
            "inflight_timeout_s": watchdog.timeout_s,
            "inflight_standing_timeout_s": watchdog.in_force.standing_s,
            "inflight_lease_left_s": watchdog.lease_left_s(),
            "watchdog_fires": watchdog.fires,
        }
    answer.internal_state["dsv4"] = figures
    return answer
