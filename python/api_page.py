#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/python_api.md from the docstrings of python/keysieve.  Needs no built library.

    api_page.py            rewrites the page
    api_page.py --check    exits 1 if the page is not what the docstrings say
"""
import inspect
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
sys.dont_write_bytecode = True

PAGE = ROOT / "docs" / "python_api.md"
SECTIONS = (
    ("Selecting", ("topk_ragged", "topk_paged", "indexer_topk", "scores", "select", "Selection")),
    ("Quantising", ("quantize_fp8", "quantize_mxfp4")),
    ("Asking first", ("supported", "workspace_size", "explain", "backends", "Backend", "Options", "version", "register_torch")),
    ("Errors", ("KeysieveError", "InvalidArgumentError", "UnsupportedError", "WorkspaceTooSmallError", "UnavailableError", "DeviceError")))


def kind_text(kind):
    """An annotation as it was written: text, a forward reference or a class, by the version of Python."""
    return getattr(kind, "__forward_arg__", None) or (kind if isinstance(kind, str) else inspect.formatannotation(kind))


def parameter_text(name, kind, default):
    text = f"{name}: {kind_text(kind)}"
    if default is not inspect.Parameter.empty:
        text += " = Options()" if type(default).__name__ == "Options" else f" = {default!r}"
    return text


def signature(name, item):
    """As it would be written; parameters one a line where they do not fit on one."""
    if inspect.isclass(item) and issubclass(item, Exception):
        return f"class {name}({', '.join(base.__name__ for base in item.__bases__)})"
    if inspect.isclass(item):
        fields = [parameter_text(field, kind, item._field_defaults.get(field, inspect.Parameter.empty))
                  for field, kind in item.__annotations__.items()]
        return f"class {name}(NamedTuple):\n    " + "\n    ".join(fields)
    described = inspect.signature(item)
    parameters = []
    for parameter in described.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        if parameter.kind is parameter.VAR_KEYWORD:
            parameters.append(f"**{parameter.name}: {kind_text(parameter.annotation)}")
        else:
            parameters.append(parameter.name if parameter.name == "self" else parameter_text(parameter.name, parameter.annotation, parameter.default))
    result = f" -> {kind_text(described.return_annotation)}"
    line = f"{name}({', '.join(parameters)}){result}"
    return line if len(line) <= 110 else f"{name}(\n    " + ",\n    ".join(parameters) + f"){result}"


def entry(name, item):
    text = inspect.getdoc(item)
    return f"### {name}\n\n```python\n{signature(name, item)}\n```\n\n```text\n{text}\n```\n"


def page():
    import keysieve
    from keysieve import testing
    parts = ["# Python API\n\nWritten by `python/api_page.py` from the docstrings. [python.md](python.md) is the guide, "
             "[contract.md](contract.md) the definition.\n"]
    listed = [name for _, names in SECTIONS for name in names]
    missing = set(keysieve.__all__) ^ set(listed)
    if missing:
        raise SystemExit(f"api_page.py lists other names than keysieve.__all__: {sorted(missing)}")
    for title, names in SECTIONS:
        parts.append(f"## {title}\n")
        parts += [entry(name, getattr(keysieve, name)) for name in names]
    parts.append(f"## keysieve.testing\n\n```text\n{inspect.getdoc(testing)}\n```\n")
    parts += [entry(name, getattr(testing, name)) for name in testing.__all__ if not name.startswith("_")]
    return "\n".join(parts)


def main():
    text = page()
    if sys.argv[1:] == ["--check"]:
        current = PAGE.exists() and PAGE.read_text() == text
        print(f"{PAGE}: {'current' if current else 'not what the docstrings say: run python/api_page.py'}")
        return 0 if current else 1
    PAGE.write_text(text)
    print(f"{PAGE}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
