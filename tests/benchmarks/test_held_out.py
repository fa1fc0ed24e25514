"""What the two runs on held-out images count, on cases made by hand and on one small client."""

import numpy as np
import pytest
import torch

from attacks import Reconstruction
from attacks.span import thresholds
from attacks.span.evidence import pixel_evidence
from attacks.span.search.candidates import SearchOptions
from attacks.update import spectrum
from tests.benchmarks import sensitivity, strays, withstands
from tests.benchmarks.held_out import Tally, unused
from tests.benchmarks.sensitivity import Constant

GROUPS = {group for group in vars(thresholds).values() if isinstance(group, type) and group.__name__.isupper()}


def test_images_are_tallied_by_their_root_mean_square_error():
    private = torch.zeros(3, 1, 2, 2)
    private[1], private[2] = 1, 2
    returned = torch.stack([private[0] + 0.005, private[1] + 0.05, private[2] + 0.2])
    assert Tally.of(private, returned) == Tally(private=3, exact=1, recovered=2, strays=1)
    assert Tally.of(private, returned[:0]) == Tally(private=3)


def test_a_row_of_what_is_withstood_counts_private_images_strays_and_what_was_held_back():
    private = torch.tensor([0.0, 10.0, 20.0, 30.0]).view(4, 1, 1, 1)
    returned, held = torch.tensor([0.05, 10.7, 50.0]), torch.tensor([20.5, 33.0])
    found = Reconstruction(returned.view(3, 1, 1, 1), torch.zeros(3), num_inferred=4, held=held.view(2, 1, 1, 1))
    assert str(withstands.counted(private, found, 2.0, 7.4)) == "1 / 1 / 2 / 2 | 1 | 1 | 4 | 7"
    nothing = Reconstruction(returned.view(3, 1, 1, 1)[:0], torch.zeros(0), warnings=("no gap",))
    assert str(withstands.counted(private, nothing, 2.0, 0.0)) == "refused: no gap | 0 | 0 | None | 0"


def test_of_tiny_imagenet_the_last_fifth_of_each_class_is_held_out():
    labels = np.array([0, 1] * 10)
    assert unused(labels, "tiny_imagenet").tolist() == [16, 17, 18, 19]
    assert len(unused(labels, "mnist")) == 20


def test_bounds_are_those_of_clopper_and_pearson():
    assert strays.bound(0, 1000) == pytest.approx(1 - 0.05**1e-3)
    assert strays.bound(1, 1) == 1
    assert strays.bound(2, 100) == pytest.approx(0.061619, abs=1e-6)  # (2 of 100, one-sided, 95 %)


@pytest.mark.parametrize(
    ("group", "name", "halved", "doubled"),
    [
        (thresholds.EVIDENCE, "shared_images", 0.45, 0.99),
        (thresholds.EVIDENCE, "clear_gap", 0.75, 3.0),
        (thresholds.SEARCH, "idle_passes", 1, 4),
        (thresholds.DUAL, "start_shares", (0.25, 0.125, 0.0625), (1.0, 0.5, 0.25)),
        (SearchOptions, "starts", 150, 600),
    ],
)
def test_shares_stay_shares_and_counts_stay_counts(group, name, halved, doubled):
    constant = Constant(group, name)
    assert constant.scaled(0.5) == halved and constant.scaled(2) == doubled


def test_a_count_is_at_least_one():
    assert Constant(thresholds.DUAL, "trims").scaled(0.01) == 1


def test_a_constant_changes_wherever_it_was_imported_and_only_for_a_while():
    before = spectrum.ROUNDING
    with Constant(spectrum, "ROUNDING").set_to(0.5):
        assert (spectrum.ROUNDING, pixel_evidence.ROUNDING) == (0.5, 0.5)
    assert spectrum.ROUNDING == pixel_evidence.ROUNDING == before
    with pytest.raises(KeyError), Constant(thresholds.DECOY, "number").set_to(3):
        assert thresholds.DECOY.number == 3
        raise KeyError
    assert thresholds.DECOY.number == 1000


def test_every_group_takes_part_or_is_said_not_to():
    varied = {group for groups in sensitivity.KINDS.values() for group in groups}
    assert set(sensitivity.NOT_RUN) == GROUPS - varied
    for module in sensitivity.OF_MODULES:
        assert all(hasattr(module, constant.name) for constant in sensitivity.constants_in(module))


def test_a_line_for_a_client_and_for_an_update_of_noise(shared_data, capsys):
    source = strays.Source("mnist", shared_data, (4, 4), 64)
    strays.print_line("undefended", source, range(1))
    strays.print_line("noise", source, range(1))
    client, noise = (line.split(",") for line in capsys.readouterr().out.splitlines())
    names = ["kind", "data", *strays.Count(1).columns()]
    found = dict(zip(names, client, strict=True))
    assert (found["exact"], found["strays"], found["taken_for_members"]) == ("4", "0", "0")
    assert dict(zip(names, noise, strict=True))["returned"] == "0"


def test_what_halving_and_doubling_changes_is_marked(shared_data, capsys, monkeypatch):
    kind = sensitivity.Kind("few", 4, sensitivity.mlp(64))
    monkeypatch.setattr(sensitivity, "KINDS", {kind: (thresholds.ACCEPTANCE,)})
    chosen = ["ACCEPTANCE.few_sparse", "ACCEPTANCE.unexplained"]
    sensitivity.print_lines(kind, "mnist", shared_data, range(1), chosen)
    lines = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines[1:]] == chosen
    assert all(bool(line[-1]) == (len(set(line[-4:-1])) > 1) for line in lines[1:])


def test_what_matters_is_more_than_what_another_seed_changes():
    chance = [Tally(10, 5, 7, 0), Tally(10, 5, 7, 0), Tally(10, 6, 9, 0)]
    assert sensitivity.verdict([Tally(10, 5, 7, 0)], chance) == ""
    assert sensitivity.verdict([Tally(10, 4, 6, 0)], chance) == "changes"
    assert sensitivity.verdict([Tally(10, 3, 7, 0)], chance) == "matters"
    assert sensitivity.verdict([chance[0], Tally(10, 7, 9, 1)], chance) == "matters"
