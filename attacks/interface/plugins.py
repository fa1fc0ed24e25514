"""Parts by name: our own, those of installed packages (entry points), and those at an import path, if they may run.

A scenario may come from a colleague, a run directory by mail: they hold data, but a network or a Flower mod that they
name, `FILE.py:NAME` or `package.module:NAME`, could be any program. Whoever has read it allows it, by
`--allow-code` or `allow_code()`. The permission stands in the environment, so that Ray's workers have it too.
"""

import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from attacks.interface.errors import InputError, did_you_mean

Part = TypeVar("Part")
HOME = Path(__file__).resolve().parents[2]
OURS = tuple(str(HOME / name) for name in ("attacks", "clients", "simulator"))
GENERATED = ("<frozen", "<string>", "<eval_with_key>")  # files of code that Python, dataclasses and torch.fx make
FLOWERS_OWN = ("flwr.clientapp.mod:", "flwr.client.mod:")  # mods of the Flower that is installed
VARIABLE = "FEDSPILL_ALLOW_CODE"
ALL = "all"


def allow_code(*names: str) -> None:
    """Allow the code of these names to run in this process and in those that it starts; without names, any code."""
    known = os.environ.get(VARIABLE, "").split("\n")
    os.environ[VARIABLE] = "\n".join(filter(None, dict.fromkeys([*known, *(names or (ALL,))])))


def require_allowed(name: str) -> None:
    """Raise InputError where nobody has allowed the code of this name to run."""
    if not name.startswith(FLOWERS_OWN) and not {ALL, name} & set(os.environ.get(VARIABLE, "").split("\n")):
        raise InputError(
            f"{name!r} is code that would run on this machine: read it, then add --allow-code "
            f"(or set {VARIABLE}={ALL}); see SECURITY.md"
        )


class Registry(dict[str, Part]):
    """Parts of one kind by name. Those of others are loaded when they are first asked for, in every process."""

    def __init__(self, kind: str, group: str, accept: Callable[[object], Part | None], hint: str = ""):
        """Make an empty registry.

        kind: what errors call a part.
        group: of the entry points.
        accept: a loaded object as a part, None where it is none.
        hint: what an error adds for a name that is not known.
        """
        super().__init__()
        self.kind, self.group, self.accept, self.hint = kind, group, accept, hint

    def find(self, name: str) -> Part:
        """Find the part of that name, loading it if needed.

        Raises InputError, with the nearest valid name, where there is none, or where it cannot be loaded.
        """
        if name not in self:
            self[name] = self._load(name)
        return self[name]

    def add(self, part: Part) -> None:
        """Add a part under its `name`. Raises InputError where it has none, or that of another class, whose rows would
        be of this one."""
        own, name = getattr(part, "__qualname__", str(part)), getattr(part, "name", None)
        if not isinstance(name, str):
            raise InputError(f'{self.kind} {own} has no `name`: write name: ClassVar[str] = "…" in the class')
        there = self.get(name)
        if there is not None and _origin(there) != _origin(part):
            other = f"{getattr(there, '__module__', '')}.{getattr(there, '__qualname__', there)}"
            raise InputError(f"{self.kind} {own}: the name {name!r} is that of {other}: choose another")
        self[name] = part

    def known(self) -> list[str]:
        """List all names, those of installed packages included, sorted."""
        return sorted({*self, *self.offered()})

    def offered(self) -> dict[str, str]:
        """List what installed packages offer and nobody has loaded: name -> where it is from."""
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
                raise InputError(f"unknown {self.kind} {name!r}{did_you_mean(name, self.known())}{self.hint}")
            found = load_object(offered[0].value, f"{self.kind} {name!r} of an installed package,")
        part = self.accept(found)
        if part is None:
            what = found.__name__ if isinstance(found, type) else type(found).__name__
            raise InputError(f"{self.kind} {name!r} is {what}, no {self.kind}: see docs/howto/extending.md")
        return part


