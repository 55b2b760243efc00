import pytest

import vitrine
from vitrine.errors import ConfigError


@pytest.fixture
def compose(tmp_path):
    """Compose as the command line does; nothing would be written outside of ``tmp_path``."""

    def call(*overrides):
        return vitrine.compose([*overrides, f"paths.output_dir={tmp_path}", f"paths.data_dir={tmp_path}"])

    return call


@pytest.fixture
def refusal(compose):
    """The faults for which a command line is refused."""

    def call(*overrides):
        with pytest.raises(ConfigError) as error:
            compose(*overrides)
        return error.value.faults

    return call
