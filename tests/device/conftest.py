"""With a card, what imitates one stays out: a backend of Python's beside CUDA breaks torch's autograd on CUDA."""

import torch

IMITATED = ["test_attacks.py", "test_card.py", "test_clients.py", "test_shares.py", "test_tools.py"]
collect_ignore = IMITATED if torch.cuda.is_available() else []
