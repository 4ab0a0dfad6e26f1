from collections.abc import Iterator

import pytest
from training import Training


@pytest.fixture(autouse=True)
def no_run_outlives_its_test() -> Iterator[None]:
    yield
    Training.kill_all()
