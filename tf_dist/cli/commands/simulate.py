"""``tf-dist simulate``: compares admission policies on a trace of jobs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tf_dist.cli import options, output

if TYPE_CHECKING:
    from collections.abc import Callable

    from tf_dist.simulate.engine import Policy, World
    from tf_dist.simulate.metrics import Figures
    from tf_dist.simulate.scenario import Scenario
    from tf_dist.simulate.traces import TraceOptions

_TRACE = "philly, helios, dragon, kueue, storm, or a file of jobs (.csv, .yaml)."
_POLICY = "A policy to compare; again for more: ours, easy, skip, fifo, dragon, auto-scale, gang, default…"


def simulate(
    trace: Annotated[str, typer.Option("--trace", metavar="TRACE", help=_TRACE)] = "dragon",
    policy: Annotated[list[str] | None, typer.Option("--policy", metavar="NAME", help=_POLICY)] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, max=1_000_000, help="The number of jobs.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, max=100_000, help="The number of nodes.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, max=1024, help="GPUs of a node.")] = None,
    cpu: Annotated[int | None, typer.Option("--cpu", min=1, max=100_000, help="Cores of a node.")] = None,
    load: Annotated[
        float | None, typer.Option("--load", min=0.01, max=100.0, help="The work of the jobs divided by the capacity.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=1000, help="The number of traces to average over.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="The seed of the first trace.")] = 0,
    restart: Annotated[
        float | None, typer.Option("--restart", min=0.0, help="Seconds that a job needs to grow or to start again.")
    ] = None,
    checkpoint: Annotated[
        float | None,
        typer.Option(
            "--checkpoint",
            min=0.1,
            help="Seconds between two checkpoints of a job. Without it a preempted job starts from the beginning.",
        ),
    ] = None,
    faithful: Annotated[
        bool, typer.Option("--faithful", help='With "ours", also reconcile every job as a controller does; slower.')
    ] = False,
    html: Annotated[
        str, typer.Option("--html", metavar="FILE", help="Write the table and pictures to this file.")
    ] = "",
    form: Annotated[options.DataFormat, typer.Option("--output", "-o", help="table, json or yaml.")] = (
        options.DataFormat.TABLE
    ),
    plain: options.Plain = False,
) -> None:
    """Compare policies on a trace of jobs and a simulated cluster, on a virtual clock.

    The policy "ours" is the admission code of the controller. The others are default and default+timeout
    (kube-scheduler, pod by pod), gang (all or nothing), gang+locality, fifo, skip (best-effort FIFO), easy
    (backfilling), and auto-scale and dragon (the scaling rules of tf-operator-Dragon's two versions).
    """
    from tf_dist.simulate.traces import TraceOptions

    names = _policies(policy)
    if faithful and "ours" not in names:
        raise _wrong("--faithful: jobs are reconciled only under the policy ours", "add --policy ours")
    requested = TraceOptions(jobs=jobs, nodes=nodes, gpus=gpus, cpu=cpu, load=load)
    scenarios = [_scenario(trace, requested, seed + number, restart, checkpoint) for number in range(seeds)]
    results: dict[str, Figures] = {}
    drawn: dict[str, World] = {}
    for name in names:
        results[name], drawn[name] = _compare(_maker(name, faithful=faithful), scenarios, record=bool(html))
    if html:
        _write(html, scenarios[0], seeds, results, drawn)
    if form is options.DataFormat.TABLE:
        output.line(_about(scenarios[0], seeds))
        output.line()
        titles, rows = _table(results)
        output.table(titles, rows)
    else:
        output.data(form.value, _report(scenarios[0], seeds, results))


def _policies(wanted: list[str] | None) -> list[str]:
    from tf_dist.core.model.fieldpath import suggestion
    from tf_dist.simulate.policies import POLICIES

    for name in wanted or ():
        if name not in POLICIES:
            hint = suggestion(name, POLICIES, f"there are: {', '.join(POLICIES)}")
            raise _wrong(f"--policy: there is no policy {name!r}", hint)
    return list(dict.fromkeys(wanted or ("default+timeout", "gang+locality", "dragon", "easy", "ours")))


def _wrong(message: str, hint: str) -> Exception:
    from tf_dist.errors import InvalidJob, Problem

    return InvalidJob([Problem("", message, hint)])


def _scenario(
    trace: str, options: TraceOptions, seed: int, restart: float | None, checkpoint: float | None
) -> Scenario:
    from dataclasses import replace

    from tf_dist.simulate.trace_files import KINDS, load
    from tf_dist.simulate.traces import TRACES

    options = replace(options, seed=seed)
    if trace in TRACES:
        found = TRACES[trace](options)
    elif trace.endswith(KINDS):
        found = load(Path(trace), options)
    else:
        hint = f"there are: {', '.join(TRACES)}; a file ends in {', '.join(KINDS)}"
        raise _wrong(f"--trace: there is no trace {trace!r}", hint)
    if checkpoint is not None:
        found = replace(found, jobs=tuple(replace(job, checkpoint=job.checkpoint or checkpoint) for job in found.jobs))
    return found if restart is None else replace(found, speed=replace(found.speed, restart=restart))


def _maker(name: str, *, faithful: bool) -> Callable[[Scenario], Policy]:
    from tf_dist.simulate import policies

    return policies.faithful if faithful and name == "ours" else policies.POLICIES[name]


def _compare(make: Callable[[Scenario], Policy], scenarios: list[Scenario], *, record: bool) -> tuple[Figures, World]:
    """The mean figures of all seeds, and the world of the first seed. Only the first world is recorded."""
    from tf_dist.simulate.engine import simulate as run
    from tf_dist.simulate.metrics import averaged, figures

    worlds = (run(s, make(s), record=record and n == 0) for n, s in enumerate(scenarios))
    first = next(worlds)
    return averaged([figures(first), *(figures(world) for world in worlds)]), first


def _about(scenario: Scenario, seeds: int) -> str:
    from tf_dist.core.model.wording import counted

    cluster, jobs = scenario.cluster, counted(len(scenario.jobs), "job")
    gpus = f"{cluster.gpus} GPUs and " if cluster.gpus else ""
    times = f", {seeds} seeds" if seeds > 1 else ""
    return f"{scenario.name}: {jobs} on {cluster.nodes} × ({gpus}{cluster.cpu} cpu){times}"


def _table(results: dict[str, Figures]) -> tuple[list[str], list[list[str]]]:
    """Titles and rows for people."""
    titles = ["POLICY", "ELAPSED", "P50", "P95", "MAX", "WAIT", "P50", "P95", "MAX", "SLOWDOWN", "USED", "WORKING"]
    titles += ["DONE", "IDLE-H", "LOST-H", "GOODPUT", "STUCK", "RESTARTS", "RESIZES"]
    return titles, [[name, *_cells(found)] for name, found in results.items()]


def _cells(found: Figures) -> list[str]:
    times = (found.elapsed_mean, found.elapsed_p50, found.elapsed_p95, found.elapsed_max)
    waits = (found.wait_mean, found.wait_p50, found.wait_p95, found.wait_max)
    shares = (found.utilisation, found.productive, found.done)
    return [
        *(_time(value) for value in (*times, *waits)),
        f"{found.slowdown:.2f}",
        *(f"{100 * share:.1f}%" for share in shares),
        f"{found.idle_hours:.0f}",
        f"{found.lost_hours:.1f}",
        f"{100 * found.goodput:.1f}%",
        *(f"{count:.0f}" for count in (found.stuck, found.restarts, found.resizes)),
    ]


def _time(seconds: float) -> str:
    for size, name in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}{name}"
    return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"


def _report(scenario: Scenario, seeds: int, results: dict[str, Figures]) -> dict[str, Any]:
    cluster = {"nodes": scenario.cluster.nodes, "gpus": scenario.cluster.gpus, "cpu": scenario.cluster.cpu}
    about = {"trace": scenario.name, "jobs": len(scenario.jobs), "seeds": seeds, "firstSeed": scenario.seed}
    policies = {name: {k: round(v, 4) for k, v in asdict(found).items()} for name, found in results.items()}
    return {**about, "cluster": cluster, "policies": policies}


def _write(name: str, scenario: Scenario, seeds: int, results: dict[str, Figures], worlds: dict[str, World]) -> None:
    from tf_dist.simulate.html_report import page

    titles, rows = _table(results)
    text = page(f"tf-dist simulate: {scenario.name}", _about(scenario, seeds), titles, rows, worlds)
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"--html: {name} cannot be written: {error.strerror}"
        raise _wrong(message, "give a file in an existing folder") from error
