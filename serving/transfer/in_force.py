"""The timers that a KV manager has. It reads its environment when it is made, and that of its process may be another
by then, or may have been."""

from serving.untyped import Untyped

_TOLD = {
    "bootstrap_timeout": "bootstrap_timeout_s",
    "waiting_timeout": "waiting_timeout_s",
    "heartbeat_interval": "heartbeat_interval_s",
    "max_failures": "heartbeat_failures",
}
"""By their names in SGLang's `CommonKVManager`: prefill has the first, decode the others."""


def timers(manager: Untyped) -> dict[str, object]:
    """What this manager goes by, in seconds, and how many heartbeats may be missed. Empty for one without timers, as
    SGLang's `fake` backend is."""
    return {name: getattr(manager, attribute) for attribute, name in _TOLD.items() if hasattr(manager, attribute)}
