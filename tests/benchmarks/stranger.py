"""A stranger's Flower app, as Flower's quickstarts have it: it knows nothing of fedspill but one line of its server."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

app = ClientApp()


def net(width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch over 200 images of noise, in batches of 10."""
    torch.set_num_threads(1)
    state = message.content["arrays"].to_torch_state_dict()
    model = net(len(state["1.bias"]))
    model.load_state_dict(state)
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    images, labels = torch.rand(200, 1, 28, 28, generator=generator), torch.randint(0, 10, (200,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in torch.randperm(200, generator=generator).split(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(images)})}
    return Message(RecordDict(content), reply_to=message)
