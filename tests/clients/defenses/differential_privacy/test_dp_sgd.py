import pytest
import torch
from torch import nn

from clients.chain import ChainedDefense
from clients.config import TrainingConfig
from clients.defenses import DEFENSES, DefenseContext
from clients.defenses.base import DefenseEnvironment, ObservedUpdate
from clients.defenses.guarantee import LARGEST_ORDER, smallest_epsilon
from clients.training import FedProx, train
from tests.clients.defenses.parts import config, context, make


def linear_data():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    return model, torch.randn(8, 1, 2, 2), torch.arange(8) % 3


@pytest.mark.parametrize("proximal", [0.0, 1.5])
def test_dp_sgd_without_noise_and_with_a_wide_bound_is_sgd(proximal):
    model, images, targets = linear_data()
    plain, private = (nn.Sequential(nn.Flatten(), nn.Linear(4, 3)) for _ in range(2))
    for copy in (plain, private):
        copy.load_state_dict(model.state_dict())
    training = TrainingConfig(steps=5, learning_rate=0.5)
    train(plain, images, targets, training, torch.Generator().manual_seed(0), [FedProx(proximal)])
    defense = make("dp_sgd", noise_multiplier=1e-9, max_grad_norm=100.0)
    chain = [ChainedDefense(defense, context(model=private, steps=5, epochs=None, batch_size=None))]
    train(private, images, targets, training, torch.Generator().manual_seed(0), [FedProx(proximal), *chain])
    torch.testing.assert_close(private[1].weight, plain[1].weight, rtol=1e-4, atol=1e-5)


def test_dp_sgd_draws_its_noise_on_the_cpu_as_opacus_does_there():
    from opacus.optimizers import DPOptimizer

    from clients.defenses.differential_privacy.dp_optimizer import SeededDPOptimizer

    def step(kind, device):
        parameters = [nn.Parameter(torch.zeros(shape, device=device)) for shape in ((3, 4), (5,))]
        generator = torch.Generator().manual_seed(3)
        inner = torch.optim.SGD(parameters, lr=1.0)
        options = {"noise_multiplier": 1.3, "max_grad_norm": 0.7, "expected_batch_size": 2, "generator": generator}
        optimizer = kind(inner, **options)
        for parameter in parameters:
            parameter.grad_sample = torch.ones((2, *parameter.shape), device=device)
        optimizer.step()
        return parameters, generator.get_state()

    (theirs, drawn), (ours, _) = step(DPOptimizer, "cpu"), step(SeededDPOptimizer, "cpu")
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    elsewhere, used = step(SeededDPOptimizer, "meta")  # a device that draws nothing itself
    assert torch.equal(used, drawn) and all(parameter.grad.device.type == "meta" for parameter in elsewhere)


def test_dp_sgd_clips_the_gradient_of_each_image():
    model, images, targets = linear_data()
    before = torch.cat([value.detach().flatten() for value in model.state_dict().values()])
    total = torch.zeros_like(before)
    for i in range(8):
        loss = nn.functional.cross_entropy(model(images[i : i + 1]), targets[i : i + 1])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        total += gradient * min(1.0, 0.1 / float(gradient.norm()))
    defense = make("dp_sgd", noise_multiplier=1e-9, max_grad_norm=0.1)
    chain = [ChainedDefense(defense, context(model=model, steps=1, epochs=None, batch_size=None))]
    train(model, images, targets, TrainingConfig(steps=1, learning_rate=1.0), torch.Generator(), hooks=chain)
    after = torch.cat([value.detach().flatten() for value in model.state_dict().values()])
    torch.testing.assert_close(before - after, total / 8, rtol=1e-4, atol=1e-6)


def test_epsilon_is_that_of_opacus_and_adds_up_over_rounds():
    from opacus.accountants import RDPAccountant

    defense, memory = make("dp_sgd", noise_multiplier=1.3), {}
    spent = [
        defense.privacy_spent(context(memory=memory, round=i, batch_size=4), steps=4, count=8).epsilon for i in (1, 2)
    ]
    accountant = RDPAccountant()
    expected = []
    for _ in range(2):
        for _ in range(4):
            accountant.step(noise_multiplier=1.3, sample_rate=0.5)
        expected.append(accountant.get_epsilon(1e-5))
    assert spent == pytest.approx(expected) and spent[1] > spent[0]
    assert memory["history"] == [(1.3, 0.5, 8)]  # alike steps are one entry, as in an accountant


