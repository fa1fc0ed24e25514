import torch

from attacks.span.maps.search import smallest_eigenvectors


def test_the_smallest_eigenvectors_of_a_matrix_that_is_never_formed():
    generator = torch.Generator().manual_seed(0)
    values = torch.cat([torch.tensor([0.0, 1e-6, 2e-4]), torch.linspace(0.02, 4, 97)]).double()
    turned = torch.linalg.qr(torch.randn(100, 100, generator=generator).double())[0]
    found, rows = smallest_eigenvectors(
        lambda x: (x @ turned * values) @ turned.T, torch.randn(3, 100, generator=generator).double(), 4.0, cut=0.005
    )
    assert torch.allclose(found, values[:3], atol=1e-6)
    assert torch.allclose((rows @ turned[:, :3]).square().sum(0), torch.ones(3).double(), atol=1e-4)
