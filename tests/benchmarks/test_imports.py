"""Every script under benchmarks/ finds what it imports, from the package and from its room."""

import pytest
from helpers.running import ROOT

SCRIPTS = sorted(path.relative_to(ROOT / "benchmarks") for path in (ROOT / "benchmarks").glob("*/*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_benchmark_imports(script, study, timing):
    {"studies": study, "timing": timing}[script.parent.name](script.stem)