def test_a_target_epsilon_is_spent_over_all_rounds():
    defense, memory = make("dp_sgd", epsilon=8.0), {}
    where = [DefenseContext(config(rounds=3, epochs=2, batch_size=4), i, 0, nn.Linear(4, 2), memory) for i in (1, 2, 3)]
    spent = [defense.privacy_spent(place, steps=4, count=8).epsilon for place in where]
    assert spent == sorted(spent) and 7.8 < spent[-1] <= 8.0


def test_the_smallest_epsilon_is_what_opacus_says_of_overwhelming_noise():
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    assert max(accountant.DEFAULT_ALPHAS) == LARGEST_ORDER
    accountant.history = [(1e4, 0.5, 1)]
    with pytest.warns(UserWarning, match="largest alpha"):
        told = accountant.get_epsilon(1e-5)
    assert smallest_epsilon(1e-5) == pytest.approx(told + 0.01, abs=1e-3)


def test_an_empty_poisson_batch_takes_a_step_of_noise():
    model, images, targets = linear_data()
    before = model[1].weight.detach().clone()
    defense = make("dp_sgd", noise_multiplier=1.0)
    chain = [ChainedDefense(defense, context(model=model, steps=40, epochs=None, batch_size=1))]
    report = train(
        model, images, targets, TrainingConfig(steps=40, batch_size=1), torch.Generator().manual_seed(0), hooks=chain
    )
    assert report.steps == 40 and torch.isfinite(model[1].weight).all() and not torch.equal(model[1].weight, before)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.3)])
def test_the_noise_that_is_told_is_that_of_an_update_that_is_noise_alone(momentum, decay):
    """Images of zeros and no bias: no gradient, so that all of the update is noise; parameters start at zero."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3000, 3, bias=False))
    nn.init.zeros_(model[1].weight)
    training = {"learning_rate": 0.2, "momentum": momentum, "weight_decay": decay, "steps": 5, "epochs": None}
    where = context(model=model, **training)
    defense = make("dp_sgd", noise_multiplier=1.5, max_grad_norm=2.0)
    images, targets = torch.zeros(8, 1, 1, 3000), torch.arange(8) % 3
    train(
        model,
        images,
        targets,
        where.config.training,
        torch.Generator().manual_seed(0),
        [ChainedDefense(defense, where)],
    )
    told = defense.noise_told(ObservedUpdate(where.config, "server", (8,), (1.0,)))
    assert float(model[1].weight.detach().std()) == pytest.approx(told, rel=0.03)


def test_in_a_mean_the_noise_of_clients_averages_out():
    where, defense = context(), make("dp_sgd", noise_multiplier=1.0)
    alone = defense.noise_told(ObservedUpdate(where.config, "server", (8,), (1.0,)))
    four = defense.noise_told(ObservedUpdate(where.config, "observer", (8,) * 4, (0.25,) * 4))
    assert four == pytest.approx(alone / 2)
    assert defense.noise_told(ObservedUpdate(context(optimizer="adam").config, "server", (8,), (1.0,))) is None


@pytest.mark.parametrize("other", sorted(name for name, defense in DEFENSES.items() if defense.mixes_images))
@pytest.mark.parametrize("first", [True, False])
def test_dp_sgd_on_what_depends_on_several_images_is_a_conflict(other, first):
    defense = make("dp_sgd")
    chain = (defense, make(other)) if first else (make(other), defense)
    assert f"{other} and dp_sgd exclude each other" in defense.conflict(DefenseEnvironment(chain, TrainingConfig()))


def test_dp_sgd_with_data_dependent_stopping_is_a_conflict():
    defense = make("dp_sgd")
    assert "stop_at_loss" in defense.conflict(DefenseEnvironment((defense,), TrainingConfig(stop_at_loss=0.1)))
    assert defense.conflict(DefenseEnvironment((make("clipping"), defense), TrainingConfig())) == ""


def test_what_derives_images_from_all_of_them_says_so():
    assert {name for name, defense in DEFENSES.items() if defense.mixes_images} >= {
        *("kip", "rkip", "rkip_finite", "mixup", "prune_easiest"),
    }
