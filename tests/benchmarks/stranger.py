"""A stranger's Flower app, as Flower's quickstarts have it: it knows nothing of fedspill but one line of its server."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

app = ClientApp()
IMAGES = 1000  # of a client: a quarter of what ten clients have in Flower's quickstart, CIFAR-10


def net(width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch over images of noise."""
    torch.set_num_threads(1)
    state = message.content["arrays"].to_torch_state_dict()
    model = net(len(state["1.bias"]))
    model.load_state_dict(state)
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    images = torch.rand(IMAGES, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 10, (IMAGES,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in torch.randperm(IMAGES, generator=generator).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(images)})}
    return Message(RecordDict(content), reply_to=message)
