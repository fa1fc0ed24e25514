"""One reader for whatever checkpoints people have: each is the network's state dict in the end, or a clear line."""

import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from attacks import InputError
from clients.models.checkpoint import read_checkpoint


class Net(nn.Module):
    """A convolution, a BatchNorm with its three statistics, and a linear layer: nine tensors, six parameters."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(8, 3)


@pytest.fixture
def state():
    torch.manual_seed(0)
    net = Net()
    net.norm.running_mean += torch.tensor([1.0, 2.0])
    return net.state_dict()


def prefixed(state, prefix):
    return {f"{prefix}{name}": value for name, value in state.items()}


PYTORCH = {
    "a state dict": lambda state: state,
    "nested: state_dict": lambda state: {"epoch": 3, "state_dict": state, "optimizer": {"state": {}}},
    "nested: model_state_dict": lambda state: {"model_state_dict": state, "loss": torch.zeros(())},
    "nested: model": lambda state: {"model": state},
    "nested twice": lambda state: {"model": {"state_dict": state}},
    "DataParallel": lambda state: prefixed(state, "module."),
    "torch.compile": lambda state: prefixed(state, "_orig_mod."),
    "both, nested": lambda state: {"model_state_dict": prefixed(state, "module._orig_mod.")},
    "a compiled part": lambda state: {n.replace("conv.", "conv._orig_mod."): value for n, value in state.items()},
    "Lightning": lambda state: {"state_dict": prefixed(state, "model."), "hyper_parameters": {"lr": 0.1}},
    "Lightning, a loss with weights": lambda state: {
        "state_dict": {"loss.weight": torch.ones(10), **prefixed(state, "model.")}
    },
    "a list of tensors": lambda state: list(state.values()),
    "beside other things": lambda state: {**state, "epoch": 3},
}


def assert_same(read, state):
    assert set(read) >= set(state)
    assert all(torch.equal(read[name], value) for name, value in state.items())


@pytest.mark.parametrize("form", PYTORCH)
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_what_torch_saves(tmp_path, state, form, zipped):
    path = tmp_path / "a.bin"  # its name says nothing
    torch.save(PYTORCH[form](state), path, _use_new_zipfile_serialization=zipped)
    assert_same(read_checkpoint(path, like=Net().state_dict()), state)


def test_without_a_model_wrappers_are_taken_off_all_the_same(tmp_path, state):
    torch.save(PYTORCH["both, nested"](state), tmp_path / "a.pt")
    assert_same(read_checkpoint(tmp_path / "a.pt"), state)


def test_files_of_peft_leave_out_the_name_of_the_adapter(tmp_path):
    names = ["base_model.model.1.lora_A.default.weight", "base_model.model.3.modules_to_save.default.bias"]
    like = {name: torch.zeros(2) for name in [*names, "base_model.model.1.base_layer.weight"]}
    saved = {"base_model.model.1.lora_A.weight": torch.ones(2), "base_model.model.3.bias": torch.full((2,), 3.0)}
    save_file(saved, tmp_path / "adapter_model.safetensors")
    np.savez(tmp_path / "list.npz", *(value.numpy() for value in saved.values()))
    for file in ("adapter_model.safetensors", "list.npz"):
        read = read_checkpoint(tmp_path / file, like=like)
        assert_same(read, dict(zip(names, saved.values(), strict=True)))
        assert len(read) == 2


def test_a_model_that_has_a_module_of_that_name_keeps_it(tmp_path, state):
    own = prefixed(state, "module.")
    for form in (own, prefixed(own, "_orig_mod.")):
        torch.save(form, tmp_path / "a.pt")
        assert_same(read_checkpoint(tmp_path / "a.pt", like=own), own)


def test_safetensors_under_any_name(tmp_path, state):
    save_file(prefixed(state, "module."), tmp_path / "a.pt")
    assert_same(read_checkpoint(tmp_path / "a.pt", like=Net().state_dict()), state)


def test_arrays_by_name_and_in_order(tmp_path, state):
    arrays = {name: value.numpy() for name, value in state.items()}
    np.savez(tmp_path / "named.npz", **arrays)
    np.savez_compressed(tmp_path / "listed.npz", *arrays.values())
    save_file({str(i): value for i, value in enumerate(state.values())}, tmp_path / "flower.safetensors")
    for name in ("named.npz", "listed.npz", "flower.safetensors"):
        read = read_checkpoint(tmp_path / name, like=Net().state_dict())
        assert_same(read, state)
    assert list(read_checkpoint(tmp_path / "listed.npz")) == [str(i) for i in range(9)]


def test_a_list_without_the_batchnorm_that_clients_keep(tmp_path, state):
    shared = {name: value for name, value in state.items() if "norm" not in name}  # as in FedBN
    np.savez(tmp_path / "shared.npz", *[value.numpy() for value in shared.values()])
    read = read_checkpoint(tmp_path / "shared.npz", state)
    assert read.keys() == shared.keys()
    assert_same(read, shared)


def test_a_list_of_parameters_alone(tmp_path, state):
    parameters = dict(Net().named_parameters())
    np.savez(tmp_path / "a.npz", *(state[name].numpy() for name in parameters))
    read = read_checkpoint(tmp_path / "a.npz", like=Net().state_dict())
    assert list(read) == list(parameters) and torch.equal(read["fc.weight"], state["fc.weight"])


def test_twelve_arrays_are_in_the_order_of_their_numbers(tmp_path):
    values = [np.full(2, float(i)) for i in range(12)]
    np.savez(tmp_path / "a.npz", *values)
    like = {f"layer{i}": torch.zeros(2) for i in range(12)}
    assert [float(value[0]) for value in read_checkpoint(tmp_path / "a.npz", like).values()] == list(range(12))


class Evil:
    def __reduce__(self):
        return (print, ("run",))


def of_torch(content):
    return lambda path: torch.save(content, path)


def of_bytes(content):
    return lambda path: path.write_bytes(content)


REFUSED = {
    "missing": (lambda path: None, "does not exist: give safetensors"),
    "a folder": (lambda path: path.mkdir(), "no safetensors file but a folder"),
    "empty": (of_bytes(b""), "no safetensors file, no PyTorch file and no npz file"),
    "text": (of_bytes(b"nonsense, more of it"), "no safetensors file, no PyTorch file and no npz file"),
    "one array": (lambda path: np.save(path.open("wb"), np.zeros(3)), "no npz file: give"),
    "the single byte 0x80": (of_bytes(b"\x80"), "damaged"),
    "a pickle cut short": (of_bytes(b"\x80\x02}q\x00"), "damaged"),
    "a zip cut short": (of_bytes(b"PK\x03\x04nothing"), "damaged"),
    "a header cut short": (of_bytes((99).to_bytes(8, "little") + b'{"a":'), "damaged"),
    "code in a pickle": (of_bytes(pickle.dumps({"weight": Evil()})), r"tensors alone.*model\.state_dict\(\)"),
    "a pickled list": (of_bytes(pickle.dumps([np.zeros(3)])), r"np\.savez\(file, \*arrays\)"),
    "a whole module": (of_torch(nn.Linear(2, 3)), r"tensors alone.*save model\.state_dict\(\)"),
    "objects in npz": (lambda path: np.savez(path.open("wb"), np.array([{}])), "cannot be read"),
    "no state dict": (of_torch({"epoch": 3, "lr": 0.1}), r"it has epoch, lr: save model\.state_dict\(\)"),
    "a number": (of_torch(3), "is no state dict but a int"),
    "too few arrays": (
        lambda path: np.savez(path.open("wb"), np.zeros(3)),
        r"a list of 1 arrays, the model has 9 .*; where clients keep layers, name a model of the others",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_names_the_remedy_in_one_line(tmp_path, case):
    make, says = REFUSED[case]
    path = tmp_path / "checkpoint"
    make(path)
    with pytest.raises(InputError, match=says) as caught:
        read_checkpoint(path, like=Net().state_dict(), called="model.checkpoint")
    text = str(caught.value)
    assert text.startswith(f"model.checkpoint {str(path)!r} ") and "\n" not in text and len(text) < 400 + len(str(path))


def test_any_byte_that_is_damaged_is_no_traceback(tmp_path, state):
    """Every 97th byte of a legacy file, the unpickler's opcodes among them: read, or refused."""
    torch.save(state, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "a.pt").read_bytes()
    for place in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        (tmp_path / "b.pt").write_bytes(damaged)
        try:
            read_checkpoint(tmp_path / "b.pt", like=state)
        except InputError as error:
            assert "b.pt" in str(error)
