"""Names that are imported when somebody asks for them (PEP 562), so that `import workshop` stays light."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from operator import attrgetter
from types import MappingProxyType, ModuleType


def lazily(
    package: str, homes: Mapping[str, str], former: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the __getattr__ and __dir__ of a package.

    Args:
        homes: name → where it is: "module" or "module:attribute".
        former: the same for names of earlier releases, which are found and not listed.
    """

    def get(name: str) -> object:
        home = homes.get(name) or former.get(name)
        if home is None:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it has {', '.join(homes)}"
            )
        module, _, attribute = home.partition(":")
        found = import_module(module)
        return getattr(found, attribute) if attribute else found

    return get, lambda: sorted({*vars(sys.modules[package]), *homes})


def call(package: str, door: str) -> None:
    """Let a package be called as its "module.function", so that one name is that and what is beside it."""

    class Package(ModuleType):
        def __call__(self, *args, **kwargs):
            return attrgetter(door)(self)(*args, **kwargs)

    sys.modules[package].__class__ = Package
