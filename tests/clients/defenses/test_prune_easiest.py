import torch
from torch import nn

from clients.defenses import TrainingSet
from clients.defenses.training_data import duals
from tests.clients.defenses.parts import context, make


def test_pruned_images_are_those_with_the_largest_duals_of_kernel_regression():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 1, bias=False))
    images, targets = torch.randn(6, 1, 4, 4), torch.randn(6, 1)
    features = images.flatten(1).double()  # the tangent kernel of a linear model is the Gram matrix
    residual = targets.double() - features @ model[1].weight.double().T
    alpha = torch.linalg.solve(features @ features.T, residual)
    torch.testing.assert_close(duals(model, TrainingSet(images, targets)), alpha.detach(), rtol=1e-3, atol=1e-5)
    kept, said = make("prune_easiest", fraction=0.5).prepare_data(TrainingSet(images, targets), context(model=model))
    smallest = alpha[:, 0].abs().argsort()[:3].sort().values
    assert torch.equal(kept.inputs, images[smallest]) and said == {"pruned": 3}


def test_it_decides_once():
    torch.manual_seed(0)
    images, targets, memory = torch.randn(6, 1, 4, 4), torch.randn(6, 1), {}
    models = [nn.Sequential(nn.Flatten(), nn.Linear(16, 1)) for _ in range(4)]
    alone, kept = [], []
    for i, model in enumerate(models):
        defense, data = make("prune_easiest", fraction=0.5), TrainingSet(images, targets)
        alone.append(defense.prepare_data(data, context(model=model))[0].inputs)
        kept.append(defense.prepare_data(data, context(model=model, memory=memory, round=i + 1))[0].inputs)
    assert any(not torch.equal(alone[0], other) for other in alone)
    assert all(torch.equal(alone[0], other) for other in kept)