def _origin(part: object) -> tuple[str, str]:
    """Return the file, else the module, and the name of a class: they stay where it is read again, by whatever path."""
    codes = [value.__code__ for value in vars(part).values() if hasattr(value, "__code__")]
    files = [code.co_filename for code in codes if not code.co_filename.startswith(GENERATED)]
    return (files or [str(getattr(part, "__module__", ""))])[0], str(getattr(part, "__qualname__", part))


def subclass_of(base: type) -> Callable[[object], Any]:
    """Accept subclasses of `base` as parts of a registry."""
    return lambda found: found if isinstance(found, type) and issubclass(found, base) else None


def load_object(path: str, called: str) -> object:
    """Load the object at `package.module:NAME` or `FILE.py:NAME`.

    called: how errors call it. Raises InputError where that cannot be imported, or has no such name.
    """
    source, _, attribute = path.rpartition(":")
    look_in_working_folder()
    remedy = "run from the folder it is in, or name FILE.py:NAME"
    if source.endswith(".py"):
        remedy = "install it, or put its file beside this one"
    try:
        module = _load_file(Path(source), called) if source.endswith(".py") else importlib.import_module(source)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        raise InputError(f"{called} {path!r}: {error}; {remedy}") from None
    except (Exception, SystemExit) as error:
        if "relative import" in str(error):
            remedy = "name it package.module:NAME, from the folder of its package"
            raise InputError(f"{called} {path!r}: {error}; {remedy}") from None
        raise InputError(f"{called} {path!r} cannot be imported:\n{own_traceback(error)}") from None
    if not hasattr(module, attribute):
        known = sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
        raise InputError(f"{called} {path!r}: {source} has no function {attribute!r}{did_you_mean(attribute, known)}")
    return getattr(module, attribute)


def look_in_working_folder() -> None:
    """Make the user's modules in the working folder importable: an installed command does not look there by itself."""
    _look_in(Path.cwd())


def _look_in(folder: Path) -> None:
    """Append a folder to the end of `sys.path`, so that user modules cannot shadow installed ones."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def own_traceback(error: BaseException) -> str:
    """Format the innermost frame of the user's code and the error, in at most four lines."""
    if isinstance(error, SyntaxError):  # says where by itself
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    innermost = (users_frames(error) or list(traceback.extract_tb(error.__traceback__)))[-1:]
    return "".join([*traceback.format_list(innermost), *traceback.format_exception_only(error)]).rstrip()


def hook_of(owner: object, hook: str) -> str:
    """Name a method of a class of the user's, with its place: "Mine.reconstruct (mine.py:7)"."""
    code = cast(Any, inspect.unwrap(getattr(type(owner), hook))).__code__
    return f"{type(owner).__name__}.{hook} ({code.co_filename}:{code.co_firstlineno})"


def users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """List the frames below fedspill's first one that are of the user's own code, the innermost last."""
    frames, paths = list(traceback.extract_tb(error.__traceback__)), sysconfig.get_paths()
    installed = [paths[name] for name in ("stdlib", "platstdlib", "purelib")]
    torch = importlib.util.find_spec("torch")
    libraries = (*installed, *([str(Path(torch.origin).parents[1])] if torch and torch.origin else []))
    below = next((i for i, frame in enumerate(frames) if frame.filename.startswith(OURS)), len(frames))
    others = (*OURS, *libraries, *GENERATED)
    return [frame for frame in frames[below:] if not frame.filename.startswith(others)]


def _load_file(path: Path, called: str) -> ModuleType:
    """Import a file by its path. It can import the files beside it, and its own package, by their full names."""
    if not path.is_file():
        raise InputError(f"{called}: file {str(path.absolute())!r} does not exist")
    folders = path.resolve().parents
    _look_in(folders[0])
    _look_in(next(folder for folder in folders if not (folder / "__init__.py").exists()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # so that pickle finds its classes by name
    spec.loader.exec_module(module)
    return module
