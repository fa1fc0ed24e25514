"""Code of the user's own, by its file: alone, with neighbours, and inside a package."""

import sys

import pytest

from attacks import InputError
from attacks.interface.plugins import load_object


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


@pytest.mark.parametrize(
    ("folder", "module"),
    [("", "size_alone"), ("app_two/", ".size")],  # beside a file alone; a folder without __init__ is a package too
)
def test_a_file_imports_the_files_beside_it(write, folder, module):
    task, size = f"{folder}task_alone.py", f"{folder}{module.removeprefix('.')}.py"
    root = write({task: f"from {module} import WIDTH\ndef make(): return WIDTH\n", size: "WIDTH = 7\n"})
    assert load_object(f"{root}/{task}:make", "model")() == 7


def test_a_file_of_a_package_imports_by_relative_and_by_full_names(write):
    imports = "from .size import WIDTH\nfrom ..root import DEPTH\nfrom app_one.root import DEPTH as D\n"
    folder = write({
        "app_one/__init__.py": "", "app_one/root.py": "DEPTH = 2\n",
        "app_one/sub/__init__.py": "", "app_one/sub/size.py": "WIDTH = 8\n",
        "app_one/sub/task.py": f"{imports}def make(): return WIDTH, DEPTH, D\n",
    })  # fmt: skip
    make = load_object(f"{folder}/app_one/sub/task.py:make", "model")
    assert make() == (8, 2, 2) and make.__module__ == "app_one.sub.task"


def test_what_cannot_be_imported_is_one_line_with_the_remedy(write):
    folder = write({
        "json/near.py": "from .size import WIDTH\n", "json/size.py": "WIDTH = 1\n",  # Python has a json of its own
        "app_three/far.py": "from ...nowhere import x\n", "lonely.py": "import no_such_package\n",
    })  # fmt: skip
    for file, says in (
        ("json/near", "rename its folder, or import its neighbours by their names"),
        ("app_three/far", "beyond top-level package"),
        ("lonely", "No module named 'no_such_package'; install it, or put its file beside this one"),
    ):
        with pytest.raises(InputError) as caught:
            load_object(f"{folder}/{file}.py:make", "model")
        assert says in str(caught.value) and "\n" not in str(caught.value)
