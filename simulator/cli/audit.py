"""`fedspill audit`: what does a recorded federation give away?"""

import re
from inspect import signature

from simulator.audit import MINUTES
from simulator.audit.price import describe_rest
from simulator.audit.run_audit import audit as run_audit
from simulator.cli.commands import AuditCommand
from simulator.cli.finish import finish_run
from simulator.cli.inputs import parse_fields, parse_numbers, parse_owners, parse_shape
from simulator.cli.output import CommandResult, here, say
from simulator.reports.gate import parse_limits
from simulator.run.display import interruptible, run_display
from simulator.terminal import command_again

# that --fail-above may name
DEFAULT_NAMES, THREAT_MODELS = ("mean_image", "span", "ntk"), ("server", "observer", "history")


def audit(typed: AuditCommand) -> CommandResult:
    named = {*typed.attacks, *DEFAULT_NAMES, *typed.threat_models, *THREAT_MODELS, "none"}
    limits = parse_limits(typed.fail_above, named, scored=typed.truth is not None)
    until_done = typed.fail_above and typed.minutes is None  # a limit is about all rows
    minutes = 0.0 if until_done else MINUTES if typed.minutes is None else typed.minutes
    display = run_display()
    with interruptible(display):
        given = {name: value for name, value in vars(typed).items() if name in signature(run_audit).parameters}
        parsed = {
            "shape": parse_shape(typed.shape),
            "mean": parse_numbers("--mean", typed.mean),
            "std": parse_numbers("--std", typed.std),
            "owners": parse_owners(typed.owners),
            "know": parse_fields(typed.know),
        }
        given |= parsed | {"out": typed.out_dir, "minutes": minutes, "page": False, "display": display}
        run = run_audit(**given)
    from simulator.reports.page.pages import is_current  # Matplotlib: 0.5 s that an audit which is refused is spared

    finished = is_current(run.path)  # its tables are older than the page: nothing was attacked
    if finished:
        say(f"{here(run.path)} holds this audit already, finished; --overwrite does it again")
    result = finish_run(run.path, not finished, typed.show_all, limits)
    if rest := describe_rest(run.leakage, typed.workers):
        again = re.sub(r" --minutes[ =]\S+", "", command_again())
        say(f"{rest}. They go on with:\n  {again} --minutes 0")
    return result
