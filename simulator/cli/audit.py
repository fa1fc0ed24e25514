"""`fedspill audit`: what does a recorded federation give away?"""

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.output import Answer, CandidateImages, FailAbove, PublicImages, ShowAll, command, here, say

DEFAULT_NAMES, THREAT_MODELS = ("span", "ntk"), ("server", "observer", "history")  # that --fail-above may name


@command
def audit(
    recording: Annotated[Path, typer.Argument(metavar="RECORDING", help="the folder that fedspill.Record wrote")],
    model: Annotated[str, typer.Option(metavar="FILE.py:FACTORY", help="returns the nn.Module of the federation")],
    shape: Annotated[str, typer.Option(metavar="C,H,W", help="of an input image: channels,height,width, e.g. 3,32,32")],
    mean: Annotated[
        str | None, typer.Option(metavar="M,…", help="that clients subtract, of each channel or of all, e.g. 0.1307")
    ] = None,
    std: Annotated[
        str | None, typer.Option(metavar="S,…", help="that clients divide by after that, e.g. 0.3081; default 1")
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="the private images, for scores: a folder with client_00.npz, … or one npz"),
    ] = None,
    public: PublicImages = None,
    candidates: CandidateImages = None,
    attacks: Annotated[
        list[str], typer.Option("--attack", metavar="NAME", help="may be repeated; default span and a short ntk")
    ] = [],
    know: Annotated[
        list[str],
        typer.Option(metavar="FIELD=VALUE", help="what the adversary is told, e.g. batch_size=5; false withholds it"),
    ] = [],
    out_dir: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="default: RECORDING-audit")] = None,
    rounds: Annotated[list[int], typer.Option("--round", help="of these rounds only; may be repeated")] = [],
    clients: Annotated[
        list[int], typer.Option("--client", help="of these clients only; may be repeated; -1 is all together")
    ] = [],
    threat_models: Annotated[
        list[str], typer.Option("--threat-model", help="server, observer or history; may be repeated; default all")
    ] = [],
    seed: Annotated[int, typer.Option(min=0, help="of every random number of the attacks")] = 0,
    timeout: Annotated[float, typer.Option(min=1, help="processor seconds that one attack may take")] = 600.0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="attacks at a time; default one per core, 1 does without Ray")
    ] = None,
    fail_above: FailAbove = [],
    show_all: ShowAll = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="do a finished audit again")] = False,
) -> Answer:
    """Attack what a server recorded: every round, client and threat model. No private image is needed; with --truth,
    what comes out is scored. Goes on where it stopped.

    Exit code 2: bad input; 3: no result at all; 4: above --fail-above; 5: some rows without a result.
    """
    from simulator.audit import run_audit
    from simulator.cli.finish import Shown, finish_run
    from simulator.reports.gate import parse_limits
    from simulator.reports.html_report import is_current
    from simulator.run.display import interruptible, run_display
    from simulator.tools.attack_pair import parse_fields, parse_numbers, parse_shape

    named = {*attacks, *DEFAULT_NAMES, *threat_models, *THREAT_MODELS, "none"}
    shown = Shown(show_all, parse_limits(fail_above, named))
    display = run_display()
    with interruptible(display):
        run = run_audit.audit(
            recording,
            model,
            parse_shape(shape),
            mean=parse_numbers("--mean", mean),
            std=parse_numbers("--std", std),
            truth=truth,
            public=public,
            candidates=candidates,
            attacks=attacks,
            know=parse_fields(know),
            out=out_dir,
            rounds=rounds,
            clients=clients,
            threat_models=threat_models,
            seed=seed,
            timeout=timeout,
            workers=workers,
            overwrite=overwrite,
            page=False,
            display=display,
        )
    finished = is_current(run.path)  # its tables are older than the page: nothing was attacked
    if finished:
        say(f"{here(run.path)} holds this audit already, finished; --overwrite does it again")
    return finish_run(run.path, figures=not finished, shown=shown)
