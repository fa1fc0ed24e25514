import numpy as np
import torch
from skimage.data import lfw_subset

from tests.clients.data.data_sources import load


def test_faces_are_those_of_scikit_image():
    data = load("faces")
    assert len(data.train.labels) == 160 and len(data.test.labels) == 40
    assert data.class_names == ("other", "face")
    assert np.bincount(np.concatenate([data.train.labels, data.test.labels])).tolist() == [100, 100]
    images, labels = data.train.images(np.arange(160)), data.train.labels
    assert images.shape == (160, 1, 25, 25) and images.dtype == torch.float32
    published = torch.tensor(lfw_subset(), dtype=torch.float32).flatten(1)  # 100 faces, then 100 other crops
    distances, nearest = torch.cdist(images.flatten(1), published, compute_mode="donot_use_mm_for_euclid_dist").min(1)
    assert distances.max() == 0 and torch.equal(nearest < 100, torch.tensor(labels == 1))
