# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Flower's quickstart, attacked
#
# An app of the shape that `flwr new` makes for PyTorch: a `task.py` with network and data, a `client_app.py`, a
# `server_app.py`. Two lines are added to the server. Then we look at what that server could have known. Two cores, two
# minutes, no download: the images are scikit-learn's 8×8 digits.
#
# ## The app

# %%
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import fedspill

folder = Path(tempfile.mkdtemp())

TASK = """
import torch
from sklearn.datasets import load_digits
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 256), nn.Linear(256, 256), nn.Linear(256, 10)

    def forward(self, x):
        return self.fc3(self.fc2(self.fc1(x.flatten(1)).relu()).relu())

def load_data(partition, size=10):
    digits = load_digits()
    mine = slice(partition * size, (partition + 1) * size)
    pixels = torch.tensor(digits.images[mine] / 16, dtype=torch.float32)[:, None]
    return (pixels - 0.3) / 0.4, torch.tensor(digits.target[mine])  # Normalize, as everybody does
"""

CLIENT_APP = """
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import Net, load_data

app = ClientApp()

@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = load_data(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):  # local epochs
        for batch in torch.randperm(len(images)).split(5):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(images)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
"""

SERVER_APP = """
import torch
from fedspill import Record  # the first line
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from task import Net

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=3)
    strategy = Record(strategy, "recorded")  # the second
    strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=1)
"""

for name, text in {"task": TASK, "client_app": CLIENT_APP, "server_app": SERVER_APP}.items():
    (folder / f"{name}.py").write_text(text)

# %% [markdown]
# Run as always, `flwr run .`; in a notebook Flower's simulation does the same without a server left behind:

# %%
FLOWER = """
import server_app, client_app
from flwr.simulation import run_simulation
run_simulation(server_app.app, client_app.app, num_supernodes=3)
"""


def python(code, *arguments):
    """What the code prints, in the app's folder."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "COLUMNS": "80"}
    plain = {"FORCE_COLOR": "", "CLICOLOR_FORCE": ""}  # a notebook says that it is a terminal
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, **quiet, **plain}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


python(FLOWER)
sorted(path.relative_to(folder / "recorded").as_posix() for path in (folder / "recorded").rglob("*.safetensors"))

# %% [markdown]
# Five files: what the server sent, what each client returned, and what the server made of it. That is all that any
# server of any federation sees.
#
# ## The audit
#
# An auditor has no private images. We have them, so we pass them as `--truth`, a file for each client: they reach the
# scores only. Whose file is whose the audit reads off the updates.

# %%
load_data = runpy.run_path(str(folder / "task.py"))["load_data"]
(folder / "private").mkdir()
for partition in range(3):
    np.savez(folder / "private" / f"client_{partition:02}.npz", images=load_data(partition)[0] * 0.4 + 0.3)

FEDSPILL = "import fedspill; fedspill.main()"
shape = ["--model", "task.py:Net", "--shape", "1,8,8", "--mean", "0.3", "--std", "0.4"]
said = python(FEDSPILL, "audit", "recorded", *shape, "--truth", "private", "--attack", "span", "--out", "audited")
print(said[:4000])

# %% [markdown]
# In a terminal:
#
#     fedspill audit recorded --model task.py:Net --shape 1,8,8 --mean 0.3 --std 0.4 --truth private
#
# `audited/report.html` is the page to mail. The table, and the pictures of one client, private above and stolen below:

# %%
run = fedspill.load(folder / "audited")
columns = ["client", "threat_model", "attack", "num_private", "recovered", "leakage"]
columns += ["floor_leakage", "mean_image_leakage", "seconds"]
run.leakage[columns].round(2)

# %%
os.chdir(folder)  # where the audit's options name files
run.show(10, client=0, threat_model="server")

# %% [markdown]
# ## And the quickstart's own network?
#
# `flwr new` gives you a small CNN with max pooling on CIFAR-10. While it is untrained, `span` finds the features that
# reach its linear layers, and no image of several: features behind max pooling do not determine the pixels. Once it
# is trained, the likeliest images that it holds are blurred ones ([figures](../explanation/convnets.html#figures)).
# Where none is held, that is not safety. The update may still tell *whether* an image was trained on, which for a
# medical data set is the secret itself: the column `membership_auc`, or `fedspill member`. And the network that you
# fine-tune next month may be a ResNet, whose feature maps do give images back.
#
# Go on: [audit your app](../howto/audit.html), [does my ε help?](does_my_epsilon_help.html).
