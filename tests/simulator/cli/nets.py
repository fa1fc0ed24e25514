"""Networks that tests of the commands attack, as a file of the user's own has them."""

FACTORY = """
import torch
import torch.nn as nn
def make(outputs=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, outputs))
def empty():
    return nn.Flatten()
def broken():
    raise KeyError("no such net")
def misused():
    return nn.Linear("a", 10)
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make()
    def forward(self, x):
        return {"scores": self.net(x)}
def conv():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
def number():
    return nn.Sequential(make(1), nn.Flatten(0))
def three():
    return make(3)
class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
    def forward(self, x):
        return x.flatten(1) * self.scale
def bare():
    return Bare()
"""
