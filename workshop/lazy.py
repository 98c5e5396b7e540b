"""Names that are imported when somebody asks for them (PEP 562), so that `import workshop` stays light."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the __getattr__ and __dir__ of a package.

    Args:
        homes: name → where it is: "module" or "module:attribute".
    """

    def get(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it has {', '.join(homes)}"
            )
        module, _, attribute = home.partition(":")
        home_module = import_module(module)
        if attribute:
            return getattr(home_module, attribute)
        return home_module

    return get, lambda: sorted({*vars(sys.modules[package]), *homes})
