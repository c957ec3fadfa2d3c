"""Everything that can be known of the new configuration before the old one is ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv4ctl.errors import OperationFailed
from dsv4ctl.facts import HostFacts
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.launch import Launch, check_cards, look_at_hosts, preflight
from dsv4ctl.restart.agreement import Settings, by_argv, disagreements, one_sided
from dsv4ctl.restart.gpus import GpuUse, indices_of, read_gpu_use, tenants
from dsv4ctl.restart.patch_table import FAILED, Table, expected_table, present_hazards
from dsv4ctl.restart.running import Running
from dsv4ctl.stack import Worker

if TYPE_CHECKING:
    from dsv4ctl.fleet import Place

_OUR_PLUGIN = "dsv4"


@dataclass(frozen=True)
class Checked:
    """What is known of the new configuration. `tables` has the patches that each engine will have."""

    findings: tuple[Finding, ...]
    tables: Mapping[str, Table]
    facts: Mapping[str, HostFacts]


def check_new(
    work: Launch, engines: Sequence[Worker], starting: Sequence[Worker], leaving: Sequence[Running]
) -> Checked:
    """Look at the hosts and ask their engines what they would make of it. Nothing is changed.

    `engines` are all that will have been restarted; `starting` those of them that are not running yet.

    Raises:
        ProfileError: the profile names something that a host does not have.
        CannotLook: the GPUs of a host are not those for which the plan was made, or could not be looked at.
        HostUnreachable
    """
    facts = look_at_hosts(work)
    launch = replace(work, stack=replace(work.stack, workers=tuple(starting)))
    check_cards(launch, facts)
    gone = {host: [pid for one in leaving if one.host == host for pid in one.pids] for host in work.fleet}
    findings = [*preflight(launch, facts, leaving=gone)]
    settings = [Settings(worker.name, worker.role, "the plan", by_argv(worker.argv)) for worker in work.stack.engines]
    findings += [*disagreements(settings), *one_sided(settings)]
    tables: dict[str, Table] = {}
    for worker in engines:
        place = work.fleet[worker.host]
        if "dsv4ctl" not in facts[worker.host].packages or not has_plugin(worker):
            tables[worker.name] = {}
            continue
        table, of_engine = ask_engine(place, worker)
        findings += of_engine
        if table is not None:
            tables[worker.name] = table
    return Checked(tuple(findings), tables, facts)


def ask_engine(place: "Place", worker: Worker) -> tuple[Table | None, list[Finding]]:
    """What the interpreter of an engine with our plugin says of its plan: the patches that it will have, and what is
    wrong. Nothing is started.

    Raises:
        HostUnreachable, DeadlineExceeded
    """
    try:
        table = expected_table(place.host, place.site.python, worker.env)
        hazards = present_hazards(place.host, place.site.python, worker.env, _flags(worker))
    except OperationFailed as error:
        return None, [_refused(worker, error)]
    return table, [*_of_table(worker, table), *(_hazard(worker, *hazard) for hazard in hazards)]


def gpu_findings(
    use: Mapping[str, Sequence[GpuUse]], engines: Sequence[Worker], ours: Sequence[Running]
) -> tuple[Finding, ...]:
    """GPU_SHARED for each process on a GPU of ours that is none of ours. It is told, and never touched."""
    findings: list[Finding] = []
    for host, gpus in use.items():
        wanted = indices_of(worker for worker in engines if worker.host == host)
        pids = [pid for one in ours if one.host == host for pid in one.pids]
        findings += [
            Finding(
                "GPU_SHARED",
                Severity.WARNING,
                f"GPU {tenant.gpu} on {host} is also used by pid {tenant.pid}, which is none of ours "
                f"({tenant.used_mib} MiB)",
                "it is left alone; if the engine does not find memory enough, ask whose it is",
                {"host": host, "gpu": tenant.gpu, "pid": tenant.pid, "used_mib": tenant.used_mib},
            )
            for tenant in tenants(gpus, wanted, pids)
        ]
    return tuple(findings)


def read_gpus_of(work: Launch, engines: Sequence[Worker]) -> dict[str, tuple[GpuUse, ...]]:
    """The memory in use on the GPUs of every host that has an engine with GPUs.

    Raises:
        OperationFailed, HostUnreachable
    """
    hosts = {worker.host for worker in engines if worker.gpus}
    return {host: read_gpu_use(work.fleet[host].host) for host in hosts}


def has_plugin(worker: Worker) -> bool:
    """Whether an engine that is started so loads our plugin, where it is installed."""
    named = worker.env.get("SGLANG_PLUGINS", "")
    return not named or _OUR_PLUGIN in (name.strip() for name in named.split(","))


def _flags(worker: Worker) -> Sequence[str]:
    first = next((at for at, word in enumerate(worker.argv) if at > 0 and word == "-m"), len(worker.argv))
    return worker.argv[first + 2 :]


def _of_table(worker: Worker, table: Table) -> list[Finding]:
    return [
        Finding(
            "PATCH_FAILED",
            Severity.ERROR,
            f"{worker.name} on {worker.host} would not start as it should: patch {name} does not fit this SGLang",
            "`python -m serving patches` with the engine's interpreter says why",
            {"worker": worker.name, "patch": name},
        )
        for name, status in table.items()
        if status == FAILED
    ]


def _hazard(worker: Worker, name: str, severity: str, words: str) -> Finding:
    refused = severity == "refuse"
    return Finding(
        "HAZARD",
        Severity.ERROR if refused else Severity.WARNING,
        f"{worker.name} on {worker.host} {'would refuse to start' if refused else 'would warn'}: {words}",
        "docs/hazards.md has the evidence",
        {"worker": worker.name, "hazard": name},
    )


def _refused(worker: Worker, error: OperationFailed) -> Finding:
    return Finding(
        "ENGINE_REFUSES",
        Severity.ERROR,
        f"the engine of {worker.name} on {worker.host} does not take its environment: {error.why or error.what}",
        "take the setting out (--unset), or correct it",
        {"worker": worker.name},
    )
