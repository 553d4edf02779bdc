"""The package, by its two names: `app` in this folder, for Flower and scripts/; `fedgeo` where it is installed.

A process has one tree of modules. The name that was imported first has them, and the other one leads to the very same
modules, so that a class from outside which imports `fedgeo` also works where the code runs as `app`. Where it runs as
`fedgeo` alone, nobody else's package `app` is touched.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

FOLDER, INSTALLED = "app", "fedgeo"


class SecondName(MetaPathFinder, Loader):
    """Finds ``<name>.<module>`` as the module ``<package>.<module>``; finder and loader in one."""

    def __init__(self, name: str, package: str) -> None:
        self.name, self.package = name, package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self.name:
            return None
        found = find_spec(self._owner(fullname))
        if found is None:
            return None
        spec = ModuleSpec(fullname, self, origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def exec_module(self, module: ModuleType) -> None:
        # what stands in sys.modules after this call is what the import statement gives
        sys.modules[module.__name__] = import_module(self._owner(module.__name__))

    def _owner(self, fullname: str) -> str:
        return self.package + fullname.removeprefix(self.name)


if __name__ == FOLDER:
    _first = sys.modules.get(INSTALLED)
    if _first is None:
        sys.meta_path.insert(0, SecondName(INSTALLED, FOLDER))  # before the finder of an editable installation
    elif Path(str(_first.__file__)).resolve() == Path(__file__).resolve():
        sys.modules[FOLDER] = _first
        sys.meta_path.insert(0, SecondName(FOLDER, INSTALLED))
    else:
        raise ImportError(
            f"{INSTALLED} was imported from {_first.__file__} before {FOLDER} from {__file__}: a process runs one of "
            f"them; uninstall {INSTALLED}, or install this folder with 'pip install -e'"
        )
