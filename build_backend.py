"""The backend that pyproject.toml names: that of setuptools, or a sentence where an environment has no setuptools, as
those of Python 3.12 and later when they are new. What else is missing, setup.py says."""

try:
    from setuptools.build_meta import *  # noqa: F403
except ModuleNotFoundError as error:
    if error.name != "setuptools":
        raise
    raise SystemExit(
        "torch_gnnscale is built by setuptools against the torch that is installed, and here is no setuptools: first "
        'pip install "torch>=2.11" "setuptools>=77" wheel ninja, then run pip with --no-build-isolation'
    ) from None
