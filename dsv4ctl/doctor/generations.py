"""One small and one large generation through every hop of a running stack, from the router to each pair."""

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv4ctl.engine_keys import keys_of
from dsv4ctl.findings import Finding
from dsv4ctl.probe.conduct import Conduct, Record, questions_of
from dsv4ctl.probe.hops import Caller, stack_hops
from dsv4ctl.probe.link import Endpoint
from dsv4ctl.probe.report import findings_of
from dsv4ctl.probe.tally import tally
from dsv4ctl.probe.verdict import Verdict, judge
from dsv4ctl.probe.wire import Dialler

if TYPE_CHECKING:
    from dsv4ctl.profile.schema import Canary
    from dsv4ctl.signals import Interrupts
    from dsv4ctl.targets import Target


@dataclass(frozen=True)
class Generated:
    """What came of them: how many were asked for and how many were right, and the verdict on the path."""

    asked: int
    right: int
    verdict: Verdict
    findings: tuple[Finding, ...]


def generate(target: "Target", canary: "Canary", interrupts: "Interrupts", rng: random.Random) -> Generated:
    """Ask every hop, as `dsv4ctl probe` does without rounds.

    Raises:
        Interrupted: the person wants to end.
    """
    hops = stack_hops(target.records, 0)
    asked = ((target.fleet[host], worker) for host, record in target.records for worker in record.workers)
    keys = next(filter(None, (keys_of(place, worker, "--api-key") for place, worker in asked)), {})
    questions = replace(questions_of(target.records[0][1].served_model, canary), headers=keys)
    record = Record(lambda _: None)
    hosts = {place.host for hop in hops for place in hop.places}
    diallers = {host: Dialler(target.fleet[host].host, interrupts.check) for host in hosts}
    try:
        Conduct(
            questions,
            lambda hop: Caller(hop, lambda place: Endpoint(place.name, place.url, diallers[place.host]), rng),
            record,
            interrupts,
            rng,
        ).walk(hops)
    finally:
        for dialler in diallers.values():
            dialler.close()
    tallies = {hop.name: tally(hop.name, record.exchanges) for hop in hops}
    verdict = judge(hops, tallies, {})
    right = sum(exchange.seen and not exchange.failed for exchange in record.exchanges)
    found = tuple(findings_of(tallies.values(), record.exchanges, verdict))
    return Generated(len(record.exchanges), right, verdict, found)
