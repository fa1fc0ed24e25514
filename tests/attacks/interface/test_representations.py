"""What the contract's objects say of themselves, in a terminal and in a notebook."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from skimage.io import imread
from torch import nn

from attacks import InputError, Knowledge, Observation, Reconstruction
from attacks.interface.normalization import Pictures, png
from tests.attacks.conftest import client, digits, mlp


def read(data):
    """A PNG file as another library reads it: (H, W, 3) from 0 to 255."""
    return imread(io.BytesIO(data))


def test_an_observation_says_what_was_seen_and_of_which_network():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.Linear(300, 10))
    model[1].bias.requires_grad_(False)
    state = model.state_dict()
    assert repr(Observation(model, ((state, state),), (1, 8, 8), round=3, client=2)) == (
        "Observation(1 pair of checkpoints of a Sequential with 22,210 trained parameters in 3 tensors, "
        "inputs 1 × 8 × 8; round 3, client 2, server)"
    )
    several = Observation(model, ((state, state),) * 2, (1, 8, 8), threat_model="observer")
    assert "2 pairs of checkpoints" in repr(several) and "all clients, observer" in repr(several)


def test_knowledge_says_what_is_known_alone():
    assert repr(Knowledge()) == "Knowledge()"
    told = Knowledge(num_private=20, optimizer="sgd", pixel_mean=(0.5,))
    assert repr(told) == "Knowledge(num_private=20, pixel_mean=(0.5,), optimizer='sgd')" and eval(repr(told)) == told
    assert repr(Knowledge(public_images=torch.zeros(7, 1, 2, 2))) == "Knowledge(public_images=<7 images>)"


def test_an_image_outside_the_range_of_pixels_is_shown_stretched():
    images = torch.tensor([[-1.0, 0.0, 1.0], [0.0, 0.5, 1.0]]).view(2, 1, 1, 3)
    assert [read(png(image))[0, :, 0].tolist() for image in images] == [[0, 128, 255]] * 2


def test_a_reconstruction_says_how_many_and_how_sure():
    found = Reconstruction(torch.zeros(2, 1, 8, 8), torch.tensor([1e-5, 0.25]), (0.5,), num_inferred=3, seconds=1.25)
    said = "2 images of 1 × 8 × 8, 3 private ones inferred, residuals 1e-05 to 0.25, 1.2 s"
    assert repr(found) == f"Reconstruction({said})"
    nothing = Reconstruction(torch.zeros(0, 1, 8, 8), torch.zeros(0), (0.5,), held=torch.zeros(1, 1, 8, 8))
    assert repr(nothing) == "Reconstruction(0 images of 1 × 8 × 8, 1 held back, 0.0 s)"
    assert nothing._repr_html_().count("<img") == 1


def test_a_notebook_sees_the_images_and_no_markup_of_others():
    images = torch.stack([torch.full((1, 4, 6), value) for value in (0.0, 0.25)])
    found = Reconstruction(images, torch.tensor([0.1, 0.2]), (0.5,), warnings=("a <script> & more",))
    page = found._repr_html_()
    assert "<script>" not in page and "a &lt;script&gt; &amp; more" in page
    pictures = [read(base64.b64decode(text)) for text in re.findall(r"base64,([^\"]+)", page)]
    assert [picture.shape for picture in pictures] == [(4, 6, 3)] * 2
    assert [int(picture[0, 0, 0]) for picture in pictures] == [128, 191]  # the mean 0.5 is added back
    assert found.show(most=1)._repr_html_().count("<img") == 1 and "1 more images" in found.show(most=1)._repr_html_()


def test_a_png_file_holds_the_pixels():
    image = torch.rand(3, 5, 7, generator=torch.Generator().manual_seed(0))
    expected = (image.permute(1, 2, 0) * 255).round().numpy().astype(np.uint8)
    assert np.array_equal(read(png(image)), expected)


def test_strips_are_saved_one_above_the_other(tmp_path):
    """Images of 8 × 8 are enlarged twelve times; two pixels of white between them; the shorter strip ends in white."""
    pictures = Pictures("two", (("a", torch.zeros(2, 1, 8, 8)), ("b", torch.full((1, 1, 8, 8), 0.5))))
    sheet = imread(pictures.save(tmp_path / "a.png"))
    assert sheet.shape == (2 * 98, 2 * 98, 3)
    assert [int(sheet[row, column, 0]) for row, column in ((0, 0), (97, 0), (98, 0), (98, 98))] == [0, 255, 128, 255]
    assert repr(pictures).startswith("Pictures('two': 2 a, 1 b;")
    assert imread(Pictures("none", ()).save(tmp_path / "b.png")).shape == (1, 1, 3)


def test_checkpoints_of_another_network_are_told_by_the_names_that_they_have():
    """A newcomer's case: "no tensor '1.weight'; did you mean 'fc1.weight'?", of which one is no slip of the other."""
    state = {"fc1.weight": torch.zeros(2, 2), "fc1.bias": torch.zeros(2)}
    with pytest.raises(
        InputError,
        match=r"has no tensor '0\.weight', but 'fc1\.weight', 'fc1\.bias': use the model .*where clients keep layers",
    ):
        Observation(nn.Sequential(nn.Linear(2, 2)), ((state, state),), (2,))


def test_a_pair_in_the_place_of_pairs_is_told_so():
    model = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"pairs=\(\(sent, returned\),\)"):
        Observation(model, (model.state_dict(), model.state_dict()), (1, 1, 2))


@pytest.mark.parametrize("form", ["difference", "gradient"])
def test_what_is_no_checkpoint_after_the_one_sent_is_refused(form):
    """Of a client that sends differences (DIFF of NVFLARE) or gradients every attack said "nothing shown"."""
    model, images = mlp(), digits(6)
    seen = client(model, images, 5)
    sent, back = seen.pairs[0]
    made = {
        "difference": {name: back[name] - sent[name] for name in sent},
        "gradient": {name: (sent[name] - back[name]) / 5 / 0.05 for name in sent},
    }
    with pytest.raises(InputError, match=r"times as long as the one sent and has -?0\.\d+ of it, as a difference or"):
        Observation(seen.model, ((sent, made[form]),), seen.input_shape)


def test_noise_weight_decay_and_parameters_that_begin_at_zero_are_no_difference():
    seen, generator = client(mlp(), digits(6), 5), torch.Generator().manual_seed(1)
    sent, back = seen.pairs[0]
    length = torch.cat([value.flatten() for value in back.values()]).square().mean().sqrt()
    noisy = {name: value + 10 * length * torch.randn(value.shape, generator=generator) for name, value in back.items()}
    shrunk = {name: 0.5 * value for name, value in back.items()}
    zeros = {name: torch.zeros_like(value) for name, value in sent.items()}
    for pair in ((sent, noisy), (sent, shrunk), (zeros, back)):
        Observation(seen.model, (pair,), seen.input_shape)
