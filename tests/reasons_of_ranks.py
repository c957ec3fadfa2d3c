"""What two ranks of decode know of failures they agree on, by SGLang's own poll over a real group of processes."""

import json
import multiprocessing
import sys
import tempfile
import threading
from types import SimpleNamespace
from typing import Any

RANKS = 2
ARMS = ("stock", "patched")
TOLD = {
    0: {1: "of the first"},
    1: {1: "of the second", 2: "of the second"},
}
FAILS = {0: {1}, 1: {1, 2, 3}}
ROOMS = (1, 2, 3, 4)


def rank(number: int, store: str, said: Any) -> None:
    import torch.distributed as dist
    from sglang.srt.disaggregation.base import KVPoll
    from sglang.srt.disaggregation.common.conn import CommonKVReceiver
    from sglang.srt.disaggregation.utils import poll_and_all_reduce

    from serving.transfer import reasons

    class Receiver(CommonKVReceiver):  # type: ignore[misc]
        def __init__(self, manager: Any, room: int) -> None:
            self.kv_mgr, self.bootstrap_room = manager, room

        def poll(self) -> KVPoll:
            return KVPoll.Failed if self.bootstrap_room in FAILS[number] else KVPoll.Transferring

        def send_metadata(self, *_: object, **__: object) -> None:
            raise AssertionError

    class Fake:
        """As a health check's: no room."""

        def poll(self) -> KVPoll:
            return KVPoll.Failed

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=RANKS)
    world = dist.group.WORLD
    for arm in ARMS:
        manager = SimpleNamespace(failure_lock=threading.Lock(), failure_records=dict(TOLD[number]))
        pollers = [*(Receiver(manager, room) for room in ROOMS), Fake()]
        if arm == "stock":
            polls = poll_and_all_reduce(pollers, world)
        else:
            polls = reasons.poll(poll_and_all_reduce, pollers, world)
        said.put((arm, number, [int(poll) for poll in polls], manager.failure_records))
    dist.destroy_process_group()


def main() -> None:
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    with tempfile.TemporaryDirectory() as directory:
        ranks = [context.Process(target=rank, args=(number, f"{directory}/store", said)) for number in range(RANKS)]
        for one in ranks:
            one.start()
        seen: dict[str, dict[int, object]] = {arm: {} for arm in ARMS}
        for _ in range(RANKS * len(ARMS)):
            arm, number, polls, known = said.get(timeout=300)
            seen[arm][number] = {"polls": polls, "known": known}
        for one in ranks:
            one.join(60)
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
