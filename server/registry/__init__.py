"""models.yaml: the models this server knows, read, checked and looked up. Loads no model."""

from server.registry.entry import Entry
from server.registry.load import load_registry, packaged_file
from server.registry.problems import Problem, RegistryError
from server.registry.registry import Registry
from server.registry.spec import adapter_of, model_spec
from server.registry.unused import without_effect

__all__ = [
    "Entry",
    "Problem",
    "Registry",
    "RegistryError",
    "adapter_of",
    "load_registry",
    "model_spec",
    "packaged_file",
    "without_effect",
]
