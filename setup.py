"""The metadata stands in pyproject.toml; this file keeps `python setup.py` and old tools working."""

from setuptools import setup

setup()
