"""The commands for whoever writes a scenario: init, schema."""

from attacks.interface.errors import InputError
from simulator.cli.commands import InitCommand, SchemaCommand
from simulator.cli.output import CommandResult, say
from simulator.terminal import print_json

# what `init` writes: it runs as it is, with a comment on everything that one changes first
TEMPLATE = """\
# A federation, and who looks at what. What it costs: fedspill check FILE. Every key: docs/reference/scenarios.md.
name: mine # of the run directory
seed: 0

# Your images: a folder of class folders, an npz file, MNIST and its like, or a data set of the Hugging Face hub.
#   data: {name: folder, root: ~/pictures, public: 500, test: 500}
data: {name: digits, public: 500, test: 300} # 8x8 digits that come with scikit-learn

# How they are spread over clients: exact (so many each), iid, dirichlet (alpha), pathological (classes).
partition: {kind: exact, images: 8}

# Your network: a function that returns an nn.Module, in a file beside this one.
#   model: {name: "nets.py:make_net"}
#   model: {name: resnet18, checkpoint: weights.safetensors} # starts from weights of yours
model: {name: mlp, depth: 2, width: 256}

# What a client does with a checkpoint that it receives.
training: {loss: cross_entropy, optimizer: sgd, learning_rate: 0.05, epochs: 5} # batch_size: all, unless you say

# Any strategy of flwr.serverapp.strategy; its options: strategy: {name: FedAdam, options: {eta: 0.01}}
federation: {rounds: 2, clients: 3, fraction: 1.0, strategy: FedAvg}

# Defenses apply in this order; `fedspill list` names them all, `fedspill benchmark` compares them.
defenses: [] # for example [{name: clipping, norm: 1.0}, {name: noise, scale: 0.1}]

adversary:
  # server: each client's update; observer: the global model alone; history: all rounds so far
  threat_models: [server, observer]
  # in seconds: span, exact on plain networks; in minutes: ntk, on any differentiable network
  attacks:
    - span
    - {name: ntk, iterations: 1000}
  # what it is told beside checkpoints; the mean and the range of the pixels every participant knows
  knowledge: [] # for example [num_private], or {num_private: 8}: what it believes

# Everything can be swept; cells with the same seed share data, weights and schedule.
# sweep: {seed: [0, 1, 2], training.learning_rate: [0.01, 0.1]}
"""


def init(typed: InitCommand) -> CommandResult:
    file = typed.file
    if file is None:
        print(TEMPLATE, end="")
        return CommandResult({"scenario": TEMPLATE})
    if file.exists():
        raise InputError(f"{str(file)!r} exists: name another file")
    if not file.resolve().parent.is_dir():
        raise InputError(f"{str(file.parent)!r} is no folder: make it, or name another file")
    file.write_text(TEMPLATE, encoding="utf-8")
    say(f"written: {file}; next: fedspill check {file}")
    return CommandResult({"scenario": TEMPLATE, "file": str(file)})


def schema(typed: SchemaCommand) -> CommandResult:
    from simulator.scenario.json_schema import file_schema  # PyTorch: 2 s, which `init` does without

    found = file_schema()
    print_json(found)
    return CommandResult(found)
