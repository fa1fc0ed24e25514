"""`fedspill paper`: the experiments of the papers, measured anew."""

from dataclasses import asdict

from attacks.interface.errors import InputError
from simulator.cli.commands import PaperCommand
from simulator.cli.output import CommandResult, out, say
from simulator.paper.command import claims_table, prices, run_experiment
from simulator.paper.records import check_records, titles


def paper(typed: PaperCommand) -> CommandResult:
    if typed.names:
        for name, title in titles().items():
            say(f"{name:<18}{title}")
        return CommandResult({"experiments": titles()})
    if typed.records is not None:
        found, wrong = check_records(typed.records, titles())
        out.print(claims_table([claim for claims in found.values() for claim in claims]))
        return CommandResult({name: [asdict(claim) for claim in claims] for name, claims in found.items()}, wrong)
    figure, folder = typed.figure, typed.out_dir
    if figure is not None and typed.price:
        costs = {}
        for profile, price in prices(figure, typed.overrides):
            out.print(f"{profile:<11}{price}")
            costs[profile] = price
        return CommandResult({"prices": costs})
    if figure is None or folder is None:
        raise InputError("fedspill paper FIGURE --out DIR measures an experiment, fedspill paper --list names them")
    claims = run_experiment(
        figure, typed.profile, typed.overrides, folder, out, sheet=typed.sheet, verbose=typed.verbose
    )
    files = ["data.csv", "claims.json", "figure.png"] + ["sheet.png"] * typed.sheet
    say(f"written: {folder}: {', '.join(files)}")
    return CommandResult(
        {"claims": [asdict(claim) for claim in claims], "files": [str(folder / name) for name in files]}
    )
