"""`fedspill distill`: a few synthetic images in the place of many."""

from clients.distillation import DistillOptions
from simulator.cli.commands import DistillCommand
from simulator.cli.output import CommandResult, say
from simulator.results.disk import check_out
from simulator.run.display import step_bar
from simulator.tools.distillation import Owner, accuracy_lines, distill_scenario, run_distillation


def distill(typed: DistillCommand) -> CommandResult:
    check_out(typed.out_dir)
    owner = Owner.of(distill_scenario(typed.overrides, typed.train, typed.seed))
    kernel = owner.kernel_named(typed.kernel)
    options = DistillOptions(method=typed.method, iterations=typed.iterations, kernel=kernel)
    with step_bar() as report:
        facts = run_distillation(owner, options, typed.size, typed.out_dir, report, max_steps=typed.standard_steps)
    for line in accuracy_lines(facts):
        say(line)
    say(f"written: {typed.out_dir / 'distill.json'}")
    return CommandResult(facts)
