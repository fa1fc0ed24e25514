import torch

from attacks.span.acceptance import Acceptance, ExplanationTest
from attacks.span.search.candidates import Candidates, decoys_of
from tests.attacks.conftest import digits
from tests.attacks.span.conftest import first_two


def test_nothing_found_is_said(federated):
    test, duals = first_two(federated[1])
    judged = ExplanationTest(Candidates.empty(duals, test), torch.ones(1, 256, 257))
    acceptance = judged.judge(duals.rows[:0, :-1], torch.Generator())
    assert "no candidate" in acceptance.reason and len(acceptance.images) == 0


def test_private_images_explain_the_second_layer_and_others_do_not(federated):
    images, observation, _ = federated
    test, duals = first_two(observation)
    delta = observation.delta()
    update = torch.cat([delta["3.weight"], delta["3.bias"][:, None]], 1).float()[None]
    judged = ExplanationTest(Candidates.empty(duals, test), update)
    assert judged.judge(images.flatten(1), torch.Generator().manual_seed(0)).reason is None
    others = judged.judge(digits(16)[8:].flatten(1), torch.Generator().manual_seed(0))
    assert others.reason.startswith("nothing returned: 8 candidates leave")
    left = judged.relative_residual(images.flatten(1))
    features = torch.linalg.qr(test.features(images.flatten(1)).T)[0].double()
    rest = update[0].double() - update[0].double() @ features @ features.T
    assert abs(left - float(rest.norm() / update.double().norm())) < 1e-4 and left < 0.2


def test_what_is_withheld_is_held_best_first():
    accepted = Acceptance(torch.tensor([[1.0], [2.0]]), torch.tensor([0.2, 0.1]), held=torch.tensor([[3.0]]))
    withheld = accepted.withheld("nothing returned: noise")
    assert withheld.images.shape == (0, 1) and len(withheld.residual) == 0
    assert withheld.held.tolist() == [[2.0], [1.0], [3.0]] and withheld.reason == "nothing returned: noise"


def test_decoys_of_a_single_image_have_its_pixels_in_another_order():
    image = torch.arange(6.0).view(1, 2, 3)
    decoys = decoys_of(image, 4, torch.Generator().manual_seed(0))
    partners = 2 * decoys - image
    assert decoys.shape == (4, 2, 3) and not torch.equal(decoys[0], decoys[1])
    assert (partners.flatten(1).sort(1).values == image.flatten()).all()
