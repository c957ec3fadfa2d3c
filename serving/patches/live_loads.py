"""/v1/loads carries the inflight figures, and does not freeze while requests are stuck."""

from serving.patches.patch import Hook, Patch, Upstream

_MODULE = "sglang.srt.managers.load_snapshot"

PATCH = Patch(
    name="live-loads",
    defect=(
        "the load of a prefill engine counts its inflight requests and does not say how old they are or where they "
        "stand; and it is not published while the pipeline-parallel loop (up to 0.5.18: any loop) has requests "
        "inflight and nothing to compute"
    ),
    safe_because=(
        "one key is added to a msgpack map, which readers skip that do not know it; SGLang's own fields are written "
        "and read as before"
    ),
    needed_by=">=0.5.15",
    made_for=">=0.5.15,<=0.5.23",
    delete_when="SGLang's load says the age and the state of inflight requests, in every loop",
    hooks=(
        Hook(f"{_MODULE}.ShmLoadSnapshotWriter.write", "before", "serving.loads:with_inflight"),
        Hook(f"{_MODULE}.ZmqLoadSnapshotWriter.write", "before", "serving.loads:with_inflight"),
        Hook(f"{_MODULE}.create_load_snapshot_reader", "before", "serving.loads:decode_inflight"),
    ),
    upstream=(
        Upstream(_MODULE, "ShmLoadSnapshotWriter.write", ("e581c395d70b",)),
        Upstream(_MODULE, "ZmqLoadSnapshotWriter.write", ("445d3ca91912",)),
        Upstream(_MODULE, "ShmLoadSnapshotReader._read_slot", ("e7256d1bb26b",)),
        Upstream(_MODULE, "ZmqShmLoadSnapshotReader._poll", ("b9cb1faa658e",)),
        Upstream(_MODULE, "create_load_snapshot_reader", ("b64b59ad1b58", "4b99e57c4cd9", "db1205c1c8b5")),
        Upstream(_MODULE, "LoadSnapshot", ("626bd03f4c80", "4e8db5b24c31", "4780cedd6085", "88a4d757dced")),
    ),
    required=False,
)
