"""What a person sees of a restart: what runs and what changes before it, and where the seconds went after it."""

from collections.abc import Sequence

from dsv4ctl.console import Column, Console
from dsv4ctl.live import age_text
from dsv4ctl.plan import Step, Timed
from dsv4ctl.restart.changes import Change
from dsv4ctl.restart.conduct import Done
from dsv4ctl.restart.situation import Situation
from dsv4ctl.restart.traffic import Held

_WORKERS = (Column("worker"), Column("host"), Column("pid", right=True), Column("state"), Column("requests", fold=True))
_CHANGES = (Column("setting", fold=True), Column("worker"), Column("now", fold=True), Column("then", fold=True))
_PHASES = (Column("phase"), Column("seconds", right=True), Column("what", fold=True))

_PHASE_OF = {
    "model": "prepare", "evidence": "evidence", "cordon": "cordon", "drain": "drain", "abort": "abort",
    "note": "end", "end": "end", "ended": "end", "kill": "end", "gone": "prove gone",
    "start": "start", "await": "start", "pair": "prove", "idle": "prove", "readback": "prove", "patches": "prove",
    "uncordon": "let in", "traffic": "let in",
}  # fmt: skip


def show_workers(console: Console, situation: Situation, held: Sequence[Held]) -> None:
    """The workers as they are, and what requests they have."""
    requests = {one.worker: str(one).partition(": ")[2] for one in held}
    rows = [
        [
            one.name,
            one.host,
            str(one.pid or "-"),
            one.state.value if one.state is not None else "not started",
            requests.get(one.name, ""),
        ]
        for one in situation.running
    ]
    console.table(_WORKERS, rows)


def changes_table(console: Console, changes: Sequence[Change]) -> None:
    """What will be otherwise; a setting that changes alike for several workers is one row."""
    if not changes:
        console.say("nothing changes: the same configuration is started again")
        return
    rows: dict[tuple[str, str | None, str | None], list[str]] = {}
    for change in changes:
        rows.setdefault((change.what, change.before, change.after), []).append(change.worker)
    console.table(
        _CHANGES,
        [
            [what, ", ".join(workers), "not set" if before is None else before, "not set" if after is None else after]
            for (what, before, after), workers in rows.items()
        ],
    )


def plan_lines(steps: Sequence[Step]) -> list[str]:
    """The plan, a line a step."""
    return [
        f"{number:>3}. {step.title}  (on {step.host}, within {step.deadline_s:g} s)"
        for number, step in enumerate(steps, 1)
    ]


def report_rows(timeline: Sequence[Timed]) -> list[dict[str, object]]:
    """The timeline for a program."""
    return [
        {"id": timed.step.id, "state": timed.state, "seconds": round(timed.seconds, 3), "facts": timed.facts}
        for timed in timeline
    ]


def show_report(console: Console, done: Done, seconds: float, evidence: Sequence[str]) -> None:
    """Where the seconds went, and what was left behind."""
    phases: dict[str, tuple[float, list[str]]] = {}
    for timed in done.timeline:
        name = _PHASE_OF.get(timed.step.id.partition(":")[0], "other")
        spent, words = phases.get(name, (0.0, []))
        phases[name] = (spent + timed.seconds, words + _words(timed))
    rows = [[name, f"{spent:.1f}", "; ".join(words)] for name, (spent, words) in phases.items()]
    console.table(_PHASES, rows)
    for folder in evidence:
        console.say(f"evidence: {folder}")
    down = done.downtime_s
    silent = f"; no new request was taken for {down:.1f} s" if down is not None else ""
    what = {
        "restarted": "restarted and proven in",
        "rolled back": "rolled back and proven in",
        "failed": "failed after",
    }
    console.say(f"{what[done.state]} {age_text(seconds)}{silent}")


def _words(timed: Timed) -> list[str]:
    facts, kind = timed.facts, timed.step.id.partition(":")[0]
    if timed.state in {"failed", "interrupted"}:
        return [f"{timed.step.title}: {timed.state.upper()}"]
    if kind == "drain" and timed.state == "done":
        left = list(facts.get("left", ()))
        return ["all had ended"] if facts.get("drained") else [f"left: {', '.join(left)}"]
    if kind == "abort" and facts.get("aborted"):
        return [f"{facts['aborted']} aborted" + ("" if facts.get("ended") else ", and not all of them ended")]
    if kind == "abort" and facts.get("why_not"):
        return [f"not aborted: {facts['why_not']}"]
    if kind == "kill" and facts.get("killed"):
        return [f"{', '.join(facts['killed'])} had to be killed"]
    if kind == "gone" and facts.get("removed_segments"):
        count = len(facts["removed_segments"])
        return [f"{count} file{'' if count == 1 else 's'} in /dev/shm removed"]
    if kind == "pair" and timed.state == "done":
        return [f"{timed.step.id.partition(':')[2]} answered rightly"]
    return []
