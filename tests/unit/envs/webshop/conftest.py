import pytest

from rollart_hpc.envs.webshop import WebShop
from tests.unit.envs.webshop.small_shop import open_shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> WebShop:
    return open_shop(tmp_path_factory.mktemp("shop"))
