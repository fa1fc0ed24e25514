"""Whose file is whose: by name, by what updates tell, or not at all."""

import torch

from simulator.audit.owners import owners_by_name
from simulator.audit.recording import SeenClient
from simulator.evaluation.image_files import ImageFiles


def files(*names):
    return ImageFiles(names, (1,) * len(names), torch.zeros(len(names), 1, 2, 2), by_client=True)


def test_files_are_the_clients_who_say_their_number():
    clients = {0: SeenClient(node=17, name=2), 1: SeenClient(node=3, name="0"), 2: SeenClient(node=9, name=1)}
    assert owners_by_name(files("client_00", "client_01", "client_02"), clients) == {0: 2, 1: 0, 2: 1}
    named = {0: SeenClient(node=17, name="ward-b"), 1: SeenClient(node=3, name="ward-a")}
    assert owners_by_name(files("ward-a", "ward-b"), named) == {0: 1, 1: 0}


def test_who_has_no_name_or_no_file_leaves_it_to_the_updates():
    names = files("client_00", "client_01")
    assert owners_by_name(names, {0: SeenClient(node=17, name=0), 1: SeenClient(node=3)}) is None
    assert owners_by_name(names, {0: SeenClient(node=17, name=0), 1: SeenClient(node=3, name=7)}) is None
