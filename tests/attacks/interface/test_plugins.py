"""Code of the user's own, by its file: alone, with neighbours, and in a package."""

import sys

import pytest

from attacks import InputError
from attacks.interface.plugins import load_object
from attacks.library import ATTACKS


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes files below a folder of its own; what they add to this process is taken back."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def files(texts):
        for name, text in texts.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    yield files
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_file_imports_the_files_beside_it(write):
    nets = "from layers_alone import WIDTH\ndef make(): return WIDTH\n"
    folder = write({"nets_alone.py": nets, "layers_alone.py": "WIDTH = 7\n"})
    assert load_object(f"{folder}/nets_alone.py:make", "model")() == 7


def test_a_file_of_a_package_imports_by_full_names(write):
    imports = "from app_one.sub.size import WIDTH\nfrom app_one.root import DEPTH\n"
    folder = write({
        "app_one/__init__.py": "", "app_one/root.py": "DEPTH = 2\n",
        "app_one/sub/__init__.py": "", "app_one/sub/size.py": "WIDTH = 8\n",
        "app_one/sub/task.py": f"{imports}def make(): return WIDTH, DEPTH\n",
    })  # fmt: skip
    assert load_object(f"{folder}/app_one/sub/task.py:make", "model")() == (8, 2)


def test_what_cannot_be_imported_is_one_line_with_the_remedy(write):
    folder = write({
        "app_two/near.py": "from .size import WIDTH\n", "app_two/size.py": "WIDTH = 1\n",
        "lonely.py": "import no_such_package\n",
    })  # fmt: skip
    for file, says in (
        ("app_two/near", "attempted relative import with no known parent package; name it package.module:NAME"),
        ("lonely", "No module named 'no_such_package'; install it, or put its file beside this one"),
    ):
        with pytest.raises(InputError) as caught:
            load_object(f"{folder}/{file}.py:make", "model")
        assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_name_that_another_class_has_is_refused(write):
    """Else rows of the built-in attack would be of this one, in the processes that have loaded it."""
    text = "from attacks.base import register\n@register\nclass Mine:\n    name = 'span'\n"
    folder, before = write({"clash.py": text}), ATTACKS.find("span")
    with pytest.raises(InputError, match=r"Mine: the name 'span' is that of attacks.*: choose another"):
        load_object(f"{folder}/clash.py:Mine", "attack")
    assert ATTACKS["span"] is before


def test_a_class_without_a_name_is_told_how_to_get_one(write):
    text = "from attacks.base import register\n@register\nclass Mine:\n    pass\n"
    with pytest.raises(InputError, match=r"^attack Mine has no `name`: write name: ClassVar"):
        load_object(f"{write({'nameless.py': text})}/nameless.py:Mine", "attack")


def test_a_file_that_is_read_again_keeps_its_name(write):
    folder = write({"again.py": "from attacks import register\n@register\nclass Mine:\n    name = 'read_again'\n"})
    try:
        for _ in range(2):
            load_object(f"{folder}/again.py:Mine", "attack")
    finally:
        del ATTACKS["read_again"]
