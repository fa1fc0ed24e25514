# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Does my ε help?
#
# A client that trains with DP-SGD gets an ε. The smaller the ε, the less an update can tell; from which ε on do images
# stop coming back, and what does it cost? Everything here runs in about a minute on two cores, on 8×8 digits, with
# nothing downloaded.
#
# ## The scenario
#
# Three clients of eight digits, one round, and the exact attack `span`, once told nothing and once (`adaptive`) told
# the noise. The sweep is over the client's ε.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import fedspill

SCENARIO = """
name: epsilon
data: {name: digits, public: 200, test: 300}
partition: {kind: exact, images: 8}
model: {name: mlp, depth: 2, width: 256}
training: {loss: cross_entropy, learning_rate: 0.1, epochs: 3, batch_size: 4}
federation: {rounds: 1, clients: 3}
adversary:
  attacks: [{name: span, starts: 100, rounds: 3}, {name: span, starts: 100, rounds: 3, adaptive: true}]
output: {diagnostics: false, figures: false}
sweep:
  defenses:
    - []
    - [{name: dp_sgd, epsilon: 10000, label: epsilon_10000}]
    - [{name: dp_sgd, epsilon: 300, label: epsilon_300}]
    - [{name: dp_sgd, epsilon: 8, label: epsilon_8}]
"""

# %%
folder = Path(tempfile.mkdtemp())
(folder / "epsilon.yaml").write_text(SCENARIO)
command = "import fedspill; fedspill.main()"
arguments = ["run", str(folder / "epsilon.yaml"), "--out", str(folder / "run")]
done = subprocess.run([sys.executable, "-c", command, *arguments], capture_output=True, text=True)
assert done.returncode == 0, done.stderr

# %% [markdown]
# In a terminal this is `fedspill run epsilon.yaml`. The table is a pandas DataFrame, one row for each client and
# attack:

# %%
run = fedspill.load(folder / "run")
leakage = run.leakage.assign(told=lambda rows: rows.attack.map({"span": "nothing", "span-adaptive": "the noise"}))
leakage["epsilon"] = leakage.epsilon.astype(float).fillna(float("inf")).round()
scores = leakage.groupby(["epsilon", "told"])[["recovered_fraction", "held_fraction", "floor_recovered_fraction"]]
scores.mean().round(2).sort_index(ascending=False)

# %% [markdown]
# How to read it:
#
# - *recovered* is what the attack returned, sure of it. *held* adds what it found without being sure: noise
#   makes an attack unsure before it makes it wrong. Whoever looks at the pictures recognizes them all the same, so
#   **held is the column to judge a defense by**.
# - The floor is what an attacker gets who never saw the update. Without a defense there is no noise to be told of.
#
# ## What it costs

# %%
found = leakage.groupby(["defense", "epsilon", "told"]).held_fraction.mean().groupby(["defense", "epsilon"]).max()
accuracy = run.utility.sort_values("round").groupby("defense").test_accuracy.last()
shown = found.reset_index().join(accuracy, on="defense").sort_values("epsilon")
labels = ["no defense" if value == float("inf") else f"ε = {value:.0f}" for value in shown.epsilon]

figure, axis = plt.subplots(figsize=(6, 3))
axis.plot(labels, shown.held_fraction, "o-", label="private images found (held)")
axis.plot(labels, shown.test_accuracy, "s--", label="test accuracy after the round")
axis.set_ylim(-0.05, 1.05)
axis.legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# ## And what does it not say?
#
# - **An ε of ten thousand all but blinds this attack, and guarantees nothing.** The noise that it takes to confuse one
#   exact attack is far less than the noise that it takes to prove something. That the attack of today fails is a
#   measurement; the ε is the promise about those of tomorrow. A good document has both.
# - One round, one seed, one attack. Rounds add up: the column `epsilon` of a longer run grows.
# - The ε is of one image, against everybody who sees the update. That of `central_dp` is none against the server.
# - One round from random weights teaches a network little, with or without a defense. For a comparison that costs what
#   training costs, run `fedspill benchmark scenarios/defenses.yaml`.
#
# [What an ε means](../explanation/privacy.html) says against whom each defense's ε is one, and
# [choose a defense](../howto/defense.html) how to go on.
