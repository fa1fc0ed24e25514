"""Parts by name: our own, those that an installed package offers as entry points, and those at an import path."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import torch

from attacks.interface.code_trust import require_allowed
from attacks.interface.errors import InputError, nearest

Part = TypeVar("Part")
HOME = Path(__file__).resolve().parents[2]


class Registry(dict[str, Part]):
    """Parts of one kind by name. Those of others are loaded when they are first asked for, in every process."""

    def __init__(self, kind: str, group: str, accept: Callable[[object], Part | None], hint: str = ""):
        """kind: what errors call a part. group: of the entry points. accept: a loaded object as a part, None where it
        is none. hint: what an error adds for a name that is not known."""
        super().__init__()
        self.kind, self.group, self.accept, self.hint = kind, group, accept, hint

    def find(self, name: str) -> Part:
        """The part of that name; InputError, with the nearest valid name, where there is none, or where it cannot be
        loaded."""
        if name not in self:
            self[name] = self._load(name)
        return self[name]

    def known(self) -> list[str]:
        """All names, those of installed packages included, sorted."""
        return sorted({*self, *self.offered()})

    def offered(self) -> dict[str, str]:
        """What installed packages offer that is not loaded yet: the name, and where it is from."""
        points = sorted(entry_points(group=self.group), key=lambda point: point.name)
        return {point.name: f"{point.value}, of an installed package." for point in points if point.name not in self}

    def _load(self, name: str) -> Part:
        found: object
        if ":" in name:
            require_allowed(name)
            found = load_object(name, self.kind)
        else:
            offered = list(entry_points(group=self.group, name=name))
            if not offered:
                raise InputError(f"unknown {self.kind} {name!r}{nearest(name, self.known())}{self.hint}")
            found = load_object(offered[0].value, f"{self.kind} {name!r} of an installed package,")
        part = self.accept(found)
        if part is None:
            what = found.__name__ if isinstance(found, type) else type(found).__name__
            raise InputError(f"{self.kind} {name!r} is {what}, no {self.kind}: see docs/howto/extending.md")
        return part


def load_object(path: str, called: str) -> object:
    """What stands at `package.module:name` or `FILE.py:name`. called: how errors call it. InputError where that cannot
    be imported, or has no such name."""
    source, _, attribute = path.rpartition(":")
    look_in_working_folder()
    try:
        module = _load_file(Path(source), called) if source.endswith(".py") else importlib.import_module(source)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        remedy = "run from the folder it is in, or name FILE.py:NAME"
        if source.endswith(".py"):
            remedy = "install it, or put its file beside this one"
        raise InputError(f"{called} {path!r}: {error}; {remedy}") from None
    except (Exception, SystemExit) as error:
        raise InputError(f"{called} {path!r} cannot be imported:\n{own_traceback(error)}") from None
    if not hasattr(module, attribute):
        known = sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
        raise InputError(f"{called} {path!r}: {source} has no function {attribute!r}{nearest(attribute, known)}")
    return getattr(module, attribute)


def look_in_working_folder() -> None:
    """For the user's own modules: an installed command does not look there by itself."""
    _look_in(Path.cwd())


def _look_in(*folders: Path) -> None:
    """Behind all else: nothing of the user's stands in the way of what is installed."""
    sys.path += [folder for folder in dict.fromkeys(map(str, folders)) if folder not in sys.path]


def own_traceback(error: BaseException) -> str:
    """The innermost frame of the user's code and the error: what they need to mend it, in at most four lines."""
    frames = list(traceback.extract_tb(error.__traceback__))
    installed = (str(Path(torch.__file__).parents[1]), str(HOME / "attacks"), str(HOME / "clients"))
    theirs = [frame for frame in frames if not frame.filename.startswith((*installed, "<frozen"))]
    if isinstance(error, SyntaxError):  # says where by itself
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    innermost = (theirs or frames)[-1:]
    return "".join([*traceback.format_list(innermost), *traceback.format_exception_only(error)]).rstrip()


def _load_file(path: Path, called: str) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{called}: file {str(path)!r} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    package = _package_of(path)
    _look_in(path.resolve().parent, package.parent)  # for what it imports: files beside it, and its own package
    # its classes must be found by name, by pickle among others
    known = sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        if known is module:
            del sys.modules[path.stem]
        return _load_member(path.resolve(), package, called)
    return module


def _package_of(path: Path) -> Path:
    """The folder of the outermost package that a file is in; its own folder where that is none."""
    folder = path.resolve().parent
    while (folder / "__init__.py").exists() and (folder.parent / "__init__.py").exists():
        folder = folder.parent
    return folder


def _load_member(path: Path, package: Path, called: str) -> ModuleType:
    """A file that imports its neighbours by `from .name import`, as the member of its package that it is."""
    name = ".".join([package.name, *path.relative_to(package).with_suffix("").parts])
    remedy = "rename its folder, or import its neighbours by their names"
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{called}: {str(path)!r} imports its neighbours, as {name!r}: {error}; {remedy}") from None
    if Path(module.__file__ or "").resolve() != path:
        raise InputError(f"{called}: {str(path)!r} is {name!r} to Python, and so is {module.__file__!r}: {remedy}")
    return module
