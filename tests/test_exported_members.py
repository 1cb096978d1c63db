"""The public names: complete, sorted, documented, and cheap to import."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import tracelens
import tracelens.api
import tracelens.errors
import tracelens.frames
import tracelens.simulate
from tracelens.trace import LoadedTrace

ROOT = Path(__file__).parents[1]


def test_the_package_offers_exactly_these_names() -> None:
    assert tracelens.__all__ == sorted(tracelens.__all__)
    assert set(tracelens.__all__) >= {"Trace", "TracelensError", "compare", "load"}
    for name in tracelens.__all__:
        assert getattr(tracelens, name).__doc__
    assert set(tracelens.__all__) <= set(dir(tracelens))
    with pytest.raises(AttributeError, match="no_such_name"):
        tracelens.no_such_name  # noqa: B018


def test_the_simulators_names_are_there() -> None:
    names = tracelens.simulate.__all__
    assert len(names) == len(set(names))
    assert all(hasattr(tracelens.simulate, name) for name in names)


def test_every_error_stands_in_the_tree_that_is_drawn() -> None:
    drawn = tracelens.errors.__doc__ or ""
    classes = {
        name: one
        for name, one in vars(tracelens.errors).items()
        if inspect.isclass(one) and issubclass(one, tracelens.errors.TracelensError)
    }
    assert all(name in drawn for name in classes)
    assert drawn.count("Error") >= len(classes)
    for one in classes.values():
        error = one("seen", "try this")
        assert (error.message, error.hint, str(error)) == ("seen", "Try this", "seen\nTry this")


def test_every_question_is_a_method_with_a_docstring() -> None:
    methods = {
        name: one
        for name, one in vars(tracelens.api.Trace).items()
        if inspect.isfunction(one) and not name.startswith("_")
    }
    assert set(methods) >= {"buckets", "collectives", "gaps", "info", "report", "skew", "sql", "steps"}
    assert all(one.__doc__ for one in methods.values())
    assert issubclass(tracelens.api.Trace, LoadedTrace)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, tracelens, tracelens.cli.app as a; a.build(); print([m for m in ('duckdb', 'polars', 'pyarrow', 'numpy', 'scipy', 'plotly') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "[]"


def test_a_trace_from_python(tmp_path: Path) -> None:
    from tracelens.simulate import Kernel, write_events

    path = write_events([Kernel("gemm", 1_000, 2_000)], tmp_path / "x.sqlite")
    with tracelens.load(path) as trace:
        assert trace.buckets()["buckets"]["elapsed_ns"].to_list() == [1_000, 0]
        assert trace.info().ranks["rank"].to_list() == [0]
        assert trace.sql("SELECT count(*) AS n FROM event").item() == 1
    with pytest.raises(tracelens.TracelensError):
        tracelens.load(tmp_path / "nope.sqlite")
    with pytest.raises(TypeError):
        tracelens.load(path, no_such_option=1)
